"""A product of NVFP4 by NVFP4 as `tl.dot_scaled`, with the bits of the golden machine.

An instruction sums 64 products, four groups with a scale each, and rounds as it likes. So the
activations of three groups are zero each time: what is summed are 16 products times one scale, at
most 18 bits, which any f32 sum holds. The activations' scale comes by an fma, group after group, in
the order the IR fixes. Weights are read as they lie: a byte pairs a code of group 0 with one of
group 1, so all four scales of an instruction are those of the group at hand.
"""

from __future__ import annotations

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.packed import BLOCK, PANEL
from speccc.ir.tile import ScaledDot
from speccc.targets.triton.expr import Tiled
from speccc.targets.triton.heights import is_fp4
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.writer import Writer

PAIR = 2
"""Blocks of 32 in one instruction."""
GROUP_BYTES = 16
"""Bytes of a block: a code of each of its two groups in each."""
TWO = 0x40
"""2 as ue4m3: weights' codes and scales, and activations' codes, stand for halves and doubles."""
HELPER = '''@triton.jit
def e2m1(x):
    """The codes of numbers that are twice an e2m1."""
    a = tl.abs(x)
    size = tl.minimum(a, 4) + (a > 4).to(tl.int8) + (a > 6).to(tl.int8) + (a > 8).to(tl.int8)
    return (size + (x < 0).to(tl.int8) * 8).to(tl.uint8)
'''


def native(shape: Shape, s: ScaledDot, lanes: int, tokens: int) -> bool:
    """Whether a tile is as large as the matrix instruction; a smaller one takes int8."""
    fp4 = shape.fp4
    fits = fp4 is not None and lanes >= fp4.lanes and tokens >= fp4.tokens
    return fits and is_fp4(s) and s.w.blocks % PAIR == 0


def fp4_blocks(
    w: Writer, s: ScaledDot, at: tuple[Var, Var, Var], name: str, size: tuple[int, int]
) -> None:
    """The loop over pairs of blocks; `at` are token, lane and where a panel begins."""
    i, j, first = at
    b = Var("pair")
    base = ex.add(first, ex.mul(b, PAIR * s.w.block_bytes))
    w.inline |= w.shape.fp4 is not None and w.shape.fp4.inline
    raw = _codes(w, s, base, j)
    groups = [(half, g) for half in range(PAIR) for g in range(s.w.groups)]
    rows = {half: _rows(w, half) for half in range(PAIR)}
    row, lanes, tokens = ex.add(s.x.row, i), *size
    values: list[tuple[int, Expr, Expr, Expr]] = []
    for half, g in groups:
        block = ex.add(ex.mul(b, PAIR), half)
        column = ex.add(ex.mul(block, BLOCK), ex.add(rows[half], g * GROUP_BYTES))
        scale = base_of_scale(s, ex.add(base, half * s.w.block_bytes), j, g)
        codes_at = Load(s.x.codes, (row, column))
        values.append((g, codes_at, scale, s.x.scale_of(row, block, g)))
    two = w.let("two", f"tl.full(({tokens}, 4), {TWO}, tl.uint8).to(tl.float8e4nv, bitcast=True)")
    number = w.name("pair")
    w.move(b, number, raw, *(e for v in values for e in v[1:]))
    w.put(f"for {number} in range(0, {s.w.blocks // PAIR}):")
    w.depth += 1
    codes = w.let("codes", w.expr(raw, 2))
    for g, four, scale, own in values:
        x = f"e2m1({w.expr(four, 2)})" + (" << 4" if g else "")
        by = f"tl.broadcast_to({w.expr(scale, 2)}, ({lanes}, 4)).to(tl.float8e4nv, bitcast=True)"
        part = w.let("part", f'tl.dot_scaled({codes}, {by}, "e2m1", {x}, {two}, "e2m1")')
        w.put(f"{name} = tl.fma({part}, {w.expr(own, 2)}, {name})")


def base_of_scale(s: ScaledDot, base: Expr, lane: Var, group: int) -> Expr:
    """The byte of a scale."""
    at = s.w.code_bytes + group * s.w.scale_bytes
    return Load(s.blob, (ex.add(ex.add(base, at), lane),))


def _codes(w: Writer, s: ScaledDot, base: Expr, j: Var) -> Expr:
    """The bytes of two blocks' codes, [lanes, 32]."""
    column = Var("byte")
    w.env[column] = Tiled(w.let("byte", f"tl.arange(0, {PAIR * GROUP_BYTES})"), 1)
    block, byte = ex.idiv(column, GROUP_BYTES), ex.mod(column, GROUP_BYTES)
    quad = ex.add(ex.mul(block, s.w.block_bytes), ex.mul(ex.idiv(byte, 4), 4 * PANEL))
    return Load(s.blob, (ex.add(base, ex.add(quad, ex.add(ex.mul(j, 4), ex.mod(byte, 4)))),))


def _rows(w: Writer, half: int) -> Expr:
    """A column of a group along dimension 0, [32, 1]; live in one half, one block of the pair."""
    column = Var("column")
    name = w.let("column", f"tl.arange(0, {PAIR * GROUP_BYTES})")
    w.env[column] = Tiled(name, 0, f"({name} // {GROUP_BYTES} == {half})")
    return ex.mod(column, GROUP_BYTES)
