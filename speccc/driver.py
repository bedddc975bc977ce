"""The compile driver: a model file -> graph -> plan -> kernels -> one artifact file."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speccc.beside import Beside
from speccc.build_step import build_step
from speccc.errors import InputError, UnsupportedError
from speccc.ir.build_llama import build_llama, weight_types
from speccc.ir.expr import Expr, Var
from speccc.ir.frontends import EMBEDDING, HEAD, ModelSource, open_model
from speccc.ir.graph import Graph
from speccc.ir.plan import Plan, Role
from speccc.ir.schedule import Schedules
from speccc.ir.tile_text import print_plan
from speccc.kernel_cache import open_kernel_cache
from speccc.memory_plan import (
    available_memory,
    check_fits,
    check_product,
    longest_context,
    plan_memory,
    step_traffic,
)
from speccc.pack import pack_weights
from speccc.passes.graph_pipeline import GRAPH_PASSES, optimize
from speccc.passes.lower_context import KV_TYPES, MAX_ROWS, RopeTable
from speccc.passes.lower_graph import Lowered, LowerGraph
from speccc.passes.lower_top import MOST_TOP
from speccc.passes.pipeline import DumpStages, Stage
from speccc.passes.plan_memory import PlanMemory
from speccc.reach import lower_for
from speccc.requantize import requantized
from speccc.runtime.artifact_file import write_entries
from speccc.runtime.cores import cores
from speccc.runtime.destination import artifact_destination
from speccc.runtime.manifest import DRAFTERS
from speccc.runtime.session import CpuSession, StepSpec
from speccc.runtime.step_spec import SCRATCH, parse_step, seal
from speccc.runtime.tokenizer import Tokenizer
from speccc.targets.cpu.built import Built, Signature
from speccc.targets.cpu.isa import Isa, by_name, runs_here
from speccc.tuning import Subject, schedules_for, told
from speccc.user_cache import write_whole
from speccc.verify_cache import known_or_measured, verify_keys
from speccc.verify_cost import CONTEXT, VerifyTable, measure

if TYPE_CHECKING:
    from speccc.device_step import DeviceStep
    from speccc.targets.base import Target

Progress = Callable[[str, int, int], None]
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What may be chosen at compile time."""

    target: str = "cpu"
    isa: str = "auto"
    kv: str = "f16"
    context: int | None = None
    drafter: str = "ngram"
    dump: Path | None = None
    measure: bool = True
    tune_seconds: float = 0.0
    """Budget for schedules when none are known here; 0 takes those that are known."""
    weights: str | None = None
    """The format of the layers' matrices, of `requantize.WEIGHTS`; None leaves the file's."""
    activations: str = "int8"
    """How rows are quantised, of `tile_matmul.ACTIVATIONS`; int8 for weights not made for it."""
    attention: str = "f32"
    """What attention multiplies, of `attention_node.ATTENTION`."""


@dataclass
class _Times:
    """Seconds by pass, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    report: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self.begun
        self.begun = now

    def stage(self, stage: Stage) -> None:
        if stage.number:
            self.seconds[f"{stage.number:02} {stage.name}"] = stage.seconds
        if stage.report:
            self.report.append(f"{stage.name}: {stage.report}")


def compile_to(
    path: Path, output: Path, options: CompileOptions, progress: Progress | None = None
) -> dict[str, Any]:
    """Compiles a model file or folder into an artifact; nothing is left behind on a failure.

    Returns the manifest. `progress` is told (stage, done, of how many). InputError for a bad model
    or option, and when the model would not fit into this machine's memory.
    """
    tell = progress or (lambda what, done, total: None)
    isa, device = _check(options), _device(options)
    output = artifact_destination(output, path)
    if options.dump is not None and options.dump.exists() and not options.dump.is_dir():
        raise InputError("is not a folder; name one with --dump", where=str(options.dump))
    times = _Times()
    source = _read(path, options, times, tell)
    hashing = Beside(source.fingerprint)
    front = _front(source, options, isa, times, tell)
    fingerprint = hashing.result()  # before anything is timed
    schedules: Schedules = {}
    if device is None:
        schedules = _schedules(front.subject, options, times, tell)
    tell("build", 0, 1)
    built = _build(front.subject, schedules, device, tell)
    if options.dump is not None:
        _dump(options.dump, built, front.lowered)
    times.lap("build")
    tell("build", 1, 1)
    made = _Made(front, fingerprint, options, isa, schedules, built, device)
    cost = _measure(made, times, tell)
    tell("write", 0, 1)
    manifest = write_entries(output, _manifest(made, times, cost), made.entries())
    tell("write", 1, 1)
    return manifest


def _build(
    subject: Subject, schedules: Schedules, device: Target | None, tell: Progress
) -> Built | DeviceStep:
    """The step's code, for the host CPU or a device."""
    program = (subject.plan, subject.arena, subject.bounds)
    if device is None:
        return build_step(*program, schedules, subject.isa, open_kernel_cache())
    from speccc.device_step import build_device_step

    return build_device_step(device, *program, tell)


