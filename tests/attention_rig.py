"""What the tests of attention share: one attention node lowered alone, its inputs, a reference."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cpu_rig import Built, build, single

from speccc.ir import graph_build as g
from speccc.ir import ops_state
from speccc.ir.expr import Var, lit
from speccc.ir.graph import apply
from speccc.ir.plan import Plan, Role, size_of
from speccc.ir.tile import LANES, Buf, Kernel
from speccc.ir.tile_verify import verify_plan
from speccc.ir.types import F16, F32, I8, I32, Sym
from speccc.passes.lower_attention import lower_attention
from speccc.passes.lower_context import KV_TYPES, MAX_ROWS, Context, KvShape
from speccc.runtime.rows import chain, tree
from speccc.runtime.session import sizes_of
from speccc.targets.cpu.isa import Isa, detect

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Heads:
    """The shape of an attention: query heads, KV heads, elements of a head, type of the cache,
    what is multiplied, and whether workers share sums over slots."""

    heads: int
    groups: int
    size: int
    kv: str = "f16"
    attention: str = "f32"
    split: bool = False

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.size) ** -0.5


@dataclass(frozen=True)
class Lowered:
    """The kernels of one attention, and the buffers a caller fills and reads."""

    shape: Heads
    ctx: Context
    kernels: tuple[Kernel, ...]
    q: Buf
    out: Buf

    @property
    def plan(self) -> Plan:
        """The kernels alone; every buffer belongs to the caller."""
        return single(self.kernels)

    def sizes(self, m: int, length: int, tiles: int) -> dict[Var, int]:
        """The scalars of a call."""
        known = {**sizes_of(tiles), "m": m, "length": length}
        return {v: known.get(v.name, 1) for v in self.plan.sizes}


@functools.cache
def lowered(shape: Heads) -> Lowered:
    """One attention over layer 0 of a cache of one layer."""
    m, slots = Sym("m", 1, MAX_ROWS), Sym("ctx", 1, 1 << 20)
    cached = (slots, shape.groups, shape.size)
    q = g.param("q", (m, shape.heads, shape.size))
    k, v = (g.param(name, cached, F16) for name in ("k", "v"))
    node = apply(
        ops_state.Attention(shape.scale),
        q,
        k,
        v,
        g.param("length", (), I32),
        g.param("p", (m,), I32),
    ).node
    kv = KvShape(1, shape.groups, shape.size, KV_TYPES[shape.kv])
    ctx = Context(kv, attention=shape.attention, split=shape.split)
    ctx.values[q] = ctx.buffer("q", (ctx.m, shape.heads * shape.size), F32, Role.INPUT)
    ctx.caches |= {k: lit(0), v: lit(0)}
    kernels = lower_attention(ctx, node, "attn")
    (out,) = (b for value, b in ctx.values.items() if value.node is node)
    verify_plan(single(kernels))
    return Lowered(shape, ctx, kernels, ctx.values[q], out)


@functools.cache
def built(shape: Heads, isa: Isa | None = None) -> Built:
    """The same as machine code."""
    low = lowered(shape)
    return build(low.plan, {low.ctx.m: MAX_ROWS}, isa or detect())


@dataclass(frozen=True)
class Step:
    """Inputs of one step: queries [m, heads, size], keys and values [slots, groups, size] as the
    cache holds them, in the order of the slots; `parents` of a tree, None for a chain."""

    q: Array
    k: Array
    v: Array
    length: int
    parents: tuple[int, ...] | None = None

    @property
    def rows(self) -> tuple[Array, Array]:
        """Depth and path of the rows."""
        if self.parents is None:
            return chain(len(self.q), MAX_ROWS)
        return tree(self.parents, MAX_ROWS)

    def seen(self, row: int) -> list[int]:
        """The slots a row sees, by position."""
        depth, path = self.rows
        return [*range(self.length), *(self.length + path[row, : depth[row] + 1])]


def random_step(
    shape: Heads, m: int, length: int, seed: int = 0, parents: Sequence[int] | None = None
) -> Step:
    """Normal queries, keys and values: scores have a standard deviation of 1."""
    rng = np.random.default_rng(seed)

    def draw(rows: int, heads: int) -> Array:
        return rng.standard_normal((rows, heads, shape.size), np.float32)

    k, v = draw(length + m, shape.groups), draw(length + m, shape.groups)
    return Step(draw(m, shape.heads), k, v, length, None if parents is None else tuple(parents))


def int8(x: Array, group: int) -> tuple[Array, Array]:
    """Codes and scales of [slots, heads, size], scales [slots, heads, size / group]."""
    parts = x.reshape(*x.shape[:2], -1, group)
    top = np.abs(parts).max(-1)
    inverse = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
    codes = np.rint(parts * inverse[..., None]).astype(np.int8)
    return codes.reshape(x.shape), (top / np.float32(127)).astype(np.float32)


def arrays(low: Lowered, step: Step, tiles: int | None = None) -> tuple[dict[Buf, Array], int]:
    """Every buffer of the plan, and the number of tiles of 16 slots; what is not given is noise."""
    m, length = len(step.q), step.length
    tiles = tiles or -(-(length + m) // LANES)
    sizes = low.sizes(m, length, tiles)
    rng = np.random.default_rng(7)
    out: dict[Buf, Array] = {}
    for b in low.plan.bufs:
        shape = tuple(size_of(d, sizes) for d in b.buf.shape)
        out[b.buf] = rng.integers(-9, 9, shape).astype(b.buf.dtype.numpy)
    depth, path = step.rows
    ctx = low.ctx
    given = {ctx.depth: depth, ctx.path: path, low.q: step.q.reshape(m, -1)}
    for buf, x in given.items():
        if buf in out:
            out[buf][...] = x
    _fill_caches(low, step, out, tiles)
    return out, tiles


def _fill_caches(low: Lowered, step: Step, out: dict[Buf, Array], tiles: int) -> None:
    """K as [head, slot / 16, element, slot % 16], V as [head, element / 16, slot, element % 16]."""
    ctx, slots, used = low.ctx, tiles * LANES, len(step.k)
    for cache, scale, x, keys in (
        (ctx.k, ctx.k_scale, step.k, True),
        (ctx.v, ctx.v_scale, step.v, False),
    ):
        if cache.dtype == I8 and scale is not None:
            x, scales = int8(x, ctx.kv.group)
            out[scale][0, ..., :used] = scales.transpose(1, 2, 0)
        whole = np.full((slots, *x.shape[1:]), 3, np.float32)
        whole[:used] = x
        groups, size = x.shape[1:]
        if keys:
            laid = whole.reshape(tiles, LANES, groups, size).transpose(2, 0, 3, 1)
        else:
            laid = whole.reshape(slots, groups, size // LANES, LANES).transpose(1, 2, 0, 3)
        out[cache][0] = laid.astype(cache.dtype.numpy)


def reference(shape: Heads, step: Step) -> Array:
    """The definition, in float64 over the values that the cache holds: f64 [m, heads, size]."""
    k, v = (_held(shape, x).astype(np.float64) for x in (step.k, step.v))
    out = np.zeros(step.q.shape)
    per = shape.heads // shape.groups
    for row in range(len(step.q)):
        seen = step.seen(row)
        for head in range(shape.heads):
            scores = k[seen, head // per] @ step.q[row, head].astype(np.float64) * shape.scale
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v[seen, head // per] / weights.sum()
    return out


def _held(shape: Heads, x: Array) -> Array:
    """What the cache makes of f32 elements."""
    if shape.kv == "i8":
        group = KvShape(1, shape.groups, shape.size, I8).group
        codes, scale = int8(x, group)
        return codes * np.repeat(scale, group, axis=-1)
    return x.astype(KV_TYPES[shape.kv].numpy)
