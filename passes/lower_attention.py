"""`Attention` -> its kernels: scores, softmax, weighted values. No mask is built.

A row sees the committed slots 0..length-1 and the slots of its ancestors and itself among the rows
of this step, listed in `path` by depth. Scores are computed for all slots of the step; softmax
then keeps the visible ones, in order of their position in the text, and leaves exact zeros for the
others. Every sum runs over positions in order, so a chain, a tree and a prefill agree to the bit.
Heads that share a KV head are folded into the rows: each key and value is read once for a tile.

Queries and powers may be rounded to f16 for matrix engines (`ATTENTION`). How an engine groups the
products of a sum is its own affair, so the same ones must meet for any step. Of scores that is so:
each is a sum over a head. Of values see `attention_values`.
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
from speccc.passes.attention_node import ATTENTION, AttentionNode, cached, zeroed
from speccc.passes.attention_values import split_values, whole_values
from speccc.passes.lower_context import MAX_ROWS, Context, load_index
from speccc.passes.lower_region import buffers_of
from speccc.passes.round_rows import rounded
from speccc.passes.tile_matmul import WIDTHS


def lower_attention(ctx: Context, node: Node, name: str) -> tuple[Kernel, ...]:
    """The kernels of one attention node; its result becomes a buffer of the context."""
    op = node.op
    q, k, v = node.inputs[:3]
    heads, size = q.type.shape[1:]
    groups = k.type.shape[1]
    if not (isinstance(heads, int) and isinstance(size, int) and isinstance(groups, int)):
        raise UnsupportedError(f"{name}: attention of symbolic size")
    if not isinstance(op, ops_state.Attention) or v.type.shape != k.type.shape:
        raise UnsupportedError(f"{name}: attention over {q.type}, {k.type}, {v.type}")
    layer = ctx.caches[k]
    if ctx.caches[v] != layer:
        raise UnsupportedError(f"{name}: keys and values of different layers")
    _check_class(ctx)
    p = AttentionNode(
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
    values = split_values(p) if ctx.split else {"values": whole_values(p)}
    bodies = {"scores": _scores(p), "softmax": _softmax(p), **values}
    return tuple(
        Kernel(f"{name}_{part}", buffers_of(body, ctx), ctx.scalars, body)
        for part, body in bodies.items()
    )


def _check_class(ctx: Context) -> None:
    if ctx.attention not in ATTENTION:
        choices = ", ".join(ATTENTION)
        raise UnsupportedError(f"--attention {ctx.attention}: choose one of {choices}")
    engine = ATTENTION[ctx.attention]
    if engine is not None and ctx.k.dtype != engine:
        raise UnsupportedError(
            f"--attention {ctx.attention}: the cache holds {ctx.k.dtype}; choose --kv {engine}"
        )


def _scores(p: AttentionNode) -> tuple[Stmt, ...]:
    """scores[head, row, slot] = scale * q . k for all slots of 16-slot tiles in use."""
    ctx, unit, row = p.ctx, Var("unit"), Var("row")
    tiles = ex.idiv(ex.add(ex.add(ctx.length, ctx.m), LANES - 1), LANES)
    group, tile = ex.idiv(unit, tiles), ex.mod(unit, tiles)

    def body(width: int) -> tuple[Stmt, ...]:
        acc, out = zeroed(width)
        i, j, k = Var("i"), Var("j"), Var("k")
        at = ex.add(row, i)
        query = Load(p.q, (p.row(at), ex.add(ex.mul(p.head(group, at), p.size), k)))
        a = query if p.engine is None else rounded(p.engine, query)
        slot = ex.add(ex.mul(tile, LANES), j)
        b = cached(p, (p.layer, group, tile, k, j), (group, k, slot), keys=True)
        out.append(Dot(acc, i, j, k, 0, p.size, a, b, p.engine))
        x, y = Var("i"), Var("j")
        to = ex.add(row, x)
        index = (p.head(group, to), p.row(to), ex.add(ex.mul(tile, LANES), y))
        value = ex.mul(Load(acc, (x, y)), ex.lit(p.scale, F32))
        out.append(Map(p.scores, index, (Axis(x, width), Axis(y, LANES)), value))
        return tuple(out)

    rows = RowTiles(row, p.folded, tuple((w, body(w)) for w in WIDTHS))
    return (Share(unit, ex.mul(tiles, p.groups), (rows,)),)


@dataclass(frozen=True, slots=True)
class _Softmax:
    """One (head, row) of the softmax and its working tiles.

    `tail` holds the row's own ancestors by depth, out of the way of the other rows' slots, so that
    whole vectors of scores can be turned into powers.
    """

    p: AttentionNode
    head: Expr
    row: Expr
    top: Buf
    part: Buf
    total: Buf
    tail: Buf

    @property
    def depths(self) -> Expr:
        """How many rows of this step the row sees, itself included."""
        return ex.add(load_index(self.p.ctx.depth, self.row), 1)

    def index(self, slot: Expr) -> tuple[Expr, Expr, Expr]:
        """Where the score of a slot is."""
        return (self.head, self.row, slot)

    def score(self, slot: Expr) -> Expr:
        """The score of a slot."""
        return Load(self.p.scores, self.index(slot))

    def slot(self, depth: Expr) -> Expr:
        """The slot of the ancestor at a depth."""
        return ex.add(self.p.ctx.length, load_index(self.p.ctx.path, self.row, depth))

    def power(self, x: Expr) -> Expr:
        """e^(x - max)."""
        return ex.unary(Fn.EXP, ex.sub(x, Load(self.top, (ex.lit(0),))))


def _softmax(p: AttentionNode) -> tuple[Stmt, ...]:
    """scores -> e^(score - max) where visible, else 0; inverse = 1 / their sum."""
    ctx, unit = p.ctx, Var("unit")
    shapes = (("top", 1), ("part", LANES), ("sum", 1), ("tail", MAX_ROWS))
    tiles = [Buf(n, (size,), F32, Mem.TILE) for n, size in shapes]
    s = _Softmax(p, ex.idiv(unit, ctx.m), ex.mod(unit, ctx.m), *tiles)
    zero, t, d = (ex.lit(0),), Var("t"), Var("d")
    total = Reduce(s.total, zero, Axis(t, LANES), Red.SUM, Load(s.part, (t,)))
    inverse = ex.div(ex.lit(1.0, F32), Load(s.total, zero))
    body: tuple[Stmt, ...] = (
        *(Alloc(tile) for tile in tiles),
        *_maximum(s),
        *_powers(s),
        For(d, 0, s.depths, (Map(p.scores, s.index(s.slot(d)), (), Load(s.tail, (d,))),)),
        *_sum_by_position(s),
        total,
        Map(p.inverse, (s.head, s.row), (), inverse),
    )
    return (Share(unit, ex.mul(ctx.m, p.heads), body),)


def _maximum(s: _Softmax) -> list[Stmt]:
    """Copies the ancestors' scores to the tail and takes the maximum of all that is visible."""
    t, d, z = Var("t"), Var("d"), Var("z")
    zero = (ex.lit(0),)
    copy = Map(s.tail, (d,), (), s.score(s.slot(d)))
    larger = Map(s.top, zero, (), ex.maximum(Load(s.top, zero), Load(s.tail, (d,))))
    low = ex.lit(-1e30, F32)
    return [
        Map(s.tail, (z,), (Axis(z, MAX_ROWS),), low),
        Reduce(s.top, zero, Axis(t, s.p.ctx.length), Red.MAX, s.score(t)),
        For(d, 0, s.depths, (copy, larger)),
    ]