def tunable(path: Path, options: CompileOptions, progress: Progress | None = None) -> Subject:
    """A model's step, ready to be tuned. InputError as for `compile_to`."""
    tell = progress or (lambda what, done, total: None)
    isa, times = _check(options), _Times()
    return _front(_read(path, options, times, tell), options, isa, times, tell).subject


@dataclass(frozen=True)
class _Front:
    """A model as a plan with its weights packed, before any code is made."""

    source: ModelSource
    lowered: Lowered
    context: int
    subject: Subject


def _read(path: Path, options: CompileOptions, times: _Times, tell: Progress) -> ModelSource:
    """A checked model, its weights in the format that was asked for."""
    tell("read", 0, 1)
    source = open_model(path)
    Tokenizer(source.tokenizer, str(path))
    _context(source, options.context)
    times.lap("read")
    tell("read", 1, 1)
    if options.weights is not None:
        report = functools.partial(tell, "requantize")
        source = requantized(source, options.weights, report)
        times.lap("requantize")
    return source


def _front(
    source: ModelSource, options: CompileOptions, isa: Isa, times: _Times, tell: Progress
) -> _Front:
    context = _context(source, options.context)
    graph = final_graph(source, options, times, tell)
    lowering = LowerGraph(
        options.kv, MOST_TOP, activations=options.activations, attention=options.attention
    )
    lowered = lower_for(options.target, lowering, graph)
    bounds = _bounds(lowered)
    arena = PlanMemory(bounds).run(lowered.plan)
    # Scratch is known only from the code, which takes long to make: ask about the rest before it.
    early = Signature((), arena.elements, dict.fromkeys(SCRATCH, 0), ())
    spec = parse_step(_step(source, lowered, early))
    _check_memory(spec, lowered, isa, context, options.target)
    times.lap("lower")
    packed = pack_weights(lowered.weights, source.weights, lambda n, of: tell("pack", n, of))
    times.lap("pack")
    most = source.config.context_length
    subject = Subject(lowered.plan, arena, bounds, isa, options.kv, spec, *packed, most)
    return _Front(source, lowered, context, subject)


def _schedules(
    subject: Subject, options: CompileOptions, times: _Times, tell: Progress
) -> Schedules:
    """What tuning says, if times are to be taken at all."""
    found: Schedules = {}
    if options.measure:
        found = schedules_for(subject, options.tune_seconds, told(tell))
    times.lap("tune")
    return found


@dataclass(frozen=True)
class _Made:
    """Everything that goes into the artifact."""

    front: _Front
    fingerprint: str
    options: CompileOptions
    isa: Isa
    schedules: Schedules
    built: Built | DeviceStep
    device: Target | None

    @property
    def source(self) -> ModelSource:
        """The model."""
        return self.front.source

    @property
    def lowered(self) -> Lowered:
        """Its plan."""
        return self.front.lowered

    @property
    def step(self) -> dict[str, Any]:
        """How to call the built step."""
        return _step(self.source, self.lowered, self.built.signature)

    def entries(self) -> dict[str, Any]:
        """The artifact's entries by name."""
        data: dict[str, Any] = {
            **self.built.entries,
            "tokenizer.json": self.source.tokenizer.to_bytes(),
            "weights": self.front.subject.weights,
            "vectors": self.front.subject.vectors.view(np.uint8),
        }
        if self.source.chat_template is not None:
            data["chat_template.jinja"] = self.source.chat_template.encode()
        return data


