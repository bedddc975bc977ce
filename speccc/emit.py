"""A model file -> one folder of a target's sources, built kernels, launch plan and report.

The folder appears whole or not at all: everything is written beside it and renamed at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from speccc.emit_folder import REPORT, UNFINISHED, emit_destination, publish, writing
from speccc.errors import SpecccError, UnsupportedError
from speccc.ir.build_llama import build_llama, weight_types
from speccc.ir.expr import Var
from speccc.ir.frontends import ModelSource, open_model
from speccc.ir.frontends.source import EMBEDDING, HEAD
from speccc.ir.plan import Plan
from speccc.memory_plan import step_traffic
from speccc.passes.graph_pipeline import optimize
from speccc.passes.lower_context import KV_TYPES, MAX_ROWS
from speccc.passes.lower_graph import Lowered, LowerGraph
from speccc.passes.lower_top import MOST_TOP
from speccc.passes.plan_memory import Arena, PlanMemory
from speccc.reach import lower_for
from speccc.requantize import requantized
from speccc.runtime.devices.built_kernels import FOLDER as KERNELS
from speccc.runtime.devices.launch_plan import FILE as LAUNCH_PLAN
from speccc.scratch import Scratch
from speccc.targets.base import RenderedPlan, Source, Target, ToolMissingError
from speccc.targets.devices.profile import Profile
from speccc.targets.launch_plan import document, launches_per_step, launches_with_work
from speccc.targets.report import kernel_facts
from speccc.targets.traffic import requested_bytes

Progress = Callable[[str, int, int], None]
Document = Mapping[str, object]

SCHEMA = 1
WIDTHS = (1, 4, 8, 16)
"""Rows for which traffic is reported."""
CONTEXT = 1024
"""Tokens in the cache for which traffic is reported."""


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """What may be chosen. `strict`: a missing tool is an error, not a gap in the folder."""

    kv: str = "f16"
    strict: bool = False
    weights: str | None = None
    activations: str = "int8"
    attention: str = "f32"


@dataclass(frozen=True, slots=True)
class Front:
    """A model as a plan with its activations placed."""

    source: ModelSource
    lowered: Lowered
    arena: Arena
    bounds: Mapping[Var, int]

    @property
    def plan(self) -> Plan:
        """Its tile programs."""
        return self.lowered.plan


def emit_to(
    path: Path, target: Target, folder: Path, options: EmitOptions, progress: Progress | None = None
) -> Document:
    """Writes the folder and returns its report; `progress` is told (stage, done, of how many).

    InputError for a bad model or a folder that may not be replaced; UnsupportedError when the
    target cannot serve the model; BuildError when a tool refuses a kernel.
    """
    tell = progress or (lambda what, done, total: None)
    destination = emit_destination(folder)
    front = read_model(path, options, tell, target.name)
    why = target.unsupported(front.plan)
    if why:
        raise UnsupportedError(why, where=target.name)
    rendered = target.render(front.plan, front.arena, front.bounds)
    _check_names(rendered)
    with writing(folder):
        scratch = Scratch(UNFINISHED, destination.parent)
    with scratch as work:
        made = work / "new"
        kernels, missing = _kernels(made, folder, target, rendered, options, tell)
        report = _report(front, target, rendered, options, kernels, missing)
        with writing(folder):
            _write_json(made / LAUNCH_PLAN, document(rendered))
            _write_json(made / REPORT, report)
            publish(made, destination, work)
    return report


def read_model(path: Path, options: EmitOptions, tell: Progress, target: str = "") -> Front:
    """The model's plan, for a target. InputError for a bad model."""
    if options.kv not in KV_TYPES:
        raise UnsupportedError(f"choose one of {', '.join(KV_TYPES)}", where=f"--kv {options.kv}")
    tell("read", 0, 1)
    source = open_model(path)
    if options.weights is not None:
        source = requantized(source, options.weights)
    graph = optimize(build_llama(source.config, weight_types(source.weights)))
    lowering = LowerGraph(
        options.kv, MOST_TOP, activations=options.activations, attention=options.attention
    )
    lowered = lower_for(target, lowering, graph)
    bounds = {lowered.sizes["m"]: MAX_ROWS}
    arena = PlanMemory(bounds).run(lowered.plan)
    tell("read", 1, 1)
    return Front(source, lowered, arena, bounds)


def _check_names(rendered: RenderedPlan) -> None:
    names = [s.name for s in rendered.sources]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise SpecccError(f"two sources are called {sorted(twice)[0]}", where=rendered.target)


def _kernels(
    made: Path,
    folder: Path,
    target: Target,
    rendered: RenderedPlan,
    options: EmitOptions,
    tell: Progress,
) -> tuple[list[Document], dict[str, str]]:
    """Writes all kernels into `made`; their entries in the report, and what tools are missing."""
    with writing(folder):
        (made / KERNELS).mkdir(parents=True)
    missing: dict[str, str] = {}
    kernels = []
    for n, source in enumerate(rendered.sources):
        tell("build", n, len(rendered.sources))
        built = _build(source, target, options, missing)
        files = {source.ext: source.text.encode(), **built}
        with writing(folder):
            for ext, data in files.items():
                (made / KERNELS / f"{source.name}.{ext}").write_bytes(data)
        kernels.append(_kernel(source, files))
    tell("build", len(rendered.sources), len(rendered.sources))
    return kernels, missing


