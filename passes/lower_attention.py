"""`Attention` -> three kernels: scores, softmax, weighted values. No mask is built.

A row sees the committed slots 0..length-1 and the slots of its ancestors and itself among the rows
of this step, listed in `path` by depth. Scores are computed for all slots of the step; softmax
then keeps the visible ones, in order of their position in the text, and leaves exact zeros for the
others. Every sum runs over positions in order, so a chain, a tree and a prefill agree to the bit.
Heads that share a KV head are folded into the rows: each key and value is read once for a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir import ops_state
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.graph import Node, Value
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Mem,
    Red,
    Reduce,
    RowTiles,
    Share,
    Stmt,
)
from speccc.ir.types import F32
from speccc.passes.lower_context import MAX_ROWS, Context, load_index
from speccc.passes.lower_region import buffers_of
from speccc.passes.tile_matmul import WIDTHS


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the three kernels share."""

    ctx: Context
    q: Buf
    out: Buf
    scores: Buf
    inverse: Buf
    layer: Expr
    heads: int
    groups: int
    size: int
    scale: float

    @property
    def folded(self) -> Expr:
        """Rows times query heads of one KV head."""
        return ex.mul(self.ctx.m, self.heads // self.groups)

    def row(self, folded: Expr) -> Expr:
        """The token row of a folded row (heads are the slower index)."""
        return ex.mod(folded, self.ctx.m)

    def head(self, group: Expr, folded: Expr) -> Expr:
        """The query head of a folded row."""
        per = self.heads // self.groups
        return ex.add(ex.mul(group, per), ex.idiv(folded, self.ctx.m))


def lower_attention(ctx: Context, node: Node, name: str) -> tuple[Kernel, ...]:
    """The kernels of one attention node; its result becomes a buffer of the context."""
    op = node.op
    q, k, v = node.inputs[:3]
    heads, size = q.type.shape[1:]
    groups = k.type.shape[1]
    ints = isinstance(heads, int) and isinstance(size, int) and isinstance(groups, int)
    if not ints or not isinstance(op, ops_state.Attention) or v.type.shape != k.type.shape:
        raise UnsupportedError(f"{name}: attention over {q.type}, {k.type}, {v.type}")
    layer = ctx.caches[k]
    if ctx.caches[v] != layer:
        raise UnsupportedError(f"{name}: keys and values of different layers")
    p = _Parts(
        ctx,
        ctx.values[q],
        ctx.activation(Value(node), f"{name}_out"),
        ctx.workspace(f"scores_{heads}", (heads, ctx.m, ctx.slots)),
        ctx.scratch_activation(f"{name}_inverse", (heads, ctx.m)),
        layer,
        heads,
        groups,
        size,
        op.scale,
    )
    bodies = (("scores", _scores(p)), ("softmax", _softmax(p)), ("values", _values(p)))
    return tuple(
        Kernel(f"{name}_{part}", buffers_of(body, ctx), ctx.scalars, body) for part, body in bodies
    )


def _zeroed(width: int) -> tuple[Buf, list[Stmt]]:
    acc = Buf("acc", (width, LANES), F32, Mem.TILE)
    i, j = Var("i"), Var("j")
    return acc, [Alloc(acc), Map(acc, (i, j), (Axis(i, width), Axis(j, LANES)), ex.lit(0.0, F32))]


def _scores(p: _Parts) -> tuple[Stmt, ...]:
    """scores[head, row, slot] = scale * q . k for all slots of 16-slot tiles in use."""
    ctx, unit, row = p.ctx, Var("unit"), Var("row")
    tiles = ex.idiv(ex.add(ex.add(ctx.length, ctx.m), LANES - 1), LANES)
    group, tile = ex.idiv(unit, tiles), ex.mod(unit, tiles)

    def body(width: int) -> tuple[Stmt, ...]:
        acc, out = _zeroed(width)
        i, j, k = Var("i"), Var("j"), Var("k")
        at = ex.add(row, i)
        a = Load(p.q, (p.row(at), ex.add(ex.mul(p.head(group, at), p.size), k)))
        slot = ex.add(ex.mul(tile, LANES), j)
        b = _cached(p, (p.layer, group, tile, k, j), (group, k, slot), keys=True)
        out.append(Dot(acc, i, j, k, 0, p.size, a, b))
        x, y = Var("i"), Var("j")
        to = ex.add(row, x)
        index = (p.head(group, to), p.row(to), ex.add(ex.mul(tile, LANES), y))
        value = ex.mul(Load(acc, (x, y)), ex.lit(p.scale, F32))
        out.append(Map(p.scores, index, (Axis(x, width), Axis(y, LANES)), value))
        return tuple(out)

    rows = RowTiles(row, p.folded, tuple((w, body(w)) for w in WIDTHS))
    return (Share(unit, ex.mul(tiles, p.groups), (rows,)),)


def _cached(
    p: _Parts, index: tuple[Expr, ...], where: tuple[Expr, Expr, Expr], *, keys: bool
) -> Expr:
    """An element of the cache as f32; `where` is (KV head, element, slot) for its scale."""
    cache, scale = (p.ctx.k, p.ctx.k_scale) if keys else (p.ctx.v, p.ctx.v_scale)
    value = ex.cast(Load(cache, index), F32)
    if scale is None:
        return value
    head, element, slot = where
    group = ex.idiv(element, p.ctx.kv.group)
    return ex.mul(value, Load(scale, (p.layer, head, group, slot)))


def _softmax(p: _Parts) -> tuple[Stmt, ...]:
    """scores -> e^(score - max) where visible, else 0; inverse = 1 / their sum."""
    ctx, unit = p.ctx, Var("unit")
    head, row = ex.idiv(unit, ctx.m), ex.mod(unit, ctx.m)
    top, part, total = (
        Buf(n, (s,), F32, Mem.TILE) for n, s in (("top", 1), ("part", LANES), ("sum", 1))
    )
    tail = Buf("tail", (MAX_ROWS,), F32, Mem.TILE)
    zero, last = (ex.lit(0),), load_index(ctx.depth, row)
    t, d = Var("t"), Var("d")

    def score(slot: Expr) -> Expr:
        return Load(p.scores, (head, row, slot))

    def seen(depth: Expr) -> Expr:
        return score(ex.add(ctx.length, load_index(ctx.path, row, depth)))

    def power(x: Expr) -> Expr:
        return ex.unary(Fn.EXP, ex.sub(x, Load(top, zero)))

    def depths(*body: Stmt) -> For:
        return For(d, 0, ex.add(last, 1), body)

    def prefix(slot: Expr) -> tuple[Expr, Expr, Expr]:
        return (head, row, slot)

    tail_slot = ex.add(ctx.length, load_index(ctx.path, row, d))
    z = Var("z")
    body: tuple[Stmt, ...] = (
        Alloc(top), Alloc(part), Alloc(total), Alloc(tail),
        Reduce(top, zero, Axis(t, ctx.length), Red.MAX, score(t)),
        depths(Map(top, zero, (), ex.maximum(Load(top, zero), seen(d)))),
        Map(p.scores, prefix(t), (Axis(t, ctx.length),), power(score(t))),
        depths(Map(tail, (d,), (), power(seen(d)))),
        Map(p.scores, prefix(ex.add(ctx.length, z)), (Axis(z, ctx.m),), ex.lit(0.0, F32)),
        depths(Map(p.scores, prefix(tail_slot), (), Load(tail, (d,)))),
        *_sum_by_position(p, head, row, part, tail, depths),
        Reduce(total, zero, Axis(t, LANES), Red.SUM, Load(part, (t,))),
        Map(p.inverse, (head, row), (), ex.div(ex.lit(1.0, F32), Load(total, zero))),
    )  # fmt: skip
    return (Share(unit, ex.mul(ctx.m, p.heads), body),)


def _sum_by_position(
    p: _Parts, head: Expr, row: Expr, part: Buf, tail: Buf, depths: object
) -> list[Stmt]:
    """part[l] = sum of the powers at positions l, l + 16, .. of the row's own text, in order."""
    ctx = p.ctx
    t, s, lane, z = Var("t"), Var("s"), Var("l"), Var("z")
    d = Var("d")
    whole = ex.idiv(ctx.length, LANES)

    def add_at(position: Expr, value: Expr) -> Map:
        at = ex.mod(position, LANES)
        return Map(part, (at,), (), ex.add(Load(part, (at,)), value))

    block = Load(p.scores, (head, row, ex.add(ex.mul(t, LANES), lane)))
    add_block = Map(part, (lane,), (Axis(lane, LANES),), ex.add(Load(part, (lane,)), block))
    last = load_index(ctx.depth, row)
    return [
        Map(part, (z,), (Axis(z, LANES),), ex.lit(0.0, F32)),
        For(t, 0, whole, (add_block,)),
        For(
            s,
            ex.mul(whole, LANES),
            ctx.length,
            (add_at(s, Load(p.scores, (head, row, s))),),
        ),
        For(d, 0, ex.add(last, 1), (add_at(ex.add(ctx.length, d), Load(tail, (d,))),)),
    ]


def _values(p: _Parts) -> tuple[Stmt, ...]:
    """out[row, head, :] = inverse * sum over slots, in order, of power * value."""
    ctx, unit, row = p.ctx, Var("unit"), Var("row")
    panels = p.size // LANES
    group, panel = ex.idiv(unit, panels), ex.mod(unit, panels)

    def body(width: int) -> tuple[Stmt, ...]:
        acc, out = _zeroed(width)
        i, j, k = Var("i"), Var("j"), Var("k")
        at = ex.add(row, i)
        a = Load(p.scores, (p.head(group, at), p.row(at), k))
        b = _cached(p, (p.layer, group, panel, k, j), (group, ex.mul(panel, LANES), k), keys=False)
        out.append(Dot(acc, i, j, k, 0, ex.add(ctx.length, ctx.m), a, b))
        x, y = Var("i"), Var("j")
        to = ex.add(row, x)
        head, token = p.head(group, to), p.row(to)
        column = ex.add(ex.mul(head, p.size), ex.add(ex.mul(panel, LANES), y))
        value = ex.mul(Load(acc, (x, y)), Load(p.inverse, (head, token)))
        out.append(Map(p.out, (token, column), (Axis(x, width), Axis(y, LANES)), value))
        return tuple(out)

    rows = RowTiles(row, p.folded, tuple((w, body(w)) for w in WIDTHS))
    return (Share(unit, p.groups * panels, (rows,)),)
