"""How many rows the tiles of a Triton text have.

A product reads its right side, weights or the cache, anew for each tile of rows. So tiles are as
high as all rows of a step of a few tokens, heads folded in, and what a step reads it reads once.
"""

from __future__ import annotations

from speccc.ir.expr import stride, variables
from speccc.ir.tile import Dot, RowTiles, ScaledDot, walk
from speccc.targets.triton.engine import by_engine, tokens_of
from speccc.targets.triton.registers import clip_of
from speccc.targets.triton.schedule import Shape

TOKENS = 16
"""Tokens of a step up to which all is read once."""
TALLEST = 128
"""Most rows of a tile, heads folded in: more would take the registers of 16 lanes."""


def heights(s: RowTiles, shape: Shape) -> tuple[int, ...]:
    """Heights that row tiles are written for; the least that holds all rows is taken."""
    tokens, bodies = shape.tokens, [t for _, body in s.variants for t in walk(body)]
    if shape.fp4 is not None and any(isinstance(t, ScaledDot) and is_fp4(t) for t in bodies):
        tokens = max(tokens, shape.fp4.tokens)
    tokens = max(tokens, *(tokens_of(t, shape) for t in bodies), 1)
    most = tokens
    if any(isinstance(t, (Dot, ScaledDot)) for t in bodies):
        per = max((stride(s.extent, v) or 1 for v in variables(s.extent)), default=1)
        most = max(tokens, min(TALLEST, 1 << (TOKENS * per - 1).bit_length()))
    least = 2 * tokens
    if shape.amd and most > tokens and any(by_engine(t) for t in bodies):
        least = shape.warps * tokens
        most = max(most, least)
    return (tokens, *(least << n for n in range((most // least).bit_length())))


def is_fp4(s: ScaledDot) -> bool:
    """Whether both sides are e2m1 with scales by 16, as matrix instructions for NVFP4 take them."""
    return s.x.groups == s.w.groups == 2


def height(s: RowTiles, shape: Shape, extent: int) -> int:
    """The height of the tiles that so many rows are taken in."""
    if clip_of(s) is None:
        return 1
    sizes = heights(s, shape)
    return next((n for n in sizes if extent <= n), sizes[-1])