def _check(options: CompileOptions) -> Isa:
    """The instruction set; UnsupportedError for an option this version does not have."""
    if options.drafter not in DRAFTERS:
        raise UnsupportedError(f"drafter {options.drafter!r}: choose {' or '.join(DRAFTERS)}")
    if options.kv not in KV_TYPES:
        raise UnsupportedError(f"--kv {options.kv}: choose one of {', '.join(KV_TYPES)}")
    isa = by_name(options.isa)
    if isa.arch not in ("", platform.machine()):
        raise UnsupportedError(
            f"--isa {isa.name}: it is for {isa.arch}, this machine is {platform.machine()}: "
            "compile the model there"
        )
    return isa


def _device(options: CompileOptions) -> Target | None:
    """The device target, None for the CPU; UnsupportedError for one that this version lacks."""
    if options.target == "cpu":
        return None
    from speccc.device_here import check_target, device_target  # all GPU targets: 50 ms

    check_target(options.target)
    if options.isa != "auto":
        raise UnsupportedError(f"--isa {options.isa}: it is for --target cpu; drop one of them")
    return device_target(options.target)


def _check_memory(spec: StepSpec, lowered: Lowered, isa: Isa, context: int, target: str) -> None:
    weights = _weight_bytes(lowered)
    if target != "cpu":
        from speccc.targets.devices import profile

        check_product(spec, weights, context, profile(target))
    elif runs_here(isa):
        check_fits(spec, weights, context, cores())


def _weight_bytes(lowered: Lowered) -> int:
    layout = lowered.weights
    return max(layout.matrix_bytes, 64) + 4 * max(layout.vector_elements, 64)


def _measure(made: _Made, times: _Times, tell: Progress) -> VerifyTable | None:
    """T(m) of the step just built, where this machine can run it; from the cache if it is known."""
    if not made.options.measure or (made.device is None and not runs_here(made.isa)):
        return None
    tell("measure", 0, 1)
    room = min(CONTEXT, made.source.config.context_length)
    subject, step = made.front.subject, made.step
    if made.device is None:
        table: VerifyTable | None = _measure_cpu(made, room)
    else:
        from speccc.device_step import measured_here

        spec, arrays = parse_step(step), (subject.weights, subject.vectors)
        table = measured_here(made.device, spec, made.built.entries, *arrays, room)
    times.lap("measure")
    tell("measure", 1, 1)
    return table


def _measure_cpu(made: _Made, room: int) -> VerifyTable:
    subject, step = made.front.subject, made.step

    def anew() -> VerifyTable:
        library = np.frombuffer(made.built.library, np.uint8)
        session = CpuSession(
            parse_step(step), library, subject.weights, subject.vectors, context=room
        )
        return measure(session, room)

    keys = verify_keys(made.built.library, step, subject.nbytes, made.isa.name, cores(), room)
    return known_or_measured(keys, anew)


def final_graph(
    source: ModelSource, options: CompileOptions, times: _Times, tell: Progress | None = None
) -> Graph:
    """The model's graph after all graph passes, dumped stage by stage if asked."""
    naive = build_llama(source.config, weight_types(source.weights))
    times.lap("build graph")
    dump = DumpStages(options.dump, write_whole) if options.dump is not None else None

    def observe(stage: Stage) -> None:
        times.stage(stage)
        if tell is not None:
            tell("passes", stage.number, len(GRAPH_PASSES))
        if dump is not None:
            dump(stage)

    graph = optimize(naive, observe)
    times.begun = time.perf_counter()
    return graph


def _context(source: ModelSource, asked: int | None) -> int:
    most = source.config.context_length
    if asked is not None and not 1 <= asked <= most:
        raise InputError(f"a context of {asked}: the model takes 1 to {most} tokens (-c)")
    return asked or min(most, DEFAULT_CONTEXT)


def _bounds(lowered: Lowered) -> dict[Var, int]:
    # The only size known here: memory of any other one is refused when it is laid out.
    return {lowered.sizes["m"]: MAX_ROWS}


