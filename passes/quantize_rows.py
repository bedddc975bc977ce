"""The prologue of a matmul: rows of f32 activations, normalised if asked, as int8 blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.packed import BLOCK
from speccc.ir.tile import Alloc, Axis, Buf, For, Map, Mem, QuantRows, Red, Reduce, Stmt
from speccc.ir.types import F32, I8, I32

Element = Callable[[Expr, Expr], Expr]
"""(row, column) -> value."""


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS normalisation: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    weight: Callable[[Expr], Expr]
    eps: float


def quant_buffers(rows: Expr, k: int, *, halves: bool = False) -> QuantRows:
    """Worker-private buffers for `rows` quantised rows of k."""
    blocks = k // BLOCK
    return QuantRows(
        Buf("xq", (rows, k), I8, Mem.SCRATCH),
        Buf("xs", (rows, blocks), F32, Mem.SCRATCH),
        Buf("xi", (rows, blocks), I32, Mem.SCRATCH),
        Buf("xm", (rows, blocks), F32, Mem.SCRATCH),
        ex.lit(0),
        Buf("xh", (rows, 2 * blocks), I32, Mem.SCRATCH) if halves else None,
    )


def load_row(x: Element, norm: Norm | None, row: Expr, k: int, out: Buf, at: Expr) -> list[Stmt]:
    """Writes one (normalised) row to out[at, 0..k)."""
    c, r = Var("c"), Var("c")
    if norm is None:
        return [Map(out, (at, c), (Axis(c, k),), x(row, c))]
    square = Buf("square", (1,), F32, Mem.TILE)
    factor = Buf("factor", (1,), F32, Mem.TILE)
    zero = (ex.lit(0),)
    value = x(row, r)
    # The sum of a product and a constant would be contracted by some compilers: fma says it.
    mean = ex.fma(Load(square, zero), 1.0 / k, norm.eps)
    inverse = ex.div(ex.lit(1.0, F32), ex.unary(Fn.SQRT, mean))
    scaled = ex.mul(ex.mul(x(row, c), Load(factor, zero)), norm.weight(c))
    return [
        Alloc(square),
        Alloc(factor),
        Reduce(square, zero, Axis(r, k), Red.SUM, ex.mul(value, value)),
        Map(factor, zero, (), inverse),
        Map(out, (at, c), (Axis(c, k),), scaled),
    ]


def quantize_rows(x: Element, norm: Norm | None, rows: Expr, k: int, q: QuantRows) -> list[Stmt]:
    """Quantises rows 0..rows-1 into `q`.

    Per 32-block: scale = amax / 127; code = rint(x * (127 / amax)), 0 where amax is 0.
    """
    row, zero = Var("r"), ex.lit(0)
    line = Buf("line", (1, k), F32, Mem.SCRATCH)
    amax, inverse = (Buf(n, (1, k // BLOCK), F32, Mem.SCRATCH) for n in ("amax", "inverse"))
    body: list[Stmt] = []
    value = x
    if norm is not None:
        body += load_row(x, norm, row, k, line, zero)

        def value(_: Expr, c: Expr) -> Expr:
            return Load(line, (zero, c))

    body += _quantize_line(value, row, k, q, amax, inverse)
    lines = (line,) if norm is not None else ()
    mine = (q.codes, q.scale, q.sums, q.scaled_sums, q.halves, amax, inverse, *lines)
    return [*(Alloc(b) for b in mine if b), For(row, 0, rows, tuple(body))]


def _quantize_line(
    x: Element, row: Expr, k: int, q: QuantRows, amax: Buf, inverse: Buf
) -> list[Stmt]:
    """One row: what is one number a block is worked out for many blocks at a time."""
    zero, blocks, half = ex.lit(0), k // BLOCK, BLOCK // 2
    t, u = Var("t"), Var("t")
    d, s, z = (Axis(Var("b"), blocks) for _ in range(3))
    c, e, f, h = (Var("b") for _ in range(4))
    top = Load(amax, (zero, d.var))
    per_code = ex.select(ex.lt(ex.lit(0.0, F32), top), ex.div(ex.lit(127.0, F32), top), 0.0)
    scaled = ex.mul(x(row, _column(e, u)), Load(inverse, (zero, e)))
    code = ex.cast(ex.unary(Fn.RINT, scaled), I8)
    absolute = ex.unary(Fn.ABS, x(row, _column(c, t)))
    total = ex.cast(Load(q.sums, (row, z.var)), F32)
    scale = ex.div(Load(amax, (zero, s.var)), ex.lit(127.0, F32))
    out: list[Stmt] = [
        For(c, 0, blocks, (Reduce(amax, (zero, c), Axis(t, BLOCK), Red.MAX, absolute),)),
        Map(q.scale, (row, s.var), (s,), scale),
        Map(inverse, (zero, d.var), (d,), per_code),
        For(e, 0, blocks, (Map(q.codes, (row, _column(e, u)), (Axis(u, BLOCK),), code),)),
        For(f, 0, blocks, (_sum(q, q.sums, (row, f), ex.mul(f, BLOCK), BLOCK),)),
        Map(q.scaled_sums, (row, z.var), (z,), ex.mul(Load(q.scale, (row, z.var)), total)),
    ]
    if q.halves is not None:
        part = _sum(q, q.halves, (row, h), ex.mul(h, half), half)
        out.append(For(h, 0, k // half, (part,)))
    return out


def _column(block: Expr, lane: Expr) -> Expr:
    return ex.add(ex.mul(block, BLOCK), lane)


def _sum(q: QuantRows, dst: Buf, index: tuple[Expr, Expr], first: Expr, count: int) -> Stmt:
    """The sum of `count` codes of a row."""
    t = Var("t")
    code = Load(q.codes, (index[0], ex.add(first, t)))
    return Reduce(dst, index, Axis(t, count), Red.SUM, ex.cast(code, I32))
