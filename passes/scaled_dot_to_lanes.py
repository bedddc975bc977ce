"""`ScaledDot` without a matrix instruction: invocations dot four codes at a time.

    for chunk of blocks: words = codes of the rows, four in an i32
           [barrier]  dots[block, row, column] = sum of dot4(words, weights), i32, one an invocation
           [barrier]  acc = fma(f32(dots), xs * ws, acc) block by block: the block level's order
Integer sums are exact, so the bits are those of the matrix instructions. Serves devices that have
none, and few rows, of which a matrix would be mostly empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.fragment import LaneFold, LaneMap
from speccc.ir.packed import BLOCK, PANEL, PackedMatrix
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, Red, ScaledDot, Stmt
from speccc.ir.types import I32
from speccc.passes.scaled_dot_to_fragment import accumulate, block_base

WORD = 4
"""Codes in an i32."""
WORDS = BLOCK // WORD
TOP_BITS = 0x80808080 - (1 << 32)
LOW_NIBBLES = 0x0F0F0F0F


@dataclass(frozen=True, slots=True)
class LaneTiles:
    """One kernel's SHARED tiles: `blocks` of k at once for `tokens` rows.

    `words` is i32 [blocks, tokens, 8], `dots` i32 [blocks, tokens, 16].
    """

    blocks: int
    tokens: int
    words: Buf
    dots: Buf

    @staticmethod
    def of(invocations: int, tokens: int) -> LaneTiles:
        """Tiles that give each invocation work even for one row."""
        blocks = max(1, invocations // PANEL)
        return LaneTiles(
            blocks,
            tokens,
            Buf("x_words", (blocks, tokens, WORDS), I32, Mem.SHARED),
            Buf("lane_dots", (blocks, tokens, PANEL), I32, Mem.SHARED),
        )

    def allocs(self) -> tuple[Stmt, ...]:
        """The tiles' allocations."""
        return (Alloc(self.words), Alloc(self.dots))


def lower_scaled_dot_to_lanes(
    s: ScaledDot, tiles: LaneTiles, live: Expr | None = None
) -> list[Stmt]:
    """The statements of one `ScaledDot`, without barriers; of its rows the first `live` exist."""
    height = s.acc.shape[0]
    if not isinstance(height, int) or height > tiles.tokens:
        raise UnsupportedError(f"scaled_dot into {s.acc.name}: its height is not a small number")
    rows: Expr | int = height if live is None else live
    chunk, u = Var("chunk"), Var("u")
    first = ex.mul(chunk, tiles.blocks)
    count: Expr | int = tiles.blocks
    if s.w.blocks % tiles.blocks:
        count = ex.minimum(ex.sub(s.w.blocks, first), tiles.blocks)
    i, j = Var("i"), Var("j")
    dot = Load(tiles.dots, (u, i, j))
    summed = accumulate(s, dot, (i, j), ex.add(first, u), 0, rows, lane_shift(s.w))
    body = (
        _words(s, tiles, first, count, rows),
        _dots(s, tiles, first, count, rows),
        For(u, 0, count, (summed,)),
    )
    return [For(chunk, 0, -(-s.w.blocks // tiles.blocks), body)]


def _words(
    s: ScaledDot, tiles: LaneTiles, first: Expr, count: Expr | int, rows: Expr | int
) -> Stmt:
    """Activations of the chunk, four to a word, the first in the lowest byte."""
    u, i, q = Var("u"), Var("i"), Var("q")
    row = ex.add(s.x.row, i)
    at = ex.add(ex.mul(ex.add(first, u), BLOCK), ex.mul(q, WORD))
    word: Expr | None = None
    for n in range(WORD):
        byte = ex.cast(Load(s.x.codes, (row, ex.add(at, n))), I32)
        byte = byte if n == WORD - 1 else ex.bit_and(byte, 255)
        byte = _binary(Fn.SHL, byte, 8 * n) if n else byte
        word = byte if word is None else Apply(Fn.OR, (word, byte), I32)
    axes = (Axis(u, count), Axis(i, rows), Axis(q, WORDS))
    return LaneMap(tiles.words, (u, i, q), axes, ex.lit(word or 0, I32))


def _dots(s: ScaledDot, tiles: LaneTiles, first: Expr, count: Expr | int, rows: Expr | int) -> Stmt:
    u, i, j, q = Var("u"), Var("i"), Var("j"), Var("q")
    weights = _weights(s.w, s.blob, block_base(s, ex.add(first, u)), j, q)
    value = Apply(Fn.DOT4, (Load(tiles.words, (u, i, q)), weights), I32)
    axes = (Axis(u, count), Axis(i, rows), Axis(j, PANEL))
    zero = ex.lit(0, I32)
    return LaneFold(tiles.dots, (u, i, j), axes, q, 0, WORDS, Red.SUM, zero, value)


def lane_shift(w: PackedMatrix) -> int:
    """What `_weights` takes off a code: 4-bit codes are small already, others are moved by 128."""
    return 0 if w.bits == WORD else 128


def _weights(w: PackedMatrix, blob: Buf, base: Expr, lane: Expr, q: Expr) -> Expr:
    """Codes 4q .. 4q + 3 of row `lane` of a block, as four signed bytes."""
    quads = WORDS * w.bits // 8
    at = ex.add(ex.mul(ex.mod(q, quads), WORD * PANEL), ex.mul(lane, WORD))
    word: Expr = LoadBytes(blob, ex.add(base, at), I32)
    if w.bits != WORD:
        return _binary(Fn.XOR, word, TOP_BITS)
    half = ex.cast(ex.mul(ex.idiv(q, quads), WORD), I32)
    return ex.bit_and(ex.shr(word, half), LOW_NIBBLES)


def _binary(fn: Fn, a: Expr, b: int) -> Expr:
    return Apply(fn, (a, ex.lit(b, a.dtype)), a.dtype)
