"""A plan -> one persistent Triton kernel: all phases and the loops over layers in one launch.

Workers stride over the units of a phase and meet at a barrier before the next. Arrivals are counted
from the first step on and never reset; each step takes up the count where the one before left it,
so that it may have another number of workers. A worker that has waited for too long says so, and
nobody waits any more: the step ends, and its results and all later ones are void until the words of
`grid_barrier` are zeroed. A phase without work is left out with its barrier: all workers see that
from the sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from speccc.ir.expr import Var
from speccc.ir.plan import Loop, Plan, Step, phases, size_of
from speccc.ir.tile import Buf, Kernel
from speccc.targets.launch_plan import units
from speccc.targets.triton.engine import HELPER as E4M3_AS_F16
from speccc.targets.triton.expr import POINTERS, Scope, helpers, render
from speccc.targets.triton.fp4 import HELPER as E2M1
from speccc.targets.triton.names import Names
from speccc.targets.triton.phase import Phase, render_phase
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton_build import TritonKernel

BARRIER = "grid_barrier"
"""An i64 buffer, zero at first: arrivals so far, whether a wait was given up, arrivals before this
step."""
WORDS = 3
LATE = 1
"""The word that is not zero once a worker has given up waiting."""
SPINS = 1 << 22
"""Most looks at the count in one barrier: seconds, where a phase takes microseconds."""

_HELPERS = {"e2m1": E2M1, "e4m3_as_f16": E4M3_AS_F16}
_MEET = f'''@triton.jit
def meet(grid_barrier, goal):
    """Waits until the arrivals of all workers are counted."""
    tl.debug_barrier()
    arrived = tl.atomic_add(grid_barrier, 1, sem="acq_rel") + 1
    spins = tl.where(tl.atomic_load(grid_barrier + {LATE}, sem="relaxed") == 0, 0, {SPINS})
    while (arrived < goal) & (spins < {SPINS}):
        arrived = tl.atomic_load(grid_barrier, sem="acquire")
        spins += 1
    if arrived < goal:
        tl.atomic_xchg(grid_barrier + {LATE}, 1, sem="relaxed")
    tl.debug_barrier()
'''


@dataclass(frozen=True)
class StepText:
    """A step's kernel: `bufs` and `scalars` are its arguments by name, in order.

    `own` is elements of the argument `scratch_<type>` for one worker; `barriers`: whether there
    are any.
    """

    kernel: TritonKernel
    bufs: tuple[Buf, ...]
    scalars: tuple[Var, ...]
    own: Mapping[str, int]
    barriers: bool
    args: Mapping[Buf | Var, str]


def render_step(
    plan: Plan, bufs: tuple[Buf, ...], shape: Shape, bounds: Mapping[Var, int], device: str
) -> StepText:
    """The text of a plan for `device`. UnsupportedError names what has no form."""
    names = Names()
    entry, _ = names.give(plan.name), names.give(BARRIER)
    args: dict[Buf | Var, str] = {b: names.give(b.name) for b in bufs}
    args |= {v: names.give(v.name) for v in plan.sizes}
    done: dict[Kernel, Phase] = {}
    for kernel in phases(plan.body):
        done[kernel] = render_phase(kernel, names.give(kernel.name), shape, bounds)
    own: dict[str, int] = {}
    for phase in done.values():
        own |= {t: max(n, own.get(t, 0)) for t, n in phase.own.items()}
    barriers = _count(plan.body) > 1
    signature = {args[b]: POINTERS[b.dtype.name] for b in bufs}
    signature |= {BARRIER: "*i64"} if barriers else {}
    signature |= {f"scratch_{t}": POINTERS[t] for t in own}
    signature |= {args[v]: "i64" for v in plan.sizes}
    lines = [*_start(own), *_body(plan.body, done, args, names, barriers)]
    texts = [p.text for p in done.values()]
    needed = [h for name, h in _HELPERS.items() if any(f"{name}(" in t for t in texts)]
    parts = [helpers(), *needed, *([_MEET] if barriers else []), *texts]
    body = "\n".join(lines)
    parts.append(f"@triton.jit\ndef {entry}({', '.join(signature)}):\n{body}\n")
    text = "\n\n".join(parts)
    source = f"{_header(plan, shape, device, text)}\n\n\n{text}"
    aligned = frozenset(n for n, t in signature.items() if t.startswith("*"))
    made = TritonKernel(
        source,
        entry,
        signature,
        aligned=aligned,
        warps=shape.warps,
        stages=shape.stages,
        registers=shape.registers,
    )
    return StepText(made, bufs, plan.sizes, own, barriers, args)


def _header(plan: Plan, shape: Shape, device: str, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    title = f"# plan {plan.name} for {device}: {shape}; {digest}"
    return f"{title}\nimport triton\nimport triton.language as tl"


def _count(body: tuple[Step, ...]) -> int:
    """Phases of a step, loops repeated."""
    return sum(s.extent * _count(s.body) if isinstance(s, Loop) else 1 for s in body)


def _start(own: Mapping[str, int]) -> list[str]:
    lines = [
        "    worker = tl.program_id(0).to(tl.int64)",
        "    workers = tl.num_programs(0).to(tl.int64)",
    ]
    return lines + [f"    own_{t} = scratch_{t} + worker * {n}" for t, n in own.items()]


def _body(
    body: tuple[Step, ...],
    done: Mapping[Kernel, Phase],
    args: dict[Buf | Var, str],
    names: Names,
    barriers: bool,
) -> list[str]:
    if not barriers:
        return ["    " + line for line in _calls(body, done, args, names, False)]
    lines = [f'goal = tl.atomic_load({BARRIER} + 2, sem="relaxed")']
    lines += _calls(body[:-1], done, args, names, True)
    lines += _calls(body[-1:], done, args, names, isinstance(body[-1], Loop))
    # All workers have read the word: they have all been at a barrier.
    lines += ["if worker == 0:", f"    tl.store({BARRIER} + 2, goal)"]
    return ["    " + line for line in lines]


def _calls(
    body: tuple[Step, ...],
    done: Mapping[Kernel, Phase],
    args: dict[Buf | Var, str],
    names: Names,
    barriers: bool,
) -> list[str]:
    """A call for each phase, and a barrier after it."""
    lines = []
    for step in body:
        if isinstance(step, Loop):
            var = names.give(step.var.name)
            args[step.var] = f"tl.cast({var}, tl.int64)"
            lines.append(f"for {var} in range(0, {step.extent}):")
            lines += ["    " + line for line in _calls(step.body, done, args, names, barriers)]
            continue
        bufs = {b: n for b, n in args.items() if isinstance(b, Buf)}
        scalars = {v: n for v, n in args.items() if isinstance(v, Var)}
        call = [done[step].call(bufs, scalars)]
        call += ["goal += workers", f"meet({BARRIER}, goal)"] if barriers else []
        # The first is not left out: every step has a barrier.
        if lines and _may_idle(step):
            scope = Scope(scalars, {}, {}, {}, {}, lambda _: None)
            lines.append(f"if {render(units(step), scope)} > 0:")
            call = ["    " + line for line in call]
        lines += call
    return lines


def _may_idle(kernel: Kernel) -> bool:
    """Whether a step of the smallest sizes has no work for it; others are not asked each time."""
    return size_of(units(kernel), dict.fromkeys(kernel.scalars, 1)) == 0
