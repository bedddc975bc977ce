"""An attention node while it is lowered: buffers and sizes that its kernels share."""

from __future__ import annotations

from dataclasses import dataclass

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.tile import LANES, Alloc, Axis, Buf, Map, Mem, Stmt
from speccc.ir.types import F16, F32, DType
from speccc.passes.lower_context import Context

ATTENTION: dict[str, DType | None] = {"f32": None, "f16": F16}
"""Numeric classes of attention -> the type that matrix engines multiply, if they may."""


@dataclass(frozen=True, slots=True)
class AttentionNode:
    """One attention of a step: its buffers, its layer of the cache, its heads and their size."""

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
    def engine(self) -> DType | None:
        """The type that matrix engines multiply here."""
        return ATTENTION[self.ctx.attention]

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


def zeroed(width: int) -> tuple[Buf, list[Stmt]]:
    """A tile f32 [width, 16] of zeros, and the statements that make it."""
    acc = Buf("acc", (width, LANES), F32, Mem.TILE)
    i, j = Var("i"), Var("j")
    return acc, [Alloc(acc), Map(acc, (i, j), (Axis(i, width), Axis(j, LANES)), ex.lit(0.0, F32))]


def cached(
    p: AttentionNode, index: tuple[Expr, ...], where: tuple[Expr, Expr, Expr], *, keys: bool
) -> Expr:
    """An element of the cache as f32; `where` is (KV head, element, slot) for its scale."""
    cache, scale = (p.ctx.k, p.ctx.k_scale) if keys else (p.ctx.v, p.ctx.v_scale)
    value = ex.cast(Load(cache, index), F32)
    if scale is None:
        return value
    head, element, slot = where
    group = ex.idiv(element, p.ctx.kv.group)
    return ex.mul(value, Load(scale, (p.layer, head, group, slot)))
