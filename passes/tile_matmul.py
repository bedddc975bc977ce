"""The middle of a matmul kernel: rows made ready once a worker, then panels times row tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.packed import FLOATS, PANEL, PackedMatrix, load_le
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Map,
    Mem,
    QuantRows,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)
from speccc.ir.types import BF16, E4M3, F16, F32, DType
from speccc.passes.quantize_fp4 import fp4_buffers, quantize_fp4, takes_fp4
from speccc.passes.quantize_rows import Element, Norm, load_row, quant_buffers, quantize_rows
from speccc.passes.round_rows import round_rows, rounded_buffers

INT8, NVFP4 = "int8", "nvfp4"
ROUNDED: dict[str, DType] = {"f16": F16, "bf16": BF16, "fp8": E4M3}
ACTIVATIONS = (INT8, NVFP4, *ROUNDED)
"""Numeric classes of the left operand. Those of `ROUNDED` are for weights of that type, which
matrix engines then multiply. Weights a class is not for take int8, or f32 if they are floats."""
WIDTHS = (8, 7, 6, 5, 4, 3, 2, 1)
"""Heights of row tiles: registers hold 8 accumulators beside a block of weights."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The left operand in a worker's own memory: int8 rows, float rows, or both.

    What is computed of quantised rows is still to be times a `factor` of each row, if there is one;
    of float rows times a `float_factor`. Float rows are values of `engine`, if there is one.
    """

    quant: QuantRows | None
    floats: Buf | None
    factor: Buf | None = None
    float_factor: Buf | None = None
    engine: DType | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A packed weight and its byte offset in the blob."""

    matrix: PackedMatrix
    blob: Buf
    offset: Expr


def prepare_rows(
    x: Element,
    norm: Norm | None,
    m: Expr,
    k: int,
    weights: Sequence[PackedMatrix],
    count: Expr | None = None,
    activations: str = INT8,
) -> tuple[Rows, list[Stmt]]:
    """Statements that fill the forms the weights need, of `count` rows (m unless given).

    Rows are as `activations` says where all weights of a kind take that, else int8 or f32.
    """
    out: list[Stmt] = []
    rows = m if count is None else count
    blocks = [w for w in weights if not w.is_float]
    q, factor = None, None
    if blocks and activations == NVFP4 and all(map(takes_fp4, blocks)):
        q, factor = fp4_buffers(m, k)
        out += quantize_fp4(x, norm, rows, k, q, factor)
    elif blocks:
        q = quant_buffers(m, k, halves=any(w.groups > 1 for w in blocks))
        out += quantize_rows(x, norm, rows, k, q)
    floats = [w for w in weights if w.is_float]
    engine = ROUNDED.get(activations)
    if floats and engine and all(FLOATS[w.format.name] == engine for w in floats):
        to = rounded_buffers(engine, m, k)
        out += round_rows(x, norm, rows, k, engine, to)
        return Rows(q, to[0], factor, to[1], engine), out
    buf = Buf("xf", (m, k), F32, Mem.SCRATCH) if floats else None
    if buf is not None:
        row = Var("r")
        out += [Alloc(buf), For(row, 0, rows, tuple(load_row(x, norm, row, k, buf, row)))]
    return Rows(q, buf, factor), out


def taken(activations: str, s: Stmt) -> bool:
    """Whether a statement multiplies rows of a class that was asked for."""
    if isinstance(s, Dot):
        return s.engine is not None and s.engine == ROUNDED.get(activations)
    return isinstance(s, ScaledDot) and activations == NVFP4 and s.x.groups > 1


def accumulate(
    name: str, width: int, rows: Rows, w: Operand, row: Expr, panel: Expr
) -> tuple[Buf, list[Stmt]]:
    """A [width, 16] tile holding rows row..row+width-1 times one panel, and how it is computed."""
    acc = Buf(name, (width, LANES), F32, Mem.TILE)
    i, j = Var("i"), Var("j")
    zero = Map(acc, (i, j), (Axis(i, width), Axis(j, LANES)), ex.lit(0.0, F32))
    out: list[Stmt] = [Alloc(acc), zero, _product(acc, rows, w, row, panel)]
    if w.matrix.format.row_scale:
        out.append(_scaled(acc, w, panel))
    factor = rows.float_factor if w.matrix.is_float else rows.factor
    if factor is not None:
        out.append(_by_row(acc, factor, row))
    return acc, out


def _by_row(acc: Buf, factor: Buf, row: Expr) -> Stmt:
    """Each row times its factor, as an fma for the same reason as in `_scaled`."""
    i, j = Var("i"), Var("j")
    own = Load(factor, (ex.add(row, i), ex.lit(0)))
    value = ex.fma(Load(acc, (i, j)), own, ex.lit(0.0, F32))
    return Map(acc, (i, j), (Axis(i, acc.shape[0]), Axis(j, LANES)), value)


def _scaled(acc: Buf, w: Operand, panel: Expr) -> Stmt:
    """Each column times the factor of its row of weights: an fma, so that no compiler contracts
    the product with a sum that follows."""
    i, j = Var("i"), Var("j")
    factor = w.matrix.row_factor(w.blob, w.offset, panel, j)
    value = ex.fma(Load(acc, (i, j)), factor, ex.lit(0.0, F32))
    axes = (Axis(i, acc.shape[0]), Axis(j, LANES))
    return Map(acc, (i, j), axes, value)


def _product(acc: Buf, rows: Rows, w: Operand, row: Expr, panel: Expr) -> Stmt:
    if w.matrix.is_float:
        if rows.floats is None:
            raise ValueError("float weights need float rows")
        i, j, k = Var("i"), Var("j"), Var("k")
        dtype = FLOATS[w.matrix.format.name]
        element = ex.add(ex.mul(k, PANEL), j)
        at = ex.add(w.offset, ex.mul(panel, w.matrix.panel_bytes))
        b = load_le(w.blob, ex.add(at, ex.mul(element, dtype.nbytes)), dtype)
        a = Load(rows.floats, (ex.add(row, i), k))
        return Dot(acc, i, j, k, 0, w.matrix.k, a, b, rows.engine)
    q = rows.quant
    if q is None:
        raise ValueError("quantised weights need quantised rows")
    return ScaledDot(acc, replace(q, row=row), w.matrix, w.blob, w.offset, panel)


Body = Callable[[int, Expr, Expr], list[Stmt]]
"""(tile height, first row, unit) -> statements."""


def units_by_rows(name: str, units: Expr | int, m: Expr, body: Body) -> Share:
    """Deals out units; within one, all rows in tiles."""
    unit, row = Var(name), Var("row")
    variants = tuple((width, tuple(body(width, row, unit))) for width in WIDTHS)
    return Share(unit, units, (RowTiles(row, m, variants),))
