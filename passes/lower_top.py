"""The largest logits of a row in order, by rounds over the runs that the head left.

A round takes the largest of the runs' tops and looks in that run alone for what follows it. So k of
them cost k short rounds, not k readings of the row. The order is the pick's: the larger first, of
equals the lower token; a NaN counts as +infinity. Where fewer than k logits are above -infinity,
the other values are -infinity and their tokens mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.plan import Role
from speccc.ir.tile import LANES, Alloc, Axis, Buf, For, Map, Mem, Red, Reduce, Stmt
from speccc.ir.types import F32, I32, INDEX
from speccc.passes.lower_context import Context
from speccc.passes.lower_head import INFINITY, WIDEST, Best, logit_key, lowest

MOST_TOP = 64
"""Most places: beyond it rounds cost more than reading the logits."""
VALUES, TOKENS = "top_values", "top_tokens"
ZERO = (ex.lit(0),)


@dataclass(frozen=True, slots=True)
class _Runs:
    """What of a row is not taken yet: by run the largest key and minus its column; and the last one
    taken, its key and minus its column."""

    key: Buf
    minus: Buf
    last: Buf
    taken: Buf


def lower_top(ctx: Context, best: Best, logits: Buf, vocab: int, row: Var) -> tuple[Stmt, ...]:
    """What writes the first `ctx.head.top` places of one row, whose logits are written before:
    values f32 [m, most] and tokens i32 [m, most]."""
    most = ctx.head.most
    if not 1 <= most <= MOST_TOP:
        raise UnsupportedError(f"the {most} largest logits: a step finds 1 to {MOST_TOP}")
    values = ctx.buffer(VALUES, (ctx.m, most), F32, Role.OUTPUT)
    tokens = ctx.buffer(TOKENS, (ctx.m, most), I32, Role.OUTPUT)
    shape = {"open": best.runs, "minus": best.runs, "last": 1, "taken": 1}
    runs = _Runs(*(Buf(name, (size,), F32, Mem.TILE) for name, size in shape.items()))
    place, r, s = Var("place"), Var("r"), Var("r")
    column = ex.unary(Fn.NEG, Load(runs.taken, ZERO))
    token = ex.cast(ex.cast(column, I32), INDEX)
    inside = ex.minimum(token, _columns(vocab) - 1)
    there = ex.lt(-INFINITY, Load(runs.last, ZERO))
    value = ex.select(there, Load(logits, (row, inside)), -INFINITY)
    round_ = (
        *_take(runs, best.runs),
        Map(values, (row, place), (), value),
        Map(tokens, (row, place), (), ex.cast(token, I32)),
        *_refill(runs, best, logits, vocab, row, token),
    )
    return (
        *(Alloc(b) for b in (runs.key, runs.minus, runs.last, runs.taken)),
        Map(runs.key, (r,), (Axis(r, best.runs),), Load(best.value, (row, r))),
        Map(runs.minus, (s,), (Axis(s, best.runs),), ex.unary(Fn.NEG, Load(best.column, (row, s)))),
        For(place, 0, ctx.head.top, round_),
    )


def _take(runs: _Runs, count: int) -> tuple[Stmt, ...]:
    """The largest of the runs, of equals the lowest column."""
    r, s = Var("r"), Var("r")
    equal = lowest(Load(runs.key, (s,)), Load(runs.last, ZERO), Load(runs.minus, (s,)))
    return (
        Reduce(runs.last, ZERO, Axis(r, count), Red.MAX, Load(runs.key, (r,))),
        Reduce(runs.taken, ZERO, Axis(s, count), Red.MAX, equal),
    )


def _refill(
    runs: _Runs, best: Best, logits: Buf, vocab: int, row: Var, token: Expr
) -> tuple[Stmt, ...]:
    """What follows the token in its run takes the token's place there."""
    width = best.panels * LANES
    run = ex.minimum(ex.idiv(token, width), best.runs - 1)
    first = ex.mul(run, width)
    rest = Buf("rest", (width,), F32, Mem.TILE)
    key, minus = (Buf(name, (1,), F32, Mem.TILE) for name in ("next", "at"))
    c, d, e = Var("c"), Var("c"), Var("c")
    negative = ex.unary(Fn.NEG, ex.cast(ex.add(first, e), F32))
    # Where nothing is left every key is -infinity; a column that is a number keeps the casts legal.
    same = ex.select(ex.eq(Load(rest, (e,)), Load(key, ZERO)), negative, -float(WIDEST))
    return (
        Alloc(rest),
        Alloc(key),
        Alloc(minus),
        Map(rest, (c,), (Axis(c, width),), _left(runs, logits, vocab, row, ex.add(first, c))),
        Reduce(key, ZERO, Axis(d, width), Red.MAX, Load(rest, (d,))),
        Reduce(minus, ZERO, Axis(e, width), Red.MAX, same),
        _put(runs.key, key, run, best.runs),
        _put(runs.minus, minus, run, best.runs),
    )


def _left(runs: _Runs, logits: Buf, vocab: int, row: Var, column: Expr) -> Expr:
    """The key of a column, or -infinity if it does not come after the one last taken."""
    inside = ex.minimum(column, _columns(vocab) - 1)
    key, last = logit_key(Load(logits, (row, inside)), column, vocab), Load(runs.last, ZERO)
    beyond = ex.lt(ex.unary(Fn.NEG, ex.cast(column, F32)), Load(runs.taken, ZERO))
    below = ex.select(ex.lt(key, last), key, -INFINITY)
    return ex.select(ex.eq(key, last), ex.select(beyond, key, -INFINITY), below)


def _put(to: Buf, value: Buf, run: Expr, count: int) -> Stmt:
    r = Var("r")
    chosen = ex.select(ex.eq(r, run), Load(value, ZERO), Load(to, (r,)))
    return Map(to, (r,), (Axis(r, count),), chosen)


def _columns(vocab: int) -> int:
    return -(-vocab // LANES) * LANES
