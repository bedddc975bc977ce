"""Fragment-level statements without barriers -> the same with one wherever two accesses may meet.

A data-flow over the statement tree: the state is what was done to buffers since the last barrier;
a statement that conflicts with it gets a barrier in front. Loops run to a fixed point, so the last
statements of one iteration are ordered before the first of the next. What comes before a loop is
ordered in front of it where that saves barriers inside, which would be met in every iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speccc.ir.fragment import Access, Barrier, accesses, bounds, loads, walk
from speccc.ir.tile import For, RowTiles, Share, Stmt

State = frozenset[Access]
NOTHING: State = frozenset()


def insert_barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements of a kernel, with barriers."""
    return _Flow().block(body, NOTHING)[0]


def conflict(a: Access, b: Access) -> bool:
    """Whether different invocations may meet at one element, one of them writing."""
    if a.buf is not b.buf or not (a.write or b.write):
        return False
    return a.lanes is None or a.lanes != b.lanes


@dataclass(frozen=True, slots=True)
class _Flow:
    """The data-flow of one kernel, and what it has found out.

    Fixed points of nested loops come to the same statements again and again: without a memory the
    time would grow with a power of the depth. The kernel keeps its statements alive, so an `id` is
    that of one statement.
    """

    own: dict[int, State] = field(default_factory=dict)
    loops: dict[tuple[int, State], tuple[Stmt, State]] = field(default_factory=dict)

    def block(self, body: tuple[Stmt, ...], state: State) -> tuple[tuple[Stmt, ...], State]:
        """Statements entered in `state`, with barriers, and the state behind them."""
        out: list[Stmt] = []
        for s in body:
            loop = isinstance(s, (For, Share, RowTiles))
            if id(s) not in self.own:
                self.own[id(s)] = _bounds(s) if loop else accesses(s)
            own = self.own[id(s)]
            if any(conflict(a, b) for a in state for b in own):
                out.append(Barrier())
                state = NOTHING
            if loop:
                inside, after = self.loop(s, state | own)
                alone, alone_after = self.loop(s, own)
                if state and _barriers(alone) < _barriers(inside):
                    out.append(Barrier())
                    inside, after = alone, alone_after
                s, state = inside, after
            else:
                state |= own
            out.append(s)
        return tuple(out), state

    def loop(self, s: Stmt, state: State) -> tuple[Stmt, State]:
        """A loop entered in `state`: right after itself too, and it may not run."""
        if (id(s), state) not in self.loops:
            self.loops[id(s), state] = self._fixed_point(s, state)
        return self.loops[id(s), state]

    def _fixed_point(self, s: Stmt, state: State) -> tuple[Stmt, State]:
        while True:
            after = state
            if isinstance(s, RowTiles):
                variants = []
                for width, block in s.variants:
                    body, end = self.block(block, state)
                    variants.append((width, body))
                    after |= end
                out: Stmt = RowTiles(s.var, s.extent, tuple(variants))
            elif isinstance(s, For):
                body, end = self.block(s.body, state)
                out, after = For(s.var, s.lo, s.hi, body), after | end
            elif isinstance(s, Share):
                body, end = self.block(s.body, state)
                out, after = Share(s.var, s.extent, body), after | end
            else:
                return s, state
            if after == state:
                return out, state
            state = after


def _barriers(s: Stmt) -> int:
    return sum(isinstance(t, Barrier) for t in walk((s,)))


def _bounds(s: Stmt) -> State:
    return frozenset(Access(r.buf, False, None) for e in bounds(s) for r in loads(e))
