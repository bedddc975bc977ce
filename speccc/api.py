"""The Python API: compile a model, load an artifact, generate text, or drive a session by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from speccc.errors import InputError
from speccc.ir.tokenizer_spec import TokenizerSpec
from speccc.runtime.artifact_file import Entries, read_entries
from speccc.runtime.chat import ChatTemplate
from speccc.runtime.controller import AdaptiveController, VerifyCost
from speccc.runtime.drafter import Drafter
from speccc.runtime.generate import Generation, collect
from speccc.runtime.generate import generate as run_generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.sampling import SamplingParams
from speccc.runtime.session import CpuSession, StepSpec
from speccc.runtime.step_spec import read_step
from speccc.runtime.stream_text import Piece
from speccc.runtime.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Progress = Callable[[str, int, int], None]


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
) -> Model:
    """Compiles a GGUF file or safetensors folder and loads the result.

    `output` names the artifact to write; without it a temporary one serves the returned model.
    InputError (exit code 2) for bad models and options.
    """
    from speccc.driver import CompileOptions, compile_to

    folder = None if dump is None else Path(dump)
    options = CompileOptions(target, isa, kv, context, drafter, folder)
    if output is not None:
        compile_to(Path(path), Path(output), options, progress)
        return load(output)
    with tempfile.TemporaryDirectory(prefix="speccc-") as scratch:
        artifact = Path(scratch) / "model.speccc"
        compile_to(Path(path), artifact, options, progress)
        # The mapping outlives the file's name.
        return load(artifact)


def load(path: str | Path) -> Model:
    """Loads an artifact; InputError says what is wrong with it. It holds machine code: trust it."""
    return Model(read_entries(Path(path)))


class Model:
    """A compiled model. Sessions made from it share its weights."""

    def __init__(self, entries: Entries) -> None:
        """Checks everything the manifest says before it is used."""
        where = str(entries.path)
        self._entries = entries
        self.manifest: Mapping[str, Any] = entries.manifest
        self.path = entries.path
        self._spec: StepSpec = read_step(entries)
        raw = bytes(_entry(entries, "tokenizer.json"))
        self.tokenizer = Tokenizer(TokenizerSpec.from_bytes(raw, where), where)
        self.chat_template: ChatTemplate | None = None
        if "chat_template.jinja" in entries.data:
            self.chat_template = ChatTemplate(entries.text("chat_template.jinja"), where)

    def session(self, *, context: int | None = None, threads: int | None = None) -> CpuSession:
        """A fresh sequence; `context` tokens fit it, `threads` workers run it."""
        most = int(self.manifest["model"]["context_length"])
        asked = context or int(self.manifest["context"])
        if not 1 <= asked <= most:
            raise InputError(f"a context of {asked}: the model takes 1 to {most} tokens (-c)")
        if threads is not None and threads < 1:
            raise InputError(f"{threads} threads: give 1 or more (-t)")
        return CpuSession(
            self._spec,
            _entry(self._entries, "step.so"),
            _entry(self._entries, "weights"),
            _entry(self._entries, "vectors").view("float32"),
            context=asked,
            threads=threads,
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
        session: CpuSession | None = None,
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
            controller=self._controller(),
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
        name = self.manifest.get("drafter", "ngram") if choice is None else choice
        if not isinstance(name, str):
            return name
        if name not in ("ngram", "none"):
            raise InputError(f"drafter {name!r}: choose ngram or none (--spec-type)")
        return NgramDrafter() if name == "ngram" else None

    def _controller(self) -> AdaptiveController:
        table = self.manifest.get("verify_ms")
        if not isinstance(table, dict) or "1" not in table:
            return AdaptiveController()
        cost = VerifyCost.from_table({int(w): float(ms) for w, ms in table.items()})
        return AdaptiveController(cost)


def _entry(entries: Entries, name: str) -> Any:
    if name not in entries.data:
        raise InputError(f"entry {name} is missing: compile it again", where=str(entries.path))
    return entries.data[name]


def _first(ids: Any) -> int | None:
    return next(iter(ids), None)
