"""`FoldRows` as text: one body for each power of two of rows, with as many sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn
from speccc.ir.fragment import Bound, FoldRows
from speccc.ir.types import INDEX

if TYPE_CHECKING:
    from speccc.targets.clike.render import Renderer


def fold_rows(r: Renderer, s: FoldRows) -> None:
    """The statement; which body runs depends on the number of rows, the same for everybody."""
    bodies = list(_heights(s.rows.extent, s.most))
    for n, (below, height) in enumerate(bodies):
        otherwise = "else " if n else ""
        last = n == len(bodies) - 1
        head = otherwise if last else f"{otherwise}if ({r.exprs.bound(s.rows.extent)} <= {height})"
        with r.names.scope(), r.out.block(head.strip()):
            _elements(r, s, partial(_Rows, r, s, below, height))


def _heights(rows: Bound, most: int) -> Iterator[tuple[int, int]]:
    """(rows that surely exist, rows that may) of each body, the shortest first."""
    below, height = 0, 1
    while True:
        height = min(height, most)
        if not isinstance(rows, int):
            yield below + 1, height
        elif rows <= height:
            yield rows, rows
        if height == most or (isinstance(rows, int) and rows <= height):
            return
        below, height = height, 2 * height


class _Rows:
    """The sums of one element, a register a row."""

    def __init__(self, r: Renderer, s: FoldRows, sure: int, most: int) -> None:
        self.r, self.s, self.sure = r, s, sure
        self.sums = [r.names.fresh(f"sum_{n}") for n in range(most)]

    def row(self, n: int) -> Expr:
        """A row that exists: the last one again for those that may not."""
        own = ex.lit(n)
        live = self.s.rows.extent
        return own if n < self.sure else ex.minimum(own, ex.sub(ex.lit(live), 1))

    def add_up(self, first: str, step: int) -> None:
        """The sums over terms first, first + step, .."""
        r, s = self.r, self.s
        kind, zero = r.exprs.type(s.dst.dtype), r.exprs.render(ex.lit(0, s.dst.dtype))
        start = ", ".join(f"{x} = {zero}" for x in self.sums)
        r.out.line(f"{r.dialect.exact}{kind} {start};")
        with self._terms(first, step):
            for var, held in s.held:
                once = r.exprs.render(held)
                r.out.line(f"{r.exprs.type(var.dtype)} {r.exprs.variable(var)} = {once};")
            for n, x in enumerate(self.sums):
                value = ex.substitute(s.value, {s.rows.var: self.row(n)})
                r.out.line(f"{x} = {r.exprs.added(x, value)};")

    @contextmanager
    def _terms(self, first: str, step: int) -> Iterator[None]:
        """The loop over them, by a number of turns where that is the same for all invocations: a
        compiler sees it then, and unrolls the loop, so that its loads wait for one another no more.
        """
        r, s = self.r, self.s
        v, hi = r.exprs.variable(s.var), r.exprs.bound(s.hi)
        terms = s.hi - s.lo if isinstance(s.hi, int) and isinstance(s.lo, int) else 1
        if step == 1 or terms % step:
            with r.counted(v, first, hi, str(step) if step > 1 else ""):
                yield
            return
        turn, index = r.names.fresh("turn"), r.dialect.types[INDEX.name]
        with r.counted(turn, "0", str(terms // step)):
            r.out.line(f"{index} {v} = {first} + {turn} * {step};")
            yield

    def join(self, apart: int) -> None:
        """The sums of all invocations of an element, to each of them."""
        shuffle = self.r.dialect.shuffle
        while apart < self.r.kernel.group.subgroup:
            for x in self.sums:
                self.r.out.line(f"{x} = {x} + {shuffle.format(x, apart)};")
            apart *= 2

    def store(self) -> None:
        """Those of rows that exist."""
        r, s = self.r, self.s
        for n, x in enumerate(self.sums):
            here = {s.rows.var: ex.lit(n)}
            index = tuple(ex.substitute(i, here) for i in s.index)
            where = [] if s.exists is None else [r.exprs.render(ex.substitute(s.exists, here))]
            if n >= self.sure:
                where.insert(0, f"{n} < {r.exprs.bound(s.rows.extent)}")
            line = f"{r.exprs.element(s.dst, index)} = {x};"
            r.out.line(f"if ({' && '.join(where)}) {line}" if where else line)


def _elements(r: Renderer, s: FoldRows, rows: Callable[[], _Rows]) -> None:
    if s.split == 1:
        r.lanes(s.axes, lambda: _alone(rows()))
        return
    index, group = r.dialect.types[INDEX.name], r.kernel.group
    apart = group.subgroup // s.split
    first, at, e = (r.names.fresh(n) for n in ("first", "at", "e"))
    lane, total = r.dialect.lane, r.elements(s.axes)
    within = r.exprs.call(Fn.MOD, lane, str(apart))
    # All invocations of a subgroup take every turn together, as adding up needs them all: those
    # past the end do the last element once more.
    step = str(group.invocations // s.split)
    with r.counted(first, "0", total, step, r.dialect.rolled):
        r.out.line(f"{index} {at} = {first} + {r.dialect.subgroup} * {apart} + {within};")
        r.out.line(f"{index} {e} = {r.exprs.call(Fn.MIN, at, f'{total} - 1')};")
        r.unravel(e, s.axes)
        own = rows()
        low = "" if s.lo == 0 else f"{r.exprs.bound(s.lo)} + "
        own.add_up(low + r.exprs.call(Fn.IDIV, lane, str(apart)), s.split)
        own.join(apart)
        with r.out.block(f"if ({at} < {total} && {lane} < {apart})"):
            own.store()


def _alone(rows: _Rows) -> None:
    rows.add_up(rows.r.exprs.bound(rows.s.lo), 1)
    rows.store()
