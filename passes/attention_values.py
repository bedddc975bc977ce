"""Attention's values: sums over slots of power * value, whole or in parts.

A sum in f32 runs over positions in order. Where a matrix engine makes some of it, or several
workers share it, what is added together first must not depend on the step: but in a tree's step
rows lie in the cache in another order than in the text. So only slots are grouped that are settled
to a row, so far back that they are committed in every step which has it; those behind them come
one after the other, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.tile import LANES, Alloc, Axis, Buf, Dot, Map, Mem, RowTiles, Share, Stmt
from speccc.ir.types import F32
from speccc.passes.attention_node import AttentionNode, cached, zeroed
from speccc.passes.lower_context import MAX_ROWS, load_index
from speccc.passes.round_rows import rounded
from speccc.passes.tile_matmul import WIDTHS

GROUP = 64
"""Slots that are settled together: whole steps of every engine, as each begins its sums anew."""
LATEST = MAX_ROWS
"""Positions, a row's own the last, that may be tokens of its step."""
PART = 512
"""Settled slots of one worker's share of a sum, where it is shared."""
COLUMNS = 128
"""Columns of a head that lie together in the memory of parts."""


def whole_values(p: AttentionNode) -> tuple[Stmt, ...]:
    """out[row, head, :] = inverse * sum over slots of power * value, each sum by one worker."""

    def sums(dot: Dot, at: Expr, _: Expr) -> list[Dot]:
        return [dot] if p.engine is None else [_early(p, dot, at), _late(p, dot, at)]

    def stored(value: Expr, at: _Place) -> _Store:
        whole = ex.mul(value, Load(p.inverse, (at.head, at.row)))
        return p.out, (at.row, _column(p, at.head, at.panel, at.lane)), whole

    return (_by_panel(p, None, sums, stored),)