def frequencies(table: RopeTable, source: ModelSource) -> list[float]:
    """Radians per position of each pair; 0 past the turned ones."""
    factors = np.ones(table.dim // 2)
    if table.factors is not None:
        w = source.weights[table.factors]
        factors = w.format.decode(w.raw, w.shape).astype(np.float64)
    pairs = np.arange(table.dim // 2, dtype=np.float64)
    turning = table.theta ** (-2.0 * pairs / table.dim) / table.divisor / factors
    out = np.zeros(table.pairs)
    out[: len(turning)] = turning
    return [float(f) for f in out]


def _dim(d: Expr | int) -> int | str:
    if isinstance(d, int):
        return d
    if isinstance(d, Var):
        return d.name
    raise UnsupportedError("a buffer of the plan has a computed size")


def _parameters(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "name": b.buf.name,
            "dtype": b.buf.dtype.name,
            "shape": [_dim(d) for d in b.buf.shape],
            "role": b.role.value,
        }
        for b in plan.bufs
        if b.role is not Role.ACTIVATION and b.window is None
    ]


def _manifest(made: _Made, times: _Times, cost: VerifyTable | None) -> dict[str, Any]:
    source, options, kv = made.source, made.options, made.lowered.kv
    config = asdict(source.config)
    element = kv.dtype.nbytes + (4 / kv.group if kv.dtype.name == "i8" else 0)
    return {
        "model": {"name": source.config.name, "fingerprint": made.fingerprint, **config},
        "formats": _formats(source),
        "weights": options.weights,
        "activations": options.activations,
        "attention": options.attention,
        "target": "cpu" if made.device is None else made.device.name,
        "isa": made.isa.name if made.device is None else "",
        "machine": platform.machine() if made.device is None else "",
        "drafter": options.drafter,
        "context": made.front.context,
        "kv": {"type": options.kv, "bytes_per_token": 2 * kv.layers * kv.heads * kv.size * element},
        "notes": list(source.notes),
        "report": times.report,
        "pass_times": times.seconds,
        "schedules": {kernel: asdict(chosen) for kernel, chosen in made.schedules.items()},
        "memory_plan": _memory_plan(made),
        "traffic": step_traffic(made.lowered.weights, EMBEDDING, HEAD),
        **_verify_cost(made, cost),
        "step": {**made.step, "seal": seal(made.step, made.built.library)},
    }


def _verify_cost(made: _Made, cost: VerifyTable | None) -> dict[str, Any]:
    """T(m) as measured, else as a device's figures let one expect, else nothing."""
    if cost is not None:
        return {"verify_ms": cost.planned, "verify_cost": cost.document()}
    if made.device is None or not made.options.measure:
        return {"verify_ms": {}, "verify_cost": {}}
    from speccc.expected_cost import expected_document, expected_ms

    profile = made.device.profile
    traffic = step_traffic(made.lowered.weights, EMBEDDING, HEAD)
    ms = expected_ms(profile, traffic, made.options.activations)
    times = {str(m): round(t, 6) for m, t in ms.items()}
    return {"verify_ms": times, "verify_cost": expected_document(profile, ms)}


def _memory_plan(made: _Made) -> dict[str, int]:
    """Bytes by use for the default context, and the longest context this machine has room for."""
    spec, weights, threads = parse_step(made.step), made.front.subject.nbytes, cores()
    plan = plan_memory(spec, weights, made.front.context, threads)
    table = {**asdict(plan), "total": plan.total}
    out = {"context_tokens": table.pop("context"), **table}
    room = available_memory()
    if room is not None:
        # What is in memory now is the compiler's copy of the weights, which it gives back.
        most = made.source.config.context_length
        longest = longest_context(spec, 0, threads, most, room)
        out["longest_context_tokens"] = longest
    return out


def _step(source: ModelSource, lowered: Lowered, signature: Signature) -> dict[str, Any]:
    return {
        "symbol": lowered.plan.name,
        "bufs": _parameters(lowered.plan),
        "arena": signature.arena,
        "scratch": dict(signature.scratch),
        "sizes": list(signature.sizes),
        "logits": lowered.logits.name,
        "picks": lowered.picks.name,
        "vocab": lowered.vocab,
        "max_rows": MAX_ROWS,
        "ropes": [{"name": t.name, "frequencies": frequencies(t, source)} for t in lowered.tables],
        "top": lowered.top,
    }


def _formats(source: ModelSource) -> dict[str, int]:
    counts: dict[str, int] = {}
    for w in source.weights.values():
        counts[w.format.name] = counts.get(w.format.name, 0) + 1
    return counts


def _dump(folder: Path, built: Built | DeviceStep, lowered: Lowered) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "50-plan.tile.txt", print_plan(lowered.plan))
    for name, text in built.texts.items():
        write_whole(folder / f"90-{name}", text)