def _powers(s: _Softmax) -> list[Stmt]:
    """Powers of the prefix in place, of the tail in its tile; zeros in every slot of this step.

    On the way part[l] becomes the sum of the powers at positions l, l + 16, .. of whole vectors.
    """
    ctx, t, d, z, y = s.p.ctx, Var("t"), Var("d"), Var("z"), Var("y")
    whole, all_ = ex.idiv(ctx.length, LANES), ex.idiv(_up(ctx.length), LANES)

    def powers(block: Expr) -> Map:
        j = Var("j")
        at = ex.add(ex.mul(block, LANES), j)
        return Map(s.p.scores, s.index(at), (Axis(j, LANES),), s.power(s.score(at)))

    lane, u = Var("l"), Var("u")
    block = s.score(ex.add(ex.mul(t, LANES), lane))
    add_block = Map(s.part, (lane,), (Axis(lane, LANES),), ex.add(Load(s.part, (lane,)), block))
    return [
        Map(s.part, (y,), (Axis(y, LANES),), ex.lit(0.0, F32)),
        For(t, 0, whole, (powers(t), add_block)),
        For(u, whole, all_, (powers(u),)),
        Map(s.tail, (d,), (Axis(d, _up(s.depths)),), s.power(Load(s.tail, (d,)))),
        Map(
            s.p.scores,
            s.index(ex.add(ctx.length, z)),
            (Axis(z, ctx.m),),
            ex.lit(0.0, F32),
        ),
    ]


def _up(n: Expr) -> Expr:
    """n rounded up to whole vectors (slots come in tiles of 16, so they exist)."""
    return ex.mul(ex.idiv(ex.add(n, LANES - 1), LANES), LANES)


def _sum_by_position(s: _Softmax) -> list[Stmt]:
    """part[l] takes in the powers after the whole vectors, in order of position."""
    length = s.p.ctx.length
    at, d = Var("s"), Var("d")
    whole = ex.idiv(length, LANES)

    def add_at(position: Expr, value: Expr) -> Map:
        index = ex.mod(position, LANES)
        return Map(s.part, (index,), (), ex.add(Load(s.part, (index,)), value))

    return [
        For(at, ex.mul(whole, LANES), length, (add_at(at, s.score(at)),)),
        For(d, 0, s.depths, (add_at(ex.add(length, d), Load(s.tail, (d,))),)),
    ]
