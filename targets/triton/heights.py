"""How many rows the tiles of a Triton text have.

A product reads its right side, weights or the cache, anew for each tile of rows. So tiles are as
high as all rows of a step of a few tokens, heads folded in, and what a step reads it reads once.
"""

from __future__ import annotations

from speccc.ir.expr import stride, variables
from speccc.ir.tile import Dot, RowTiles, ScaledDot, walk
from speccc.targets.triton.registers import clip_of

TOKENS = 16
"""Tokens of a step up to which all is read once."""
TALLEST = 128
"""Most rows of a tile, heads folded in: more would take the registers of 16 lanes."""


def heights(s: RowTiles, tokens: int) -> tuple[int, ...]:
    """Heights that row tiles are written for; the least that holds all rows is taken."""
    most = tokens
    if any(isinstance(t, (Dot, ScaledDot)) for _, body in s.variants for t in walk(body)):
        per = max((stride(s.extent, v) or 1 for v in variables(s.extent)), default=1)
        most = max(tokens, min(TALLEST, 1 << (TOKENS * per - 1).bit_length()))
    return tuple(tokens << n for n in range((most // tokens).bit_length()))


def height(s: RowTiles, tokens: int, extent: int) -> int:
    """The height of the tiles that so many rows are taken in."""
    if clip_of(s) is None:
        return 1
    sizes = heights(s, tokens)
    return next((n for n in sizes if extent <= n), sizes[-1])
