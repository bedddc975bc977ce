"""Plan -> offsets of its activations in one arena, exactly, by liveness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speccc.ir.expr import Var
from speccc.ir.plan import Loop, Plan, Role, Step, accesses, size_of
from speccc.ir.tile import Buf, Kernel

ALIGN = 16
"""Elements; 64 bytes of f32."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each activation lives: offsets and total size in f32 elements."""

    offsets: Mapping[Buf, int]
    elements: int


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Packs activations so that two that live at the same time never overlap.

    A buffer lives from its first phase to its last; one used on both sides of a loop's edge lives
    through the whole loop.
    """

    bounds: Mapping[Var, int]

    def run(self, plan: Plan) -> Arena:
        """Largest buffers first, each at the lowest offset free of the ones it conflicts with."""
        spans = live_spans(plan)
        sizes = {b: self._elements(b) for b in plan.by_role(Role.ACTIVATION) if b in spans}
        conflicts = interference(spans)
        offsets: dict[Buf, int] = {}
        for buf in sorted(sizes, key=lambda b: (-sizes[b], b.name)):
            taken = sorted(
                (offsets[o], offsets[o] + sizes[o]) for o in conflicts[buf] if o in offsets
            )
            offsets[buf] = _lowest_gap(taken, sizes[buf])
        total = max((offsets[b] + sizes[b] for b in offsets), default=0)
        return Arena(offsets, total)

    def _elements(self, buf: Buf) -> int:
        count = 1
        for d in buf.shape:
            count *= size_of(d, self.bounds)
        return -(-count // ALIGN) * ALIGN


def _lowest_gap(taken: list[tuple[int, int]], size: int) -> int:
    at = 0
    for lo, hi in taken:
        if lo - at >= size:
            break
        at = max(at, hi)
    return at


def interference(spans: Mapping[Buf, tuple[int, int]]) -> dict[Buf, tuple[Buf, ...]]:
    """Of each buffer the others that live when it does."""
    return {
        a: tuple(b for b, (lo2, hi2) in spans.items() if b is not a and lo <= hi2 and lo2 <= hi)
        for a, (lo, hi) in spans.items()
    }


def live_spans(plan: Plan) -> dict[Buf, tuple[int, int]]:
    """First and last phase number of each activation, loops unrolled once."""
    order: list[Kernel] = []
    loops: list[tuple[int, int]] = []
    _flatten(plan.body, order, loops)
    wanted = set(plan.by_role(Role.ACTIVATION))
    spans: dict[Buf, tuple[int, int]] = {}
    uses = [accesses(kernel) for kernel in order]
    for n, (reads, writes) in enumerate(uses):
        for buf in (reads | writes) & wanted:
            lo, _ = spans.get(buf, (n, n))
            spans[buf] = (lo, n)
    for first, last in loops:
        for buf, (lo, hi) in spans.items():
            crosses = lo < first <= hi or lo <= last < hi
            if crosses or _read_first(buf, uses[first : last + 1]):
                spans[buf] = (min(lo, first), max(hi, last))
    return spans


def _read_first(buf: Buf, body: list[tuple[frozenset[Buf], frozenset[Buf]]]) -> bool:
    """Whether a pass of a loop, by what its phases read and write, reads what the previous pass
    left in `buf`."""
    for reads, writes in body:
        if buf in reads:
            return True
        if buf in writes:
            return False
    return False


def _flatten(body: tuple[Step, ...], order: list[Kernel], loops: list[tuple[int, int]]) -> None:
    for step in body:
        if isinstance(step, Loop):
            first = len(order)
            _flatten(step.body, order, loops)
            loops.append((first, len(order) - 1))
        else:
            order.append(step)
