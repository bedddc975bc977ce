"""Matmul results split into heads: RoPE in registers, then to a buffer or into the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir import ops
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.graph import Value
from speccc.ir.plan import Role
from speccc.ir.tile import LANES, Alloc, Axis, Buf, For, Map, Mem, Red, Reduce, Stmt
from speccc.ir.types import F32, I8
from speccc.passes.lower_context import Context, RopeTable, group_of, load_index
from speccc.passes.tile_matmul import Operand, Rows, accumulate, units_by_rows


@dataclass(frozen=True, slots=True)
class HeadResult:
    """`heads` heads of `size` from matmul result `port`, turned by `rope`, appended to `cache`."""

    port: int
    heads: int
    size: int
    rope: ops.Rope | None
    factors: str | None
    cache: Value | None


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of a head in a row tile: where it is and what was computed for it."""

    tile: Buf
    width: int
    row: Expr
    head: Expr
    first: Expr
    size: int


def lower_heads(
    ctx: Context,
    name: str,
    r: HeadResult,
    rows: Rows,
    operand: Callable[[int, int | None], Operand],
    outer: Value,
) -> list[Stmt]:
    """The panels of one such result."""
    group = group_of(r.size)
    weight = operand(r.port, group if r.rope is not None else None)
    cache = None if r.cache is None else ctx.caches[r.cache]
    dst = ctx.activation(outer, f"{name}_q") if r.cache is None else None
    if r.cache is not None:
        ctx.caches[outer] = ctx.caches[r.cache]
    keys = r.rope is not None

    def body(width: int, row: Expr, unit: Expr) -> list[Stmt]:
        tile = Buf("heads", (width, group), F32, Mem.TILE)
        first = ex.mul(unit, group)
        head, at = ex.idiv(first, r.size), ex.mod(first, r.size)
        g = _Group(tile, width, row, head, at, group)
        out = _turned(ctx, r, rows, weight, g, unit)
        if dst is not None:
            i, j = Var("i"), Var("j")
            index = (ex.add(row, i), ex.add(first, j))
            return [*out, Map(dst, index, (Axis(i, width), Axis(j, group)), Load(tile, (i, j)))]
        if cache is None:
            raise UnsupportedError(f"{name}: a cache of no layer")
        return out + _append(ctx, g, cache, keys=keys)

    return [units_by_rows("group", r.heads * r.size // group, ctx.m, body)]


def _turned(
    ctx: Context, r: HeadResult, rows: Rows, w: Operand, g: _Group, unit: Expr
) -> list[Stmt]:
    """Statements that leave the group's elements in g.tile."""
    panels = g.size // LANES
    raw = Buf("raw", (g.width, g.size), F32, Mem.TILE) if r.rope is not None else g.tile
    p, i, j = Var("p"), Var("i"), Var("j")
    # A loop, not two copies: the panel code is by far the largest part of a kernel.
    acc, computed = accumulate("acc", g.width, rows, w, g.row, ex.add(ex.mul(unit, panels), p))
    index = (i, ex.add(ex.mul(p, LANES), j))
    keep = Map(raw, index, (Axis(i, g.width), Axis(j, LANES)), Load(acc, (i, j)))
    out: list[Stmt] = [Alloc(raw), For(p, 0, panels, (*computed, keep))]
    return out if r.rope is None else out + _rotate(ctx, r, g, raw)


def _rotate(ctx: Context, r: HeadResult, g: _Group, raw: Buf) -> list[Stmt]:
    """(even, odd) -> (even cos - odd sin, even sin + odd cos); evens are the group's first half."""
    half = g.size // 2
    i = Var("i")
    cos, sin = rope_table(ctx, r)
    position = load_index(ctx.positions, ex.add(g.row, i))
    out: list[Stmt] = [Alloc(g.tile)]
    for which in range(2):
        j = Var("j")
        even, odd = Load(raw, (i, j)), Load(raw, (i, ex.add(j, half)))
        pair = ex.add(ex.idiv(g.first, 2), j)
        c, s = Load(cos, (position, pair)), Load(sin, (position, pair))
        if which == 0:
            value = ex.fma(even, c, ex.unary(Fn.NEG, ex.mul(odd, s)))
        else:
            value = ex.fma(even, s, ex.mul(odd, c))
        index = (i, ex.add(j, which * half))
        out.append(Map(g.tile, index, (Axis(i, g.width), Axis(j, half)), value))
    return out


def rope_table(ctx: Context, r: HeadResult) -> tuple[Buf, Buf]:
    """The plan's cosine and sine buffers for a RoPE, made on first use."""
    if r.rope is None:
        raise UnsupportedError("no RoPE here")
    name = f"rope{len(ctx.tables)}"
    spec = (r.rope.theta, r.rope.dim, r.rope.divisor, r.size // 2, r.factors)
    for table, bufs in ctx.tables.items():
        if (table.theta, table.dim, table.divisor, table.pairs, table.factors) == spec:
            return bufs
    table = RopeTable(name, *spec)
    shape = (ctx.slots, table.pairs)
    cos = ctx.buffer(f"{name}_cos", shape, F32, Role.WEIGHTS)
    sin = ctx.buffer(f"{name}_sin", shape, F32, Role.WEIGHTS)
    ctx.tables[table] = (cos, sin)
    return cos, sin


def _append(ctx: Context, g: _Group, layer: Expr, *, keys: bool) -> list[Stmt]:
    cache = ctx.k if keys else ctx.v
    scale = ctx.k_scale if keys else ctx.v_scale
    i, j = Var("i"), Var("j")
    slot = ex.add(ctx.length, ex.add(g.row, i))
    index = cache_index(layer, g.head, slot, ex.add(g.first, j), keys=keys)
    axes = (Axis(i, g.width), Axis(j, g.size))
    if scale is None:
        return [Map(cache, index, axes, ex.cast(Load(g.tile, (i, j)), cache.dtype))]
    return _append_int8(ctx, g, layer, cache, scale, keys=keys)


def cache_index(
    layer: Expr, head: Expr, slot: Expr, element: Expr, *, keys: bool
) -> tuple[Expr, ...]:
    """Where an element lives.

    K is [layer, head, slot / 16, element, slot % 16], V [layer, head, element / 16, slot,
    element % 16]: the lanes of each are what its product runs over last.
    """
    if keys:
        return (layer, head, ex.idiv(slot, LANES), element, ex.mod(slot, LANES))
    return (layer, head, ex.idiv(element, LANES), slot, ex.mod(element, LANES))


def _append_int8(
    ctx: Context, g: _Group, layer: Expr, cache: Buf, scale: Buf, *, keys: bool
) -> list[Stmt]:
    """Per slot and group: scale = amax / 127, code = rint(x * (127 / amax))."""
    i, j, t = Var("i"), Var("j"), Var("t")
    zero = (ex.lit(0),)
    amax, inverse = (Buf(n, (1,), F32, Mem.TILE) for n in ("amax", "inverse"))
    slot = ex.add(ctx.length, ex.add(g.row, i))
    top = Load(amax, zero)
    factor = ex.select(ex.lt(ex.lit(0.0, F32), top), ex.div(ex.lit(127.0, F32), top), 0.0)
    group = (layer, g.head, ex.idiv(g.first, g.size), slot)
    index = cache_index(layer, g.head, slot, ex.add(g.first, j), keys=keys)
    code = ex.unary(Fn.RINT, ex.mul(Load(g.tile, (i, j)), Load(inverse, zero)))
    absolute = ex.unary(Fn.ABS, Load(g.tile, (i, t)))
    body: tuple[Stmt, ...] = (
        Reduce(amax, zero, Axis(t, g.size), Red.MAX, absolute),
        Map(scale, group, (), ex.div(top, ex.lit(127.0, F32))),
        Map(inverse, zero, (), factor),
        Map(cache, index, (Axis(j, g.size),), ex.cast(code, I8)),
    )
    return [Alloc(amax), Alloc(inverse), For(i, 0, g.width, body)]
