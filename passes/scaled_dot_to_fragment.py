"""`ScaledDot` -> matrix instructions that are exact: one 32-wide block of k after the other.

    for b: wt = codes of the panel, xt = codes of the rows (rows past the tile zero)
           [barrier]  dots = xt @ wt^T in fragments
           [barrier]  acc = fma(f32(dots), xs * ws, acc), then the minimum: the block level's order
Where a block has several scales, the product and the sum are repeated for each group of columns;
an instruction that takes more columns than a group has gets zeros for the others.
Tokens lie on the instruction's narrow side: as its rows when m <= n, else as its columns.
Where a matrix engine has no integers, f16 * f16 -> f32 is as good: codes lie in -128..127, which a
half holds, and every partial sum of 32 products in -2^19..2^19, which an f32 holds, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.fragment import (
    FragLoad,
    Fragment,
    FragMma,
    FragStore,
    FragZero,
    LaneMap,
    MmaShape,
    Role,
    Subgroups,
)
from speccc.ir.packed import BLOCK, PANEL, PackedMatrix
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, ScaledDot, Stmt
from speccc.ir.types import F16, F32, I8, I32, DType

I8_RANGE = range(-128, 128)
EXACT: dict[tuple[DType, DType], DType] = {(I8, I8): I32, (F16, F16): F32}
"""Operands -> accumulator that holds every sum of a block of codes."""


@dataclass(frozen=True, slots=True)
class Staging:
    """One kernel's SHARED tiles: rows [height, 32], weights [columns, 32], their product.

    The product is [height, columns]; types are the instruction's. `tokens` is the side of one
    fragment, of which `height` has several; `columns` is the other side, at least a panel's.
    """

    shape: MmaShape
    tokens: int
    height: int
    columns: int
    x: Buf
    w: Buf
    dots: Buf

    @staticmethod
    def of(shape: MmaShape, rows: int = 1) -> Staging:
        """Tiles for `shape` that hold `rows`; UnsupportedError when it cannot serve."""
        if EXACT.get((shape.a, shape.b)) != shape.acc:
            raise UnsupportedError(f"{shape}: scaled_dot needs i8*i8->i32 or f16*f16->f32")
        tokens, side = min(shape.m, shape.n), max(shape.m, shape.n)
        if BLOCK % shape.k or (PANEL % side and side % PANEL):
            raise UnsupportedError(f"{shape}: does not tile blocks of {BLOCK} by {PANEL} rows")
        columns, height = max(side, PANEL), -(-rows // tokens) * tokens
        return Staging(
            shape,
            tokens,
            height,
            columns,
            Buf("x_tile", (height, BLOCK), shape.a, Mem.SHARED),
            Buf("w_tile", (columns, BLOCK), shape.b, Mem.SHARED),
            Buf("dots", (height, columns), shape.acc, Mem.SHARED),
        )

    @property
    def rows_are_tokens(self) -> bool:
        """Whether operand a is the activations."""
        return self.shape.m <= self.shape.n

    @property
    def fragments(self) -> int:
        """Fragments across the columns."""
        return self.columns // max(self.shape.m, self.shape.n)

    def allocs(self) -> tuple[Stmt, ...]:
        """The tiles' allocations."""
        return (Alloc(self.x), Alloc(self.w), Alloc(self.dots))


def lower_scaled_dot(s: ScaledDot, tiles: Staging, live: Expr | None = None) -> list[Stmt]:
    """The statements of one `ScaledDot`, without barriers; of its rows the first `live` exist."""
    height = s.acc.shape[0]
    if not isinstance(height, int) or height > tiles.height:
        raise UnsupportedError(f"scaled_dot into {s.acc.name}: more than {tiles.height} rows")
    b, i, j = Var("b"), Var("i"), Var("j")
    rows: Expr | int = height if live is None else live
    dot, shift = ex.cast(Load(tiles.dots, (i, j)), I32), code_shift(s.w)
    axes = (Axis(i, rows), Axis(j, PANEL))
    body: list[Stmt] = []
    for group, (held, used) in enumerate(_spans(s.w, tiles.shape.k)):
        if len(held) < BLOCK or group == 0:
            body.append(_weights(s, tiles, block_base(s, b), held))
        if group == 0:
            body.append(_rows(s, tiles, b, rows))
        body.append(_multiply(tiles, used, rows))
        value = accumulated(s, dot, (i, j), b, Load(s.acc, (i, j)), shift, group)
        body.append(LaneMap(s.acc, (i, j), axes, value))
    return [For(b, 0, s.w.blocks, tuple(body))]


