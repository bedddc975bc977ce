"""Reductions dealt out to the invocations: partial folds of 16, then their tree, every order kept.

A loop of nothing but one reduction, or one map, whose trips do not depend on each other, is done
side by side: otherwise all invocations would meet twice in each trip, and most would idle.
"""

from __future__ import annotations

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var, variables
from speccc.ir.fragment import Bound, LaneFold, LaneMap, loads
from speccc.ir.tile import LANES, Alloc, Axis, Buf, For, Map, Mem, Red, Reduce, Stmt
from speccc.ir.types import DType, Kind

TOGETHER = 8
"""Reductions of a loop that are done side by side: SHARED memory holds 16 folds of each."""
LEAST_I32 = -(2**31)


def lower_reduce(s: Reduce) -> list[Stmt]:
    """16 partial folds by 16 invocations, then the tree of 16 by one."""
    partial = Buf("partial", (LANES,), s.value.dtype, Mem.SHARED)
    return [Alloc(partial), *_folds(s, partial, ())]


def folds_side_by_side(dtype: DType) -> Buf:
    """What `lower_reduces` needs; all loops of a kernel may share it."""
    return Buf("partial", (TOGETHER, LANES), dtype, Mem.SHARED)


def lower_reduces(s: Reduce, var: Var, count: Bound, partial: Buf) -> list[Stmt]:
    """The reductions of var = 0..count-1, of which no trip needs another."""
    if isinstance(count, int) and count <= TOGETHER:
        return _folds(s, partial, (Axis(var, count),))
    chunk, own = Var("chunk"), Var(var.name)
    first = ex.mul(chunk, TOGETHER)
    here = {var: ex.add(first, own)}
    one = Reduce(
        s.dst,
        tuple(ex.substitute(i, here) for i in s.index),
        s.axis,
        s.red,
        ex.substitute(s.value, here),
    )
    live = ex.minimum(ex.sub(ex.lit(count) if isinstance(count, int) else count, first), TOGETHER)
    chunks = ex.idiv(ex.add(count, TOGETHER - 1), TOGETHER)
    return [For(chunk, 0, chunks, tuple(_folds(one, partial, (Axis(own, live),))))]


def independent(s: For) -> Map | Reduce | None:
    """The only statement of a loop from zero when each trip writes elements of its own to it."""
    if len(s.body) != 1 or not isinstance(s.lo, int) or s.lo != 0:
        return None
    (one,) = s.body
    if not isinstance(one, (Map, Reduce)):
        return None
    axes = one.axes if isinstance(one, Map) else (one.axis,)
    extents = {a.var: a.extent for a in axes}
    bounds = [e for e in extents.values() if not isinstance(e, int)]
    trips = () if isinstance(s.hi, int) else (s.hi,)
    read = {r.buf for e in (*one.index, one.value, *bounds, *trips) for r in loads(e)}
    if one.dst in read or any(s.var in variables(e) for e in bounds):
        return None
    return one if any(_apart(i, s.var, extents) for i in one.index) else None


def _apart(index: Expr, var: Var, extents: dict[Var, Bound]) -> bool:
    """Whether an index differs for all values of `var`: `var * n + t`, where t < n if it varies."""
    step, inner = ex.stride(index, var), variables(index) & set(extents)
    if not step or not inner:
        return bool(step)
    (t, *more) = inner
    extent = extents[t]
    return not more and isinstance(extent, int) and ex.stride(index, t) == 1 and extent <= step


def _folds(s: Reduce, partial: Buf, apart: tuple[Axis, ...]) -> list[Stmt]:
    """For all values of `apart`; partial has their indices and the lane's."""
    lane, step = Var("lane"), Var("step")
    # Lane l folds elements l, l + 16, ...: as many as lie below the extent.
    count = ex.idiv(ex.sub(ex.add(ex.lit(s.axis.extent), LANES - 1), lane), LANES)
    value = ex.substitute(s.value, {s.axis.var: ex.add(ex.mul(step, LANES), lane)})
    at = tuple(a.var for a in apart)
    axes, init = (*apart, Axis(lane, LANES)), _neutral(s.red, s.value.dtype)
    fold = LaneFold(partial, (*at, lane), axes, step, 0, count, s.red, init, value)
    return [fold, LaneMap(s.dst, s.index, apart, _tree(partial, at, s.red))]


def _neutral(red: Red, dtype: DType) -> Expr:
    if red is Red.SUM:
        return ex.lit(0.0 if dtype.kind is Kind.FLOAT else 0, dtype)
    return ex.lit(float("-inf") if dtype.kind is Kind.FLOAT else LEAST_I32, dtype)


def _tree(partial: Buf, at: tuple[Expr, ...], red: Red) -> Expr:
    """Partial l takes in l + 8, l + 4, l + 2 and l + 1."""
    join = ex.add if red is Red.SUM else ex.maximum
    level: list[Expr] = [Load(partial, (*at, ex.lit(n))) for n in range(LANES)]
    while len(level) > 1:
        half = len(level) // 2
        level = [join(level[n], level[n + half]) for n in range(half)]
    return level[0]