def _build(
    source: Source, target: Target, options: EmitOptions, missing: dict[str, str]
) -> dict[str, bytes]:
    """Every stage of one source; stages without a tool go to `missing`, each named once."""
    built: dict[str, bytes] = {}
    for ext, step in target.stages().items():
        if ext in missing:
            continue
        try:
            built[ext] = step(source)
        except ToolMissingError as error:
            if options.strict:
                raise
            missing[ext] = str(error)
    return built


def _kernel(source: Source, files: Mapping[str, bytes]) -> Document:
    facts = kernel_facts(files)
    return {
        "name": source.name,
        "entry": source.entry,
        "files": {ext: len(data) for ext, data in files.items()},
        "sha256": {ext: hashlib.sha256(data).hexdigest() for ext, data in files.items()},
        **asdict(facts),
    }


def _report(
    front: Front,
    target: Target,
    rendered: RenderedPlan,
    options: EmitOptions,
    kernels: list[Document],
    missing: Mapping[str, str],
) -> Document:
    return {
        "schema": SCHEMA,
        "target": target.name,
        "model": {"name": front.source.config.name, "fingerprint": front.source.fingerprint()},
        "kv": options.kv,
        "weights": options.weights,
        "activations": options.activations,
        "attention": options.attention,
        "compiler": target.fingerprint(),
        "launches_per_step": launches_per_step(rendered),
        "launches_of_first_step": launches_with_work(rendered, _sizes(front, 1, 0)),
        "instructions": _sum_instructions(kernels),
        "spills": _total(kernels, "spills"),
        "stack_bytes": _total(kernels, "stack_bytes"),
        "kernels": kernels,
        "traffic": [_traffic(front, rendered, m) for m in WIDTHS],
        "missing": dict(missing),
        "profile": profile_document(target.profile),
    }


def _sum_instructions(kernels: list[Document]) -> dict[str, int]:
    total: dict[str, int] = {}
    for kernel in kernels:
        counts = kernel["instructions"]
        for name, count in counts.items() if isinstance(counts, dict) else ():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def _total(kernels: list[Document], name: str) -> int | None:
    known = [n for k in kernels if isinstance(n := k[name], int)]
    return sum(known) if known else None


def _traffic(front: Front, rendered: RenderedPlan, m: int) -> Document:
    """Bytes a step of m rows on CONTEXT cached tokens cannot do without, and what it asks for."""
    lowered, kv = front.lowered, front.lowered.kv
    element = kv.dtype.nbytes + (4 / kv.group if kv.dtype.name == "i8" else 0)
    token = int(2 * kv.layers * kv.heads * kv.size * element)
    weights = step_traffic(lowered.weights, EMBEDDING, HEAD)["weight_bytes"]
    asked = requested_bytes(front.plan, _sizes(front, m), rendered.height)
    return {
        "rows": m,
        "context": CONTEXT,
        "needed": {"weights": weights, "state": token * (CONTEXT + m)},
        "asked": asked,
    }


def _sizes(front: Front, m: int, length: int = CONTEXT) -> dict[Var, int]:
    from speccc.runtime.session import LANES, sizes_of

    layout = front.lowered.weights
    known = {
        **sizes_of(-(-(length + m) // LANES)),
        "m": m,
        "length": length,
        "weight_bytes": layout.matrix_bytes,
        "vector_elements": layout.vector_elements,
        # A greedy step: picks of all rows, no logits.
        "head_first": 0,
        "head_rows": m,
        "head_logits": 0,
        "head_top": 0,
    }
    return {v: known[v.name] for v in front.plan.sizes}


def profile_document(profile: Profile) -> Document:
    """A profile with the source of each figure, as JSON."""
    arch, device = profile.arch, profile.device
    return {
        "name": profile.name,
        "architecture": str(arch),
        "product": device.title if device else None,
        "subgroup": _fact(arch.subgroup),
        "shared_bytes": _fact(arch.shared_bytes),
        "registers": _fact(arch.registers),
        "matrix": arch.matrix
        and {**asdict(arch.matrix), "value": [str(m) for m in arch.matrix.value]},
        "dot4": _fact(arch.dot4),
        "bandwidth_gb_s": _fact(device.bandwidth) if device else None,
        "memory_bytes": _fact(device.memory) if device else None,
        "units": _fact(device.units) if device else None,
        "cache_bytes": _fact(device.cache) if device else None,
        "rates_tops": {n: _fact(f) for n, f in device.rates.items()} if device else {},
    }


def _fact(fact: object) -> object:
    return None if fact is None else asdict(fact)  # type: ignore[call-overload]


def _write_json(path: Path, value: Document) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