def fragments(tokens: int, height: int, rows: Expr | int) -> Expr | int:
    """Fragments of `tokens` rows that hold `rows` of at most `height`."""
    if isinstance(rows, int):
        return -(-rows // tokens)
    return 1 if height == tokens else ex.idiv(ex.add(rows, tokens - 1), tokens)


def below(read: Callable[[Expr], Expr], at: Expr, live: Expr | int, staged: Expr | int) -> Expr:
    """`read(at)` for places below `live`, zero for those that fill up what is staged."""
    if live == staged:
        return read(at)
    return ex.select(ex.lt(at, live), read(ex.minimum(at, ex.sub(ex.lit(live), 1))), 0)


def _spans(w: PackedMatrix, k: int) -> list[tuple[range, range]]:
    """For each scale of a block: the columns whose codes are staged, and those multiplied."""
    groups = [range(at, at + w.format.group) for at in range(0, BLOCK, w.format.group)]
    block = range(BLOCK)
    return [(block, g) if w.format.group % k == 0 else (g, block) for g in groups]


def block_base(s: ScaledDot, block: Expr) -> Expr:
    """The byte at which a block of the panel begins."""
    panel = ex.add(s.offset, ex.mul(s.panel, s.w.panel_bytes))
    return ex.add(panel, ex.mul(block, s.w.block_bytes))


def code_shift(w: PackedMatrix) -> int:
    """What is taken off a code so that it fits i8: the zero point where that will do."""
    zero = w.format.zero_point
    top = 2**w.bits - 1 - zero
    return zero if -zero in I8_RANGE and top in I8_RANGE else 128


def _weights(s: ScaledDot, tiles: Staging, base: Expr, held: range) -> Stmt:
    """Panel codes of block b, moved into i8; rows past the panel and other columns are zero."""
    j, t = Var("j"), Var("t")
    lane = ex.mod(j, PANEL) if tiles.columns > PANEL else j
    less = code_shift(s.w) - s.w.format.zero_point
    code = ex.cast(s.w.integer(s.blob, base, lane, t, less), tiles.w.dtype)
    if len(held) < BLOCK:
        code = ex.select(ex.eq(ex.idiv(t, len(held)), held.start // len(held)), code, 0)
    if tiles.columns > PANEL:
        code = ex.select(ex.lt(j, PANEL), code, 0)
    return LaneMap(tiles.w, (j, t), (Axis(j, tiles.columns), Axis(t, BLOCK)), code)


def _rows(s: ScaledDot, tiles: Staging, b: Var, rows: Expr | int) -> Stmt:
    """Activations of block b; rows that fill up the last fragment are zero."""
    i, t = Var("i"), Var("t")
    column = ex.add(ex.mul(b, BLOCK), t)
    filled = fragments(tiles.tokens, tiles.height, rows)
    staged = filled * tiles.tokens if isinstance(filled, int) else ex.mul(filled, tiles.tokens)

    def code(row: Expr) -> Expr:
        return ex.cast(Load(s.x.codes, (ex.add(s.x.row, row), column)), tiles.x.dtype)

    axes = (Axis(i, staged), Axis(t, BLOCK))
    return LaneMap(tiles.x, (i, t), axes, below(code, i, rows, staged))


def _multiply(tiles: Staging, used: range, rows: Expr | int) -> Stmt:
    """dots = x_tile @ w_tile^T, the fragments dealt out to the subgroups."""
    shape, unit = tiles.shape, Var("part")
    a, b, acc = (Fragment(f"frag_{r.value}", r, shape) for r in Role)
    filled = fragments(tiles.tokens, tiles.height, rows)
    units, row, column = dealt(unit, filled, tiles.fragments, shape)
    left, right = (row, column) if tiles.rows_are_tokens else (column, row)
    x_w = (tiles.x, tiles.w) if tiles.rows_are_tokens else (tiles.w, tiles.x)
    body: list[Stmt] = [FragZero(acc)]
    for k in range(used.start, used.stop, shape.k):
        body += [
            FragLoad(a, x_w[0], (left, ex.lit(k))),
            FragLoad(b, x_w[1], (right, ex.lit(k)), transposed=True),
            FragMma(acc, a, b),
        ]
    body.append(FragStore(acc, tiles.dots, (row, column), transposed=not tiles.rows_are_tokens))
    return Subgroups(unit, units, tuple(body))


def dealt(
    unit: Expr, filled: Expr | int, many: int, shape: MmaShape
) -> tuple[Expr | int, Expr, Expr]:
    """How many units `filled` by `many` fragments are, and the first row and column of one."""
    tokens, side = min(shape.m, shape.n), max(shape.m, shape.n)
    units = filled * many if isinstance(filled, int) else ex.mul(filled, many)
    if filled == 1:
        return units, ex.lit(0), ex.mul(unit, side)
    if many == 1:
        return units, ex.mul(unit, tokens), ex.lit(0)
    row, column = ex.idiv(unit, many), ex.mod(unit, many)
    return units, ex.mul(row, tokens), ex.mul(column, side)


def accumulated(
    s: ScaledDot,
    dot: Expr,
    at: tuple[Expr, Expr],
    block: Expr,
    total: Expr,
    shift: int,
    group: Expr | int = 0,
) -> Expr:
    """`total` and a group's part of acc[row, column] (`at`) by the block level's formula.

    `dot` is the i32 dot with codes less `shift`. A minimum's term follows the scale's.
    """
    row, j = at
    token = ex.add(s.x.row, row)
    base = block_base(s, block)
    rest = shift - s.w.format.zero_point
    if rest:
        dot = ex.add(dot, ex.mul(Load(s.x.sums, (token, block)), rest))
    scale = ex.mul(s.x.scale_of(token, block, group), s.w.scale(s.blob, base, j, group))
    value = ex.fma(ex.cast(dot, F32), scale, total)
    if s.w.format.has_min:  # such formats have one scale a block
        minimum = s.w.minimum(s.blob, base, j)
        value = ex.fma(minimum, Load(s.x.scaled_sums, (token, block)), value)
    return value
