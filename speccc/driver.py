"""The compile driver: a model file -> graph -> plan -> kernels -> one artifact file."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from speccc.errors import InputError, UnsupportedError
from speccc.ir.build_llama import build_llama, weight_types
from speccc.ir.expr import Expr, Var
from speccc.ir.frontends import ModelSource, open_model
from speccc.ir.graph import Graph
from speccc.ir.plan import Plan, Role
from speccc.ir.tile_text import print_plan
from speccc.pack import pack_weights
from speccc.passes.graph_pipeline import optimize
from speccc.passes.lower_context import MAX_ROWS, RopeTable
from speccc.passes.lower_graph import Lowered, LowerGraph
from speccc.passes.pipeline import DumpStages, Stage
from speccc.passes.plan_memory import Arena, PlanMemory
from speccc.runtime.artifact_file import write_entries
from speccc.runtime.tokenizer import Tokenizer
from speccc.targets.cpu.isa import Isa, by_name, runs_here
from speccc.targets.cpu.target import Built, CpuTarget

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
) -> None:
    """Compiles a model file or folder into an artifact; nothing is left behind on a failure."""
    tell = progress or (lambda what, done, total: None)
    if options.target != "cpu":
        raise UnsupportedError(f"--target {options.target}: this version compiles for cpu")
    if options.drafter not in ("ngram", "none"):
        raise UnsupportedError(f"drafter {options.drafter!r}: choose ngram or none")
    isa = by_name(options.isa)
    times = _Times()
    tell("read", 0, 1)
    source = open_model(path)
    Tokenizer(source.tokenizer, str(path))
    context = _context(source, options.context)
    times.lap("read")
    graph = final_graph(source, options, times)
    lowered = LowerGraph(options.kv).run(graph)
    bounds = _bounds(lowered)
    arena = PlanMemory(bounds).run(lowered.plan)
    times.lap("lower")
    tell("build", 0, 1)
    built = CpuTarget(isa).compile(lowered.plan, arena, bounds)
    if options.dump is not None:
        _dump(options.dump, built, lowered)
    times.lap("build")
    blob, vectors = pack_weights(
        lowered.weights, source.weights, lambda done, total: tell("pack", done, total)
    )
    times.lap("pack")
    manifest = _manifest(source, options, isa, lowered, arena, built, times, context)
    data: dict[str, Any] = {
        "step.so": built.library,
        "step.tir.txt": built.source.encode(),
        "tokenizer.json": source.tokenizer.to_bytes(),
        "weights": blob,
        "vectors": vectors.view(np.uint8),
    }
    if source.chat_template is not None:
        data["chat_template.jinja"] = source.chat_template.encode()
    tell("write", 0, 1)
    write_entries(output, manifest, data)
    tell("write", 1, 1)


def final_graph(source: ModelSource, options: CompileOptions, times: _Times) -> Graph:
    """The model's graph after all graph passes, dumped stage by stage if asked."""
    naive = build_llama(source.config, weight_types(source.weights))
    times.lap("build graph")
    dump = DumpStages(options.dump) if options.dump is not None else None

    def observe(stage: Stage) -> None:
        times.stage(stage)
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
        if b.role is not Role.ACTIVATION
    ]


def _manifest(
    source: ModelSource,
    options: CompileOptions,
    isa: Isa,
    lowered: Lowered,
    arena: Arena,
    built: Built,
    times: _Times,
    context: int,
) -> dict[str, Any]:
    config = asdict(source.config)
    kv = lowered.kv
    element = kv.dtype.nbytes + (4 / kv.group if lowered.kv.dtype.name == "i8" else 0)
    return {
        "model": {"name": source.config.name, "fingerprint": source.fingerprint(), **config},
        "formats": _formats(source),
        "target": options.target,
        "isa": isa.name,
        "machine": platform.machine(),
        "drafter": options.drafter,
        "context": context,
        "kv": {"type": options.kv, "bytes_per_token": 2 * kv.layers * kv.heads * kv.size * element},
        "notes": list(source.notes),
        "report": times.report,
        "pass_times": times.seconds,
        "memory_plan": {
            "weights": lowered.weights.matrix_bytes + 4 * lowered.weights.vector_elements,
            "activations": 4 * arena.elements,
        },
        "step": {
            "symbol": lowered.plan.name,
            "bufs": _parameters(lowered.plan),
            "arena": built.signature.arena,
            "scratch": dict(built.signature.scratch),
            "sizes": list(built.signature.sizes),
            "logits": lowered.logits.name,
            "vocab": lowered.vocab,
            "max_rows": MAX_ROWS,
            "ropes": [
                {"name": t.name, "frequencies": frequencies(t, source)} for t in lowered.tables
            ],
        },
    }


def _formats(source: ModelSource) -> dict[str, int]:
    counts: dict[str, int] = {}
    for w in source.weights.values():
        counts[w.format.name] = counts.get(w.format.name, 0) + 1
    return counts


def _dump(folder: Path, built: Built, lowered: Lowered) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "50-plan.tile.txt").write_text(print_plan(lowered.plan))
    (folder / "90-step.tir.txt").write_text(built.source)


__all__ = ["CompileOptions", "compile_to", "runs_here"]
