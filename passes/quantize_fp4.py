"""Rows of f32 activations as NVFP4: e2m1 codes, a ue4m3 scale for every 16, an f32 factor a row.

NVIDIA's recipe: the factor takes the row's largest element to 6 * 448, the largest e2m1 times the
largest ue4m3. Twice an e2m1 is an integer, so codes are kept as int8 and any int8 dot is exact; a
scale is kept at half its value instead. A dot of 16 times both scales has at most 20 bits: a matrix
instruction for NVFP4, whatever its order, makes the same f32.
"""

from __future__ import annotations

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.formats import E2M1_TWICE
from speccc.ir.packed import BLOCK, PackedMatrix
from speccc.ir.tile import Alloc, Axis, Buf, For, Map, Mem, QuantRows, Red, Reduce, Stmt
from speccc.ir.types import F32, I8, I32
from speccc.passes.quantize_rows import Element, Norm, load_row
from speccc.passes.round_rows import E4M3_NORMAL, E4M3_STEP, LEAST, kept_mantissa

GROUP = 16
"""Codes that share a scale."""
E2M1_TOP, UE4M3_TOP = 6.0, 448.0
TOP = E2M1_TOP * UE4M3_TOP


def fp4_buffers(rows: Expr, k: int) -> tuple[QuantRows, Buf]:
    """Worker-private buffers for `rows` rows of k, and for their factors f32 [rows, 1]."""
    blocks, groups = k // BLOCK, BLOCK // GROUP
    rows_ = QuantRows(
        Buf("xq", (rows, k), I8, Mem.SCRATCH),
        Buf("xs", (rows, groups * blocks), F32, Mem.SCRATCH),
        Buf("xi", (rows, blocks), I32, Mem.SCRATCH),
        Buf("xm", (rows, blocks), F32, Mem.SCRATCH),
        ex.lit(0),
        Buf("xh", (rows, groups * blocks), I32, Mem.SCRATCH),
        groups,
    )
    return rows_, Buf("xf4", (rows, 1), F32, Mem.SCRATCH)


def takes_fp4(w: PackedMatrix) -> bool:
    """Whether a weight is of twice an e2m1 with a scale for every 16, as such rows are."""
    return w.format.levels == E2M1_TWICE and w.format.group == GROUP


def quantize_fp4(
    x: Element, norm: Norm | None, rows: Expr, k: int, q: QuantRows, factor: Buf
) -> list[Stmt]:
    """Quantises rows 0..rows-1 into `q` and `factor`."""
    row, line = Var("r"), Buf("line", (1, k), F32, Mem.SCRATCH)
    body = load_row(x, norm, row, k, line, ex.lit(0))
    body += _quantize_line(line, row, k, q, factor)
    mine = (q.codes, q.scale, q.sums, q.scaled_sums, q.halves, factor, line)
    return [*(Alloc(b) for b in mine if b), For(row, 0, rows, tuple(body))]


def _quantize_line(line: Buf, row: Expr, k: int, q: QuantRows, factor: Buf) -> list[Stmt]:
    """Quantises line[0, 0..k) into one row of `q`; `factor` is what its values are times."""
    zero = (ex.lit(0),)
    top, inverse = (Buf(n, (1,), F32, Mem.TILE) for n in ("row_top", "row_inverse"))
    c = Var("c")
    largest = Load(top, zero)
    some = ex.lt(ex.lit(LEAST, F32), largest)
    return [
        Alloc(top),
        Alloc(inverse),
        Reduce(top, zero, Axis(c, k), Red.MAX, ex.unary(Fn.ABS, Load(line, (ex.lit(0), c)))),
        Map(factor, (row, ex.lit(0)), (), ex.select(some, ex.div(largest, TOP), 0.0)),
        Map(inverse, zero, (), ex.select(some, ex.div(ex.lit(TOP, F32), largest), 0.0)),
        *_groups(line, row, k, q, Load(inverse, zero)),
        *_sums(row, k, q),
    ]


def _groups(line: Buf, row: Expr, k: int, q: QuantRows, inverse: Expr) -> list[Stmt]:
    """Scales, codes and sums of codes, 16 at a time."""
    h, t, u, v, zero = Var("h"), Var("t"), Var("t"), Var("t"), (ex.lit(0),)
    amax, scale, each = (Buf(n, (1,), F32, Mem.TILE) for n in ("amax", "group_scale", "per_code"))

    def at(lane: Expr) -> Expr:
        return ex.add(ex.mul(h, GROUP), lane)

    rounded = ue4m3(ex.div(ex.mul(Load(amax, zero), inverse), E2M1_TOP))
    own = Load(scale, zero)
    # x / (factor * scale), doubled.
    per_code = ex.select(ex.lt(ex.lit(0.0, F32), own), ex.div(ex.mul(inverse, 2.0), own), 0.0)
    code = e2m1_twice(ex.mul(Load(line, (ex.lit(0), at(u))), Load(each, zero)))
    absolute = ex.unary(Fn.ABS, Load(line, (ex.lit(0), at(t))))
    total = ex.cast(Load(q.codes, (row, at(v))), I32)
    if q.halves is None:
        raise ValueError("rows of NVFP4 have sums by 16 codes")
    body: tuple[Stmt, ...] = (
        Reduce(amax, zero, Axis(t, GROUP), Red.MAX, absolute),
        Map(scale, zero, (), rounded),
        Map(each, zero, (), per_code),
        Map(q.scale, (row, h), (), ex.mul(own, 0.5)),
        Map(q.codes, (row, at(u)), (Axis(u, GROUP),), ex.cast(code, I8)),
        Reduce(q.halves, (row, h), Axis(v, GROUP), Red.SUM, total),
    )
    return [Alloc(amax), Alloc(scale), Alloc(each), For(h, 0, k // GROUP, body)]


def _sums(row: Expr, k: int, q: QuantRows) -> list[Stmt]:
    """Sums of 32 codes; no weight of levels has minima, whose sums are left at zero."""
    b, t, z, blocks = Var("b"), Var("t"), Var("b"), k // BLOCK
    code = Load(q.codes, (row, ex.add(ex.mul(b, BLOCK), t)))
    total = Reduce(q.sums, (row, b), Axis(t, BLOCK), Red.SUM, ex.cast(code, I32))
    return [
        For(b, 0, blocks, (total,)),
        Map(q.scaled_sums, (row, z), (Axis(z, blocks),), ex.lit(0.0, F32)),
    ]


def e2m1_twice(x: Expr) -> Expr:
    """The nearest of 0 1 2 3 4 6 8 12 with x's sign, ties to even codes; x is twice the value."""
    size = ex.unary(Fn.ABS, x)
    fine = ex.unary(Fn.RINT, x)
    middle = ex.mul(ex.unary(Fn.RINT, ex.mul(x, 0.5)), 2.0)
    coarse = ex.mul(ex.unary(Fn.RINT, ex.mul(x, 0.25)), 4.0)
    most = ex.maximum(ex.minimum(coarse, 12.0), -12.0)
    return ex.select(ex.lt(size, 4.0), fine, ex.select(ex.lt(size, 8.0), middle, most))


def ue4m3(x: Expr) -> Expr:
    """The nearest ue4m3 of an x that is not negative, ties to even, as f32."""
    top = ex.minimum(x, UE4M3_TOP)
    small = ex.mul(ex.unary(Fn.RINT, ex.mul(top, 1 / E4M3_STEP)), E4M3_STEP)
    return ex.select(ex.lt(top, E4M3_NORMAL), small, kept_mantissa(top, 3))