def split_values(p: AttentionNode) -> dict[str, tuple[Stmt, ...]]:
    """The same by two kernels: sums of parts of `PART` settled slots, then those together.

    A sum over slots takes as long as there are slots, so many workers share it. Who sums the late
    ones begins with the first part. That is all while there is no other: the merge has no work
    then, and is not launched. Further parts lie in [columns / 128, head, row, 128 a part], as long
    as the cache: those of n slots fill a quarter of it at most.
    """
    chunks = -(-p.size // COLUMNS)
    parts = p.ctx.workspace(f"parts_{p.heads}", (chunks, p.heads, p.ctx.m, p.ctx.slots))
    return {"values": (_first_sums(p), _further_sums(p, parts)), "merge": _merged(p, parts)}


@dataclass(frozen=True, slots=True)
class _Place:
    """A lane of a panel of a head's columns, in a token's row, of a part."""

    head: Expr
    row: Expr
    panel: Expr
    lane: Expr
    part: Expr


_Sums = Callable[[Dot, Expr, Expr], list[Dot]]
"""(the sum over all slots, its folded row, the part) -> what is added up."""
_Store = tuple[Buf, tuple[Expr, ...], Expr]
"""A buffer, where in it, and the value."""


def _by_panel(
    p: AttentionNode, parts: Expr | None, sums: _Sums, stored: Callable[[Expr, _Place], _Store]
) -> Share:
    """Sums by units: a panel of columns of a KV head's group, for each part if there are some."""
    unit, row = Var("unit"), Var("row")
    panels = p.size // LANES
    above, panel = ex.idiv(unit, panels), ex.mod(unit, panels)
    group, part = above, ex.lit(0)
    if parts is not None:
        group, part = ex.mod(above, p.groups), ex.idiv(above, p.groups)

    def body(width: int) -> tuple[Stmt, ...]:
        acc, out = zeroed(width)
        i, x, y = Var("i"), Var("i"), Var("j")
        at, to = ex.add(row, i), ex.add(row, x)
        out += sums(_weighted(p, acc, i, at, (group, panel)), at, part)
        place = _Place(p.head(group, to), p.row(to), panel, y, part)
        dst, index, value = stored(Load(acc, (x, y)), place)
        return (*out, Map(dst, index, (Axis(x, width), Axis(y, LANES)), value))

    rows = RowTiles(row, p.folded, tuple((w, body(w)) for w in WIDTHS))
    units = p.groups * panels if parts is None else ex.mul(parts, p.groups * panels)
    return Share(unit, units, (rows,))


def _weighted(p: AttentionNode, acc: Buf, i: Var, at: Expr, where: tuple[Expr, Expr]) -> Dot:
    """acc += power * value over all slots, in order; `at` is folded row i, `where` its head's
    group and panel of columns."""
    ctx, (group, panel), j, k = p.ctx, where, Var("j"), Var("k")
    a = Load(p.scores, (p.head(group, at), p.row(at), k))
    b = cached(p, (p.layer, group, panel, k, j), (group, ex.mul(panel, LANES), k), keys=False)
    return Dot(acc, i, j, k, 0, ex.add(ctx.length, ctx.m), a, b)


def _column(p: AttentionNode, head: Expr, panel: Expr, lane: Expr) -> Expr:
    return ex.add(ex.mul(head, p.size), ex.add(ex.mul(panel, LANES), lane))


def _groups_before(position: Expr) -> Expr:
    """How many groups are settled to a row at a position: they end before its `LATEST` ones."""
    return ex.idiv(ex.maximum(ex.sub(position, LATEST - 1), 0), GROUP)


def _most_groups(p: AttentionNode) -> Expr:
    """Groups that are settled to some row of the step: the deepest is at length + m - 1 at most."""
    return _groups_before(ex.sub(ex.add(p.ctx.length, p.ctx.m), 1))


def _is_early(p: AttentionNode, k: Expr, at: Expr) -> Expr:
    """Whether slot k is settled to folded row `at`. What is another sum's is zero in this one, and
    zeros change nothing."""
    position = ex.add(p.ctx.length, load_index(p.ctx.depth, p.row(at)))
    return ex.lt(k, ex.mul(_groups_before(position), GROUP))


def _early(p: AttentionNode, dot: Dot, at: Expr) -> Dot:
    """The settled part of a sum."""
    a = ex.select(_is_early(p, dot.k, at), dot.a, 0.0)
    a = a if p.engine is None else rounded(p.engine, a)
    return replace(dot, hi=ex.mul(_most_groups(p), GROUP), a=a, engine=p.engine)


def _late(p: AttentionNode, dot: Dot, at: Expr) -> Dot:
    """The rest, in order: from the first slot that is not settled to all rows."""
    a = ex.select(_is_early(p, dot.k, at), 0.0, dot.a)
    return replace(dot, lo=ex.mul(_groups_before(p.ctx.length), GROUP), a=a)


def _part(p: AttentionNode, dot: Dot, at: Expr, part: Expr) -> Dot:
    """The settled slots of one part of a sum."""
    each = PART // GROUP
    early, slot = _early(p, dot, at), {dot.k: ex.add(ex.mul(part, PART), dot.k)}
    a, b = (ex.substitute(e, slot) for e in (early.a, early.b))
    groups = ex.minimum(ex.sub(_most_groups(p), ex.mul(part, each)), each)
    return replace(early, hi=ex.mul(groups, GROUP), a=a, b=b)


def _further_parts(p: AttentionNode) -> Expr:
    """How many parts there are beside the first."""
    return ex.idiv(ex.maximum(ex.sub(_most_groups(p), 1), 0), PART // GROUP)


def _first_sums(p: AttentionNode) -> Share:
    """out = the first part and the late slots; times inverse where that is all."""
    more = ex.lt(0, _further_parts(p))

    def sums(dot: Dot, at: Expr, _: Expr) -> list[Dot]:
        return [_part(p, dot, at, ex.lit(0)), _late(p, dot, at)]

    def stored(value: Expr, at: _Place) -> _Store:
        factor = ex.select(more, 1.0, Load(p.inverse, (at.head, at.row)))
        return p.out, (at.row, _column(p, at.head, at.panel, at.lane)), ex.mul(value, factor)

    return _by_panel(p, None, sums, stored)


def _in_parts(at: _Place) -> tuple[Expr, ...]:
    """Where a part's sum of a lane of a head's panel lies."""
    together = COLUMNS // LANES
    first = ex.add(ex.mul(at.part, COLUMNS), ex.mul(ex.mod(at.panel, together), LANES))
    return (ex.idiv(at.panel, together), at.head, at.row, ex.add(first, at.lane))


def _further_sums(p: AttentionNode, parts: Buf) -> Share:
    def sums(dot: Dot, at: Expr, part: Expr) -> list[Dot]:
        return [_part(p, dot, at, ex.add(part, 1))]

    return _by_panel(p, _further_parts(p), sums, lambda value, at: (parts, _in_parts(at), value))


def _merged(p: AttentionNode, parts: Buf) -> tuple[Stmt, ...]:
    """out = inverse * (out + the further parts, one after the other), where there are any."""
    unit, panels = Var("unit"), p.size // LANES
    row, above = ex.mod(unit, p.ctx.m), ex.idiv(unit, p.ctx.m)
    panel, head = ex.mod(above, panels), ex.idiv(above, panels)
    acc = Buf("acc", (1, LANES), F32, Mem.TILE)
    i, j, k, x, y, u, v = (Var(n) for n in "ijkijij")
    b = Load(parts, _in_parts(_Place(head, row, panel, j, k)))

    def where(lane: Expr) -> tuple[Expr, Expr]:
        return (row, _column(p, head, panel, lane))

    value = ex.mul(Load(acc, (u, v)), Load(p.inverse, (head, row)))
    body = (
        Alloc(acc),
        Map(acc, (x, y), (Axis(x, 1), Axis(y, LANES)), Load(p.out, where(y))),
        Dot(acc, i, j, k, 0, _further_parts(p), ex.lit(1.0, F32), b),
        Map(p.out, where(v), (Axis(u, 1), Axis(v, LANES)), value),
    )
    units = ex.mul(p.ctx.m, p.heads * panels)
    return (Share(unit, ex.mul(units, ex.minimum(_further_parts(p), 1)), body),)
