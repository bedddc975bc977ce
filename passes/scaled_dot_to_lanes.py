"""`ScaledDot` without a matrix instruction: invocations dot four codes at a time.

    for chunk of blocks: words = codes of the rows, four in an i32
           [barrier]  dots[block, row, column] = sum of dot4(words, weights), i32, exact
           [barrier]  acc = fma(f32(dots), xs * ws, acc) block by block: the block level's order
A subgroup takes all columns of a panel, whose words lie side by side, and as many words of each as
it has invocations for: `split` of them share a column's sum. An invocation reads a word of weights
once for all rows, whose sums it keeps in registers. Integer sums are exact, so the bits are those
of the matrix instructions. Serves devices that have none, and few rows, of which a matrix would be
mostly empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.fragment import FoldRows, LaneMap, LaneScan, Workgroup
from speccc.ir.packed import BLOCK, PANEL, PackedMatrix, level_word
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, ScaledDot, Stmt
from speccc.ir.types import F32, I32, U32
from speccc.passes.scaled_dot_to_fragment import accumulated, block_base

WORD = 4
"""Codes in an i32."""
WORDS = BLOCK // WORD
TOP_BITS = 0x80808080 - (1 << 32)
LOW_NIBBLES = 0x0F0F0F0F
LOW_BITS = 0x01010101
HELD = 64
"""Blocks times rows that are staged at once: 6 KiB of words and dots."""


@dataclass(frozen=True, slots=True)
class LaneTiles:
    """One kernel's SHARED tiles: at most `blocks` of k at once for `tokens` rows.

    `words` is i32 [blocks, tokens, 8], `dots` i32 [blocks * groups, tokens, 16]; `split`
    invocations share a column.
    """

    blocks: int
    tokens: int
    groups: int
    split: int
    words: Buf
    dots: Buf

    @staticmethod
    def of(group: Workgroup, tokens: int, groups: int = 1, split: int | None = None) -> LaneTiles:
        """Tiles that give each invocation work even for one row; `split` by the subgroup's size."""
        split = split or lane_split(group.subgroup)
        blocks = max(HELD // tokens, group.invocations // (PANEL * split))
        return LaneTiles(
            blocks,
            tokens,
            groups,
            split,
            Buf("x_words", (blocks, tokens, WORDS), I32, Mem.SHARED),
            Buf("lane_dots", (blocks * groups, tokens, PANEL), I32, Mem.SHARED),
        )

    def allocs(self) -> tuple[Stmt, ...]:
        """The tiles' allocations."""
        return (Alloc(self.words), Alloc(self.dots))


def lane_split(subgroup: int) -> int:
    """Invocations for a column, so that a subgroup reads a panel's 16 columns side by side."""
    return min(WORDS // 2, max(1, subgroup // PANEL))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Blocks first..first+count-1 of one `ScaledDot`, and how many rows there are."""

    s: ScaledDot
    tiles: LaneTiles
    first: Expr
    count: Expr | int
    rows: Expr | int

    @property
    def groups(self) -> Expr | int:
        """Scales of a row in the chunk."""
        one = self.tiles.groups == 1
        return self.count if one else ex.mul(ex.lit(self.count), self.tiles.groups)

    def split(self, v: Expr) -> tuple[Expr, Expr | int]:
        """(block in the chunk, group of the block) of scale v."""
        groups = self.tiles.groups
        return (v, 0) if groups == 1 else (ex.idiv(v, groups), ex.mod(v, groups))


def lower_scaled_dot_to_lanes(
    s: ScaledDot, tiles: LaneTiles, live: Expr | None = None
) -> list[Stmt]:
    """The statements of one `ScaledDot`, without barriers; of its rows the first `live` exist."""
    height = s.acc.shape[0]
    if not isinstance(height, int) or (live is None and height > tiles.tokens):
        raise UnsupportedError(f"scaled_dot into {s.acc.name}: its height is not a small number")
    chunk, chunks = Var("chunk"), -(-s.w.blocks // tiles.blocks)
    size = -(-s.w.blocks // chunks)
    first = ex.mul(chunk, size)
    count: Expr | int = size
    if s.w.blocks % size:
        count = ex.minimum(ex.sub(s.w.blocks, first), size)
    part = _Chunk(s, tiles, first, count, height if live is None else live)
    return [For(chunk, 0, chunks, (_words(part), _dots(part), _accumulate(part)))]


def _words(part: _Chunk) -> Stmt:
    """Activations of the chunk, four to a word, the first in the lowest byte."""
    s, u, i, q = part.s, Var("u"), Var("i"), Var("q")
    row = ex.add(s.x.row, i)
    at = ex.add(ex.mul(ex.add(part.first, u), BLOCK), ex.mul(q, WORD))
    word: Expr | None = None
    for n in range(WORD):
        byte = ex.cast(Load(s.x.codes, (row, ex.add(at, n))), I32)
        byte = byte if n == WORD - 1 else ex.bit_and(byte, 255)
        byte = _binary(Fn.SHL, byte, 8 * n) if n else byte
        word = byte if word is None else Apply(Fn.OR, (word, byte), I32)
    axes = (Axis(u, part.count), Axis(i, part.rows), Axis(q, WORDS))
    return LaneMap(part.tiles.words, (u, i, q), axes, ex.lit(word or 0, I32))


def _dots(part: _Chunk) -> Stmt:
    """One sum for each scale, row and column; a term is a word of weights."""
    s, tiles = part.s, part.tiles
    v, i, j, q = (Var(n) for n in "vijq")
    u, group = part.split(v)
    terms, held, words = _weights(s, block_base(s, ex.add(part.first, u)), j, q, group)
    value: Expr | None = None
    for word, codes in words:
        dot = Apply(Fn.DOT4, (Load(tiles.words, (u, i, word)), codes), I32)
        value = dot if value is None else ex.add(value, dot)
    axes, rows = (Axis(v, part.groups), Axis(j, PANEL)), Axis(i, part.rows)
    dst, index = tiles.dots, (v, i, j)
    total = ex.lit(value or 0, I32)
    return FoldRows(dst, index, axes, rows, tiles.tokens, q, 0, terms, tiles.split, held, total)


def _accumulate(part: _Chunk) -> Stmt:
    """acc takes in the dots, scale by scale."""
    s, v, i, j = part.s, Var("v"), Var("i"), Var("j")
    u, group = part.split(v)
    total, dot = Var("sum", F32), Load(part.tiles.dots, (v, i, j))
    block = ex.add(part.first, u)
    value = accumulated(s, dot, (i, j), block, total, lane_shift(s.w), group)
    axes = (Axis(i, part.rows), Axis(j, PANEL))
    return LaneScan(s.acc, (i, j), axes, v, 0, part.groups, total, Load(s.acc, (i, j)), value)


def lane_shift(w: PackedMatrix) -> int:
    """What `_weights` takes off a code: 4-bit codes are small already, others are moved by 128."""
    return 0 if w.bits == WORD else 128


Held = tuple[tuple[Var, Expr], ...]


def _weights(
    s: ScaledDot, base: Expr, lane: Expr, q: Expr, group: Expr | int
) -> tuple[int, Held, list[tuple[Expr, Expr]]]:
    """How many words a column has for one scale; word q; and which words of the rows meet it.

    Each of these with four codes as signed bytes. 4-bit codes come in pairs of words: those of
    the low nibbles and those of the high ones, which are groups where a block has two.
    """
    w, codes = s.w, Var("codes", I32)
    if w.bits != WORD:
        terms = WORDS // w.groups
        word = ex.add(ex.mul(ex.lit(group), terms), q)
        load = _binary(Fn.XOR, _word(s, base, lane, word), TOP_BITS)
        return terms, ((codes, load),), [(word, codes)]
    half = WORDS // 2
    load = _word(s, base, lane, q)
    if w.groups > 1:
        shift = ex.cast(ex.mul(ex.lit(group), WORD), I32)
        four = _signed(w, ex.bit_and(ex.shr(load, shift), LOW_NIBBLES))
        return half, ((codes, four),), [(ex.add(ex.mul(ex.lit(group), half), q), codes)]
    low, high = Var("low", I32), Var("high", I32)
    held: Held = (
        (codes, load),
        (low, _signed(w, ex.bit_and(codes, LOW_NIBBLES))),
        (high, _signed(w, ex.bit_and(ex.shr(codes, WORD), LOW_NIBBLES))),
    )
    return half, held, [(q, low), (ex.add(q, half), high)]


def _word(s: ScaledDot, base: Expr, lane: Expr, word: Expr) -> Expr:
    at = ex.add(ex.mul(word, WORD * PANEL), ex.mul(lane, WORD))
    return LoadBytes(s.blob, ex.add(base, at), I32)


def _signed(w: PackedMatrix, codes: Expr) -> Expr:
    return _levels(w.format.levels, codes) if w.format.levels else codes


def _levels(levels: tuple[int, ...], codes: Expr) -> Expr:
    """The levels of four codes, as signed bytes: no zero has a sign, so no byte carries."""
    sizes: Expr = ex.lit(0, I32)
    for n in range(WORD):
        shift = ex.mul(ex.bit_and(ex.shr(codes, 8 * n), 7), WORD)
        size = ex.bit_and(ex.shr(level_word(levels), shift), 15)
        sizes = Apply(Fn.OR, (sizes, _binary(Fn.SHL, size, 8 * n)), I32) if n else size
    sign = ex.bit_and(ex.shr(codes, 3), LOW_BITS)
    # The highest byte takes the product past the largest i32, which C++ gives no meaning.
    ones = ex.cast(ex.mul(ex.cast(sign, U32), 255), I32)
    return ex.add(Apply(Fn.XOR, (sizes, ones), I32), sign)


def _binary(fn: Fn, a: Expr, b: int) -> Expr:
    return Apply(fn, (a, ex.lit(b, a.dtype)), a.dtype)
