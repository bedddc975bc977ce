"""Rows of f32 activations rounded once to a type that matrix engines multiply.

Values stay f32, which holds them exactly: so a device without the type, or without an engine, sums
the same products. Rows of e4m3 have a factor each, which takes their largest element to 448.
"""

from __future__ import annotations

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.tile import Alloc, Axis, Buf, For, Map, Mem, Red, Reduce, Stmt
from speccc.ir.types import BF16, E4M3, F16, F32, I32, DType
from speccc.passes.quantize_rows import Element, Norm, load_row

F32_MANTISSA = 23
BF16_TOP = 255 * 2.0**120
E4M3_TOP, E4M3_NORMAL, E4M3_STEP = 448.0, 2.0**-6, 2.0**-9
"""The largest e4m3, the least normal one, and the step between those below it."""
LEAST = 1e-30
"""A row below this is zero: its inverse must be a number."""


def rounded(dtype: DType, x: Expr) -> Expr:
    """The nearest f16, bf16 or e4m3 of an f32, ties to even; what is too large becomes the top."""
    if dtype == F16:
        return ex.cast(ex.cast(x, F16), F32)
    top = BF16_TOP if dtype == BF16 else E4M3_TOP
    near = ex.maximum(ex.minimum(x, top), -top)
    size = ex.unary(Fn.ABS, near)
    if dtype == BF16:
        return ex.select(ex.lt(size, top), kept_mantissa(near, 7), near)
    if dtype != E4M3:
        raise ValueError(f"no rounding to {dtype}")
    small = ex.mul(ex.unary(Fn.RINT, ex.mul(near, 1 / E4M3_STEP)), E4M3_STEP)
    normal = ex.select(ex.lt(size, E4M3_NORMAL), small, kept_mantissa(near, 3))
    # The top and a NaN, whose bits must not be added to, are themselves.
    return ex.select(ex.lt(size, top), normal, near)


def kept_mantissa(x: Expr, bits: int) -> Expr:
    """An f32 rounded to so many bits of its mantissa, ties to even; no NaN."""
    less = F32_MANTISSA - bits
    raw = ex.bitcast(x, I32)
    half = ex.add(ex.bit_and(ex.shr(raw, less), 1), (1 << (less - 1)) - 1)
    return ex.bitcast(ex.bit_and(ex.add(raw, half), -(1 << less)), F32)


def rounded_buffers(dtype: DType, rows: Expr, k: int) -> tuple[Buf, Buf | None]:
    """Worker-private buffers for `rows` rows of k, and for the factors of e4m3 ones."""
    own = Buf(f"x_{dtype}", (rows, k), F32, Mem.SCRATCH)
    return own, Buf("xf8", (rows, 1), F32, Mem.SCRATCH) if dtype == E4M3 else None


def round_rows(
    x: Element, norm: Norm | None, rows: Expr, k: int, dtype: DType, to: tuple[Buf, Buf | None]
) -> list[Stmt]:
    """Rows 0..rows-1 (normalised if asked), over their factor if there is one, rounded."""
    (out, factor), row, c = to, Var("r"), Var("c")
    body = load_row(x, norm, row, k, out, row)
    value = Load(out, (row, c))
    if factor is None:
        body.append(Map(out, (row, c), (Axis(c, k),), rounded(dtype, value)))
    else:
        body += _scaled(out, row, k, factor)
    return [*(Alloc(b) for b in to if b), For(row, 0, rows, tuple(body))]


def _scaled(out: Buf, row: Expr, k: int, factor: Buf) -> list[Stmt]:
    """A row over its factor: 448 is the largest element, or all are zero."""
    zero = (ex.lit(0),)
    top, inverse = (Buf(n, (1,), F32, Mem.TILE) for n in ("row_top", "row_inverse"))
    c, t = Var("c"), Var("t")
    largest = Load(top, zero)
    some = ex.lt(ex.lit(LEAST, F32), largest)
    value = ex.mul(Load(out, (row, c)), Load(inverse, zero))
    return [
        Alloc(top),
        Alloc(inverse),
        Reduce(top, zero, Axis(t, k), Red.MAX, ex.unary(Fn.ABS, Load(out, (row, t)))),
        Map(factor, (row, ex.lit(0)), (), ex.select(some, ex.div(largest, E4M3_TOP), 0.0)),
        Map(inverse, zero, (), ex.select(some, ex.div(ex.lit(E4M3_TOP, F32), largest), 0.0)),
        Map(out, (row, c), (Axis(c, k),), rounded(E4M3, value)),
    ]
