"""A plan: the phases of one step in order, with loops over layers; and its NumPy machine.

All workers finish a phase before any starts the next. Kernels name the plan's buffers directly;
what differs from layer to layer is reached through the loop variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from speccc.errors import VerifyError
from speccc.ir.expr import Const, Expr, Load, LoadBytes, Var, children
from speccc.ir.interp_expr import evaluate
from speccc.ir.tile import Buf, Dot, For, Kernel, Map, Mem, Reduce, RowTiles, ScaledDot, Share, walk

Array = npt.NDArray[Any]


class Role(Enum):
    """Who owns a buffer of a plan."""

    INPUT = "input"  # written by the host before the step
    WEIGHTS = "weights"  # constant
    STATE = "state"  # lives across steps (KV cache)
    ACTIVATION = "activation"  # lives inside a step; shares the arena
    OUTPUT = "output"  # read by the host after the step
    WORKSPACE = "workspace"  # lives inside a step, sized by the session's context


@dataclass(frozen=True, slots=True)
class PlanBuf:
    """A buffer and its role.

    A `window` is no buffer of its own but a part of that called `weights`, from this byte on; the
    byte may depend on the variables of loops.
    """

    buf: Buf
    role: Role
    window: Expr | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs its phases for var = 0..extent-1."""

    var: Var
    extent: int
    body: tuple[Step, ...]


Step = Union[Kernel, Loop]  # noqa: UP007 (forward reference)


@dataclass(frozen=True, slots=True)
class Plan:
    """Phases over buffers; `sizes` are the scalars the host passes, each with its bounds."""

    name: str
    sizes: tuple[Var, ...]
    bufs: tuple[PlanBuf, ...]
    body: tuple[Step, ...]

    def by_role(self, role: Role) -> tuple[Buf, ...]:
        """The buffers of one role, in order."""
        return tuple(b.buf for b in self.bufs if b.role is role)


def phases(body: tuple[Step, ...]) -> Iterator[Kernel]:
    """Every kernel once, loops not repeated."""
    for step in body:
        if isinstance(step, Loop):
            yield from phases(step.body)
        else:
            yield step


def accesses(kernel: Kernel) -> tuple[frozenset[Buf], frozenset[Buf]]:
    """The GLOBAL buffers a kernel reads and writes."""
    reads: set[Buf] = set()
    writes: set[Buf] = set()
    for s in walk(kernel.body):
        if isinstance(s, (Map, Reduce)):
            writes.add(s.dst)
            for e in (s.value, *s.index):
                _add_loads(e, reads)
        elif isinstance(s, Dot):
            for part in (s.a, s.b, s.lo, s.hi):
                _add_loads(part, reads)
        elif isinstance(s, ScaledDot):
            x = s.x
            reads |= {x.codes, x.scale, x.sums, x.scaled_sums, s.blob}
            reads |= {x.halves} if x.halves else set()
        elif isinstance(s, (For, Share, RowTiles)):
            bounds = (s.lo, s.hi) if isinstance(s, For) else (s.extent,)
            for bound in bounds:
                _add_loads(bound, reads)
    shared = frozenset(kernel.bufs)
    return frozenset(reads) & shared, frozenset(writes) & shared


def _add_loads(e: Expr | int, to: set[Buf]) -> None:
    """Adds the buffers that an expression reads."""
    if isinstance(e, int):
        return
    if isinstance(e, (Load, LoadBytes)):
        to.add(e.buf)
    for c in children(e):
        _add_loads(c, to)


_WRITTEN = (Role.ACTIVATION, Role.OUTPUT, Role.WORKSPACE)


def check_order(plan: Plan) -> None:
    """Every activation and output is written by an earlier phase before it is read.

    A loop body is checked in its first pass: later passes read at least what that one wrote.
    VerifyError names the phase and the buffer.
    """
    known = {b.buf for b in plan.bufs}
    ready = {b.buf for b in plan.bufs if b.role not in _WRITTEN}
    for kernel in phases(plan.body):
        reads, writes = accesses(kernel)
        unknown = [b.name for b in kernel.bufs if b not in known or b.mem is not Mem.GLOBAL]
        if unknown:
            raise VerifyError(f"phase {kernel.name}: {unknown[0]} is not a buffer of the plan")
        early = [b.name for b in reads - ready - writes]
        if early:
            raise VerifyError(f"phase {kernel.name} reads {early[0]} before a phase wrote it")
        ready |= writes


def size_of(e: Expr | int, sizes: Mapping[Var, int]) -> int:
    """A dimension as a number."""
    if isinstance(e, (int, Const)):
        return int(e if isinstance(e, int) else e.value)
    env = {v: np.asarray(n, np.int64) for v, n in sizes.items()}

    def no_read(load: Load | LoadBytes, index: tuple[Array, ...]) -> Array:
        raise VerifyError("a size may not read a buffer")

    return int(evaluate(e, env, no_read))


def run_plan(
    plan: Plan, bufs: Mapping[Buf, Array], sizes: Mapping[Var, int], *, workers: int = 1
) -> None:
    """Runs the plan on NumPy arrays in place: the golden model of a step."""
    check_order(plan)
    _run(plan.body, bufs, dict(sizes), workers)


def _run(
    body: tuple[Step, ...], bufs: Mapping[Buf, Array], env: dict[Var, int], workers: int
) -> None:
    from speccc.ir.interp_tile import run_kernel  # who compiles a plan does not run it

    for step in body:
        if isinstance(step, Loop):
            for n in range(step.extent):
                _run(step.body, bufs, {**env, step.var: n}, workers)
        else:
            scalars = {v: env[v] for v in step.scalars}
            run_kernel(step, {b: bufs[b] for b in step.bufs}, scalars, workers=workers)
