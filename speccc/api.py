"""The Python API: compile a model, load an artifact, generate text, or drive a session by hand."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speccc import knobs
from speccc.errors import InputError, UnsupportedError
from speccc.ir.tokenizer_spec import TokenizerSpec
from speccc.memory_plan import available_memory, check_fits, plan_memory
from speccc.runtime.aligned import huge_pages
from speccc.runtime.artifact_file import Bytes, Entries, read_entries
from speccc.runtime.controller import AdaptiveController
from speccc.runtime.cores import cores
from speccc.runtime.drafter import Drafter
from speccc.runtime.generate import Generation, collect
from speccc.runtime.generate import generate as run_generate
from speccc.runtime.give_back import give_back
from speccc.runtime.manifest import DRAFTERS, TARGETS, Facts, read_facts
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.round_cost import RoundCost
from speccc.runtime.rows import whole_number
from speccc.runtime.sampling import SamplingParams
from speccc.runtime.session import CpuSession, StepSession, StepSpec
from speccc.runtime.step_spec import read_step
from speccc.runtime.stream_text import Piece
from speccc.runtime.tokenizer import Tokenizer
from speccc.runtime.verify_cost import FLAT_GUESS, VerifyCost
from speccc.scratch import Scratch

if TYPE_CHECKING:
    from speccc.runtime.chat import ChatTemplate

Prompt = str | Sequence[int]
Progress = Callable[[str, int, int], None]
MOST_THREADS = 1024


def compile(
    path: str | Path,
    *,
    target: str = "cpu",
    drafter: str = "ngram",
    context: int | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
    dump: str | Path | None = None,
    isa: str = "auto",
    kv: str = "f16",
    tune_seconds: float = 0.0,
    weights: str | None = None,
    activations: str = "int8",
    attention: str = "f32",
) -> Model:
    """Compiles a GGUF file or safetensors folder and loads the result.

    `output` names the artifact to write; without it a temporary one serves the returned model.
    `weights` is the format the layers' matrices are stored in anew (`speccc.requantize.WEIGHTS`).
    `activations` says how rows are rounded where weights take it: "int8", "nvfp4", "f16", "bf16" or
    "fp8", the latter three for weights of that format.
    `attention` is what it multiplies: "f32", or "f16" for matrix engines over a cache of f16.
    `tune_seconds` are spent on schedules if none are known for this model and machine.
    InputError (exit code 2) for bad models and options.
    """
    from speccc.compiled import is_artifact
    from speccc.driver import CompileOptions, compile_to

    if is_artifact(Path(path)):
        raise InputError("is an artifact, compiled already: speccc.load opens it", where=str(path))
    stages = None if dump is None else Path(dump)
    options = CompileOptions(
        target,
        isa,
        kv,
        context,
        drafter,
        stages,
        tune_seconds=tune_seconds,
        weights=weights,
        activations=activations,
        attention=attention,
    )
    if output is not None:
        compile_to(Path(path), Path(output), options, progress)
        return Model(read_entries(Path(output)))
    with Scratch() as folder:
        artifact = folder / "model.speccc"
        compile_to(Path(path), artifact, options, progress)
        # The mapping outlives the file's name.
        return Model(read_entries(artifact))


def load(path: str | Path) -> Model:
    """Loads an artifact; InputError says what is wrong with it. It holds machine code: trust it."""
    model = Model(read_entries(Path(path)))
    model.check_machine()
    return model


class Model:
    """A compiled model. Sessions made from it share its weights."""

    def __init__(self, entries: Entries) -> None:
        """Checks everything the manifest says before it is used."""
        where = str(entries.path)
        self._entries = entries
        self.manifest: Mapping[str, Any] = entries.manifest
        self.path = entries.path
        self._spec: StepSpec = read_step(entries)
        self.tokenizer = _tokenizer(entries, where)
        self._facts: Facts = read_facts(
            entries.manifest, self._spec, self.tokenizer.vocab_size, where
        )
        self._weights: Bytes | None = None
        self._costs: dict[int, RoundCost] = {}
        entries.forget()
        give_back()

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """Compiled when first asked for, as not all who run a model chat; InputError when it is
        not valid."""
        if "chat_template.jinja" not in self._entries.data:
            return None
        from speccc.runtime.chat import ChatTemplate

        return ChatTemplate(self._entries.text("chat_template.jinja"), str(self.path))

    def check_machine(self) -> None:
        """UnsupportedError, by name, for code that this machine cannot run; nothing is loaded."""
        from speccc.targets.cpu.isa import ISAS, detect, runs_here

        facts, where, here = self._facts, str(self.path), platform.machine()
        if facts.backend not in TARGETS:
            raise UnsupportedError(
                f"is compiled for the target {facts.target}: "
                f"this version runs {' and '.join(TARGETS)}",
                where=where,
            )
        if facts.backend != "cpu":
            return  # a session opens the device, and says what is missing
        if facts.machine != here:
            raise UnsupportedError(
                f"is compiled for {facts.machine}, this machine is {here}: compile the model here",
                where=where,
            )
        if facts.isa not in ISAS or not runs_here(ISAS[facts.isa]):
            raise UnsupportedError(
                f"is compiled for --isa {facts.isa}, which this CPU lacks: compile the model "
                f"here, or with --isa {detect().name}",
                where=where,
            )

    def session(self, *, context: int | None = None, threads: int | None = None) -> StepSession:
        """A fresh sequence; `context` tokens fit it, `threads` workers run it."""
        self.check_machine()
        most = self._facts.context_length
        asked = self._facts.context if context is None else whole_number(context, "context")
        if not 1 <= asked <= most:
            raise InputError(f"a context of {asked}: the model takes 1 to {most} tokens (-c)")
        threads = knobs.THREADS.get() if threads is None else whole_number(threads, "threads")
        if threads is not None and not 1 <= threads <= MOST_THREADS:
            raise InputError(f"{threads} threads: give 1 to {MOST_THREADS} (-t)")
        if self._facts.backend == "cpu":
            return self._cpu_session(asked, threads or cores())
        return self._device_session(asked, threads)

    def _resident(self, context: int, threads: int) -> Bytes:
        """The weights where the CPU reads them fastest: in huge pages, if a copy leaves room."""
        if self._weights is None:
            mapped = self._entries.data["weights"]
            need = plan_memory(self._spec, mapped.size, context, threads).total
            room = available_memory()
            copy = huge_pages() and (room is None or need <= room)
            self._weights = self._entries.load("weights") if copy else mapped
        return self._weights

    def _cpu_session(self, context: int, threads: int) -> CpuSession:
        weights, vectors = self._resident(context, threads), self._entries.data["vectors"]
        check_fits(self._spec, weights.size + vectors.size, context, threads, loaded=True)
        session = CpuSession(
            self._spec,
            self._entries.data["step.so"],
            weights,
            vectors.view(np.float32),
            context=context,
            threads=threads,
            splits=self._facts.splits,
        )
        give_back()  # what its tables were computed in
        return session

    def _device_session(self, context: int, threads: int | None) -> StepSession:
        from speccc.device_step import open_session

        data = self._entries.data
        return open_session(
            self._spec,
            self._facts.backend,
            data,
            data["weights"],
            data["vectors"].view(np.float32),
            context=context,
            threads=threads,
            splits=self._facts.splits,
            where=str(self.path),
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        drafter: str | Drafter | None = None,
        stop: Sequence[str] = (),
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        context: int | None = None,
        threads: int | None = None,
        session: StepSession | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Generator[Piece, None, Generation]:
        """Yields pieces of text as they are decided; the generator returns the `Generation`."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        live = session or self.session(context=context, threads=threads)
        return run_generate(
            live,
            self.tokenizer,
            tokens,
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature, top_k, top_p, min_p, seed),
            drafter=self.drafter(drafter),
            controller=self._controller(live.threads),
            stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_ids=self.tokenizer.eos_ids,
            on_progress=on_progress,
        )

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """The finished text of a prompt; a str is raw text, no template. Options as `stream`."""
        return collect(self.stream(prompt, **options))

    def chat(self, messages: Sequence[Mapping[str, object]], **options: Any) -> Generation:
        """The reply to messages with `role` and `content`, through the model's chat template."""
        return self.generate(self.chat_tokens(messages), **options)

    def chat_tokens(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The prompt tokens of a chat; InputError when the model has no template."""
        if self.chat_template is None:
            raise InputError("has no chat template: give a raw prompt", where=str(self.path))
        t = self.tokenizer
        bos, eos = (
            "" if i is None else t.decode([i], special=True) for i in (t.bos, _first(t.eos_ids))
        )
        text = self.chat_template.render(messages, bos_token=bos, eos_token=eos)
        return t.encode(text, bos=False) if bos and text.startswith(bos) else t.encode(text)

    def drafter(self, choice: str | Drafter | None) -> Drafter | None:
        """A drafter by name (`ngram`, `none`), the artifact's for None, or the one given."""
        name = self._facts.drafter if choice is None else choice
        if not isinstance(name, str):
            return name
        if name not in DRAFTERS:
            raise InputError(f"drafter {name!r}: choose {' or '.join(DRAFTERS)} (--spec-type)")
        return NgramDrafter() if name == "ngram" else None

    def _controller(self, threads: int) -> AdaptiveController:
        """One for a request: what texts accept is learnt anew, what rounds cost is kept."""
        times = self._facts.verify_ms
        cost = VerifyCost.from_table(times) if times else FLAT_GUESS
        controller = AdaptiveController(cost, costs=self._costs.get(threads))
        if controller.costs is not None:
            self._costs[threads] = controller.costs
        return controller


def _tokenizer(entries: Entries, where: str) -> Tokenizer:
    """Apart, so that its megabytes of text are freed before memory is given back."""
    raw = bytes(_entry(entries, "tokenizer.json"))
    return Tokenizer(TokenizerSpec.from_bytes(raw, where), where)


def _entry(entries: Entries, name: str) -> Any:
    if name not in entries.data:
        raise InputError(f"entry {name} is missing: compile it again", where=str(entries.path))
    return entries.data[name]


def _first(ids: Any) -> int | None:
    return next(iter(ids), None)
