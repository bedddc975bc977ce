"""The head: the largest logit of each row is found where it is computed; logits only if asked for.

A unit is a run of panels. While a worker walks it, lane l of its own memory keeps the largest logit
of columns l, l + 16, .. and the panel that holds it; at the end of the run the lanes become one
value and one column a row. A second small kernel folds the runs into one pick a row.

The pick is the lowest column among the largest, as `np.argmax` has it; it is -1 where the largest
is not finite, and a NaN counts as +infinity. Columns past the vocabulary take no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.plan import Role
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    For,
    Map,
    Mem,
    Red,
    Reduce,
    RowTiles,
    Share,
    Stmt,
)
from speccc.ir.types import F32, I32
from speccc.passes.lower_context import Context
from speccc.passes.tile_matmul import WIDTHS

RUNS = 256
"""Most runs: enough to share out evenly, few enough to fold in no time."""

WIDEST = 1 << 24
"""Columns are kept as f32, exact below this."""

INFINITY = float("inf")

Logit = Callable[[Expr, Expr], Expr]
"""(row of the tile, lane) -> logit."""

Tile = Callable[[int, Expr, Expr], tuple[list[Stmt], Logit]]
"""(height, first row of the head's rows, panel) -> how a tile of logits is computed."""


@dataclass(frozen=True, slots=True)
class Best:
    """What the first kernel leaves: f32 [m, runs], the largest logit of each run and its column.

    A run has `panels` panels, but for the last, which may have fewer.
    """

    value: Buf
    column: Buf
    runs: int
    panels: int


def lower_head(ctx: Context, vocab: int, logits: Buf, tile: Tile) -> tuple[list[Stmt], Best]:
    """The panels of the head for the rows that `ctx.head` names, written from row 0 on."""
    if vocab >= WIDEST:
        raise UnsupportedError(
            f"a vocabulary of {vocab}: the head picks among at most {WIDEST - 1}"
        )
    panels = -(-vocab // LANES)
    each = -(-panels // RUNS)
    runs = -(-panels // each)
    shape = (ctx.m, LANES)
    best, where = (Buf(name, shape, F32, Mem.SCRATCH) for name in ("best", "where"))
    lanes = Best(best, where, runs, each)
    to = Best(
        ctx.scratch_activation("head_best", (ctx.m, runs)),
        ctx.scratch_activation("head_column", (ctx.m, runs)),
        runs,
        each,
    )
    run, panel, row = Var("run"), Var("panel"), Var("row")

    def body(width: int) -> tuple[Stmt, ...]:
        out, value = tile(width, row, panel)
        out.append(_written(ctx, logits, value, width, row, panel))
        return tuple(out + _kept(lanes, value, width, row, panel, vocab))

    rows = RowTiles(row, ctx.head.rows, tuple((width, body(width)) for width in WIDTHS))
    first = ex.mul(run, each)
    last = ex.minimum(ex.add(first, each), panels)
    unit = (*_emptied(ctx, lanes), For(panel, first, last, (rows,)), _folded(ctx, lanes, to, run))
    # Without rows there is nothing to walk the panels for.
    units = ex.mul(ex.minimum(ctx.head.rows, 1), runs)
    return [Alloc(lanes.value), Alloc(lanes.column), Share(run, units, unit)], to


def lower_pick(ctx: Context, best: Best, row: Var) -> tuple[Buf, tuple[Stmt, ...]]:
    """picks i32 [m], and what writes that of one row."""
    picks = ctx.buffer("picks", (ctx.m,), I32, Role.OUTPUT)
    t, u = Var("t"), Var("t")
    top, column = (Buf(n, (1,), F32, Mem.TILE) for n in ("top", "column"))
    zero = (ex.lit(0),)
    negative = lowest(
        Load(best.value, (row, u)), Load(top, zero), ex.unary(Fn.NEG, Load(best.column, (row, u)))
    )
    found = ex.cast(ex.unary(Fn.NEG, Load(column, zero)), I32)
    finite = ex.lt(ex.unary(Fn.ABS, Load(top, zero)), INFINITY)
    body: tuple[Stmt, ...] = (
        Alloc(top),
        Alloc(column),
        Reduce(top, zero, Axis(t, best.runs), Red.MAX, Load(best.value, (row, t))),
        Reduce(column, zero, Axis(u, best.runs), Red.MAX, negative),
        Map(picks, (row,), (), ex.select(finite, found, -1)),
    )
    return picks, body


def _written(ctx: Context, logits: Buf, value: Logit, width: int, row: Expr, panel: Expr) -> Stmt:
    """The tile's logits, if they are asked for."""
    i, j = Var("i"), Var("j")
    at = (ex.add(row, i), ex.add(ex.mul(panel, LANES), j))
    write = Map(logits, at, (Axis(i, width), Axis(j, LANES)), value(i, j))
    return For(Var("asked"), 0, ctx.head.logits, (write,))


def _kept(lanes: Best, value: Logit, width: int, row: Expr, panel: Expr, vocab: int) -> list[Stmt]:
    """Takes a tile's logits into the lanes; a later panel wins only if it is larger."""
    out: list[Stmt] = []
    for dst in (lanes.column, lanes.value):
        i, j = Var("i"), Var("j")
        at = (ex.add(row, i), j)
        column = ex.add(ex.mul(panel, LANES), j)
        best, key = Load(lanes.value, at), logit_key(value(i, j), column, vocab)
        new = ex.cast(panel, F32) if dst is lanes.column else key
        kept = ex.select(ex.lt(best, key), new, Load(dst, at))
        out.append(Map(dst, at, (Axis(i, width), Axis(j, LANES)), kept))
    return out


def logit_key(logit: Expr, column: Expr, vocab: int) -> Expr:
    """What logits are compared by: NaN is +infinity, a column past the vocabulary -infinity."""
    key = ex.select(ex.lt(logit, INFINITY), logit, INFINITY)
    if vocab % LANES == 0:
        return key
    return ex.select(ex.lt(column, vocab), key, -INFINITY)


def _emptied(ctx: Context, lanes: Best) -> list[Stmt]:
    out: list[Stmt] = []
    for dst, start in ((lanes.value, -INFINITY), (lanes.column, 0.0)):
        r, lane = Var("r"), Var("l")
        axes = (Axis(r, ctx.head.rows), Axis(lane, LANES))
        out.append(Map(dst, (r, lane), axes, ex.lit(start, F32)))
    return out


def _folded(ctx: Context, lanes: Best, to: Best, run: Expr) -> Stmt:
    """16 lanes -> the run's largest logit and the lowest column that has it."""
    row, t, u = Var("r"), Var("t"), Var("t")
    top, column = (Buf(n, (1,), F32, Mem.TILE) for n in ("top", "column"))
    zero = (ex.lit(0),)
    negative = ex.fma(
        Load(lanes.column, (row, u)), -float(LANES), ex.unary(Fn.NEG, ex.cast(u, F32))
    )
    found = lowest(Load(lanes.value, (row, u)), Load(top, zero), negative)
    body: tuple[Stmt, ...] = (
        Alloc(top),
        Alloc(column),
        Reduce(top, zero, Axis(t, LANES), Red.MAX, Load(lanes.value, (row, t))),
        Reduce(column, zero, Axis(u, LANES), Red.MAX, found),
        Map(to.value, (row, run), (), Load(top, zero)),
        Map(to.column, (row, run), (), ex.unary(Fn.NEG, Load(column, zero))),
    )
    return For(row, 0, ctx.head.rows, body)


def lowest(value: Expr, top: Expr, negative: Expr) -> Expr:
    """The negative column where the value is the largest: their maximum is the lowest column."""
    return ex.select(ex.eq(value, top), negative, -INFINITY)
