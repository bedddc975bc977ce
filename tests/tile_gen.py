"""Random block-level kernels that verify, with arrays to run them on.

Every kernel has one size `m` and writes one output, shared out by rows or by panels. Values stay
finite by construction: divisors are positive, exponents are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.formats import FORMATS
from speccc.ir.packed import PackedMatrix, load_le
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Mem,
    Red,
    Reduce,
    RowTiles,
    Share,
    Stmt,
)
from speccc.ir.tile_text import print_kernel
from speccc.ir.types import BF16, F16, F32, I8, I32, U8, DType
from speccc.passes.lower_region import add_floats
from speccc.passes.quantize_rows import Norm
from speccc.passes.tile_matmul import Operand, accumulate, prepare_rows

WIDTHS = ((1,), (2, 1), (3, 2, 1), (4, 2, 1), (8, 4, 2, 1), (5, 3, 2, 1), (7, 4, 3, 2, 1))
SIZES = (1, 3, 17)
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Program:
    """A kernel, its size, and for each buffer how to fill it."""

    kernel: Kernel
    m: Var
    out: Buf
    weights: tuple[tuple[Buf, PackedMatrix], ...] = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(print_kernel(self.kernel))

    def arrays(self, m: int, seed: int) -> dict[Buf, Array]:
        """Random contents; weights are packed, bytes are small f16 and bf16."""
        rng = np.random.default_rng(seed)
        packed = dict(self.weights)
        out: dict[Buf, Array] = {}
        for b in self.kernel.bufs:
            shape = tuple(m if isinstance(d, Var) else int(d) for d in b.shape)  # type: ignore[arg-type]
            if b in packed:
                w = packed[b]
                values = rng.standard_normal((w.rows, w.k)).astype(np.float32)
                out[b] = w.pack(w.format.encode(values).reshape(-1)).reshape(shape)
            elif b.dtype == U8:
                halves = rng.standard_normal(shape[0] // 2).astype(np.float16)
                out[b] = halves.view(np.uint8)
            elif b.dtype in (F32, F16):
                out[b] = rng.standard_normal(shape).astype(b.dtype.numpy)
            else:
                out[b] = rng.integers(-100, 100, shape).astype(b.dtype.numpy)
        return out


def f32(value: float) -> Expr:
    """A float constant."""
    return ex.lit(value, F32)


def bounded(x: Expr) -> Expr:
    """x in -20..20."""
    return ex.minimum(ex.maximum(x, -20.0), 20.0)


UNARY = {
    "neg": lambda x: ex.unary(Fn.NEG, x),
    "abs": lambda x: ex.unary(Fn.ABS, x),
    "rint": lambda x: ex.unary(Fn.RINT, ex.mul(x, f32(3.7))),
    "sqrt": lambda x: ex.unary(Fn.SQRT, ex.unary(Fn.ABS, x)),
    "exp": lambda x: ex.unary(Fn.EXP, bounded(x)),
    "far exp": lambda x: ex.unary(Fn.EXP, ex.minimum(ex.mul(bounded(x), f32(-5.5)), 80.0)),
    "f16": lambda x: ex.cast(ex.cast(bounded(x), F16), F32),
    "i8": lambda x: ex.cast(ex.cast(ex.mul(bounded(x), f32(6.3)), I8), F32),
    "i32": lambda x: ex.cast(ex.cast(ex.mul(bounded(x), f32(1e4)), I32), F32),
    "bits": lambda x: ex.bitcast(ex.bit_and(ex.bitcast(bounded(x), I32), ~0xFFF), F32),
}
BINARY = {
    "add": add_floats,
    "sub": lambda a, b: add_floats(a, ex.unary(Fn.NEG, b)),
    "mul": lambda a, b: ex.mul(bounded(a), bounded(b)),
    "div": lambda a, b: ex.div(a, ex.add(ex.unary(Fn.ABS, b), f32(0.5))),
    "max": ex.maximum,
    "min": ex.minimum,
    "select": lambda a, b: ex.select(ex.lt(a, b), BINARY["fma"](a, b), ex.maximum(b, -1e9)),
    "fma": lambda a, b: ex.fma(bounded(a), bounded(b), f32(0.125)),
}


@st.composite
def values(draw: st.DrawFn, leaves: list[Expr], depth: int = 3) -> Expr:
    """A float expression over the leaves."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(leaves))
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(UNARY)))
        return UNARY[name](draw(values(leaves, depth - 1)))
    name = draw(st.sampled_from(sorted(BINARY)))
    return BINARY[name](draw(values(leaves, depth - 1)), draw(values(leaves, depth - 1)))


def integer_leaf(i: Expr, c: Expr) -> Expr:
    """Index arithmetic as a value."""
    mixed = ex.add(ex.mul(i, 7), ex.mod(ex.add(c, 3), 5))
    wide = ex.cast(ex.add(ex.idiv(mixed, 2), ex.shr(mixed, 1)), I32)
    return ex.mul(ex.cast(wide, F32), f32(1 / 16))


@st.composite
def elementwise(draw: st.DrawFn) -> Program:
    """y[i, c] = an expression of f32, f16, i8 and raw halves; contiguous, strided, gathered."""
    m, n = Var("m"), draw(st.sampled_from([1, 3, 8, 16, 20, 33, 64]))
    x, h, q = Buf("x", (m, n), F32), Buf("h", (n, m), F16), Buf("q", (m, 2 * n), I8)
    raw, row = Buf("raw", (4 * n,), U8), Buf("v", (n,), F32)
    i, c = Var("i"), Var("c")
    even = ex.cast(Load(q, (i, ex.mul(c, 2))), F32)
    mixed = ex.cast(Load(q, (i, ex.mod(ex.mul(c, 5), 2 * n))), F32)
    leaves = [
        Load(x, (i, c)),
        Load(x, (i, ex.sub(n - 1, c))),
        Load(row, (c,)),
        Load(x, (i, ex.lit(0))),
        ex.cast(Load(h, (c, i)), F32),
        ex.mul(even, f32(0.03)),
        ex.mul(mixed, f32(0.02)),
        load_le(raw, ex.mul(c, 2), F16),
        integer_leaf(i, c),
        f32(0.75),
    ]
    small = ex.cast(load_le(raw, ex.add(ex.mul(c, 2), 2 * n), BF16), F32)
    leaves.append(bounded(small))
    value = draw(values(leaves))
    transposed = draw(st.booleans())
    out = Buf("y", (n, m) if transposed else (m, n), draw(st.sampled_from([F32, F16])))
    index: tuple[Expr, ...] = (c, i) if transposed else (i, c)
    stored = ex.cast(value, out.dtype)
    body: tuple[Stmt, ...]
    if draw(st.booleans()):
        body = (Share(i, m, (Map(out, index, (Axis(c, n),), stored),)),)
    else:
        body = (Share(c, n, (Map(out, index, (Axis(i, m),), stored),)),)
    return Program(Kernel("map", _used((x, h, q, raw, row, out), body), (m,), body), m, out)


@st.composite
def reductions(draw: st.DrawFn) -> Program:
    """y[i, 0] = a fold of a row in scratch; y[i, 1] = the same of a slice whose ends move."""
    m, n = Var("m"), draw(st.sampled_from([1, 5, 16, 31, 48, 100]))
    x, y = Buf("x", (m, n), F32), Buf("y", (m, 2), F32)
    line = Buf("line", (1, n), F32, Mem.SCRATCH)
    part = Buf("part", (2,), F32, Mem.TILE)
    i, c, r, t = Var("i"), Var("c"), Var("r"), Var("t")
    zero = ex.lit(0)
    value = draw(values([Load(x, (i, c)), Load(x, (i, zero)), f32(0.5)]))
    red = draw(st.sampled_from(list(Red)))
    e = Load(line, (zero, r))
    folded = draw(st.sampled_from([e, ex.mul(e, e), ex.unary(Fn.ABS, e), ex.mul(e, f32(0.3))]))
    tail = Load(line, (zero, ex.add(ex.mod(i, n), t)))
    body: tuple[Stmt, ...] = (
        Alloc(line),
        Alloc(part),
        Map(line, (zero, c), (Axis(c, n),), bounded(value)),
        Reduce(part, (zero,), Axis(r, n), red, folded),
        Reduce(part, (ex.lit(1),), Axis(t, ex.sub(n, ex.mod(i, n))), red, tail),
        Map(y, (i, zero), (), Load(part, (zero,))),
        Map(y, (i, ex.lit(1)), (), add_floats(Load(part, (ex.lit(1),)), Load(part, (zero,)))),
    )
    return Program(Kernel("fold", (x, y), (m,), (Share(i, m, body),)), m, y)


@st.composite
def matmuls(draw: st.DrawFn, fmt: str, activations: str = "int8") -> Program:
    """y = f(norm(x) w): rows made ready, panels times row tiles, an elementwise end."""
    w = PackedMatrix(FORMATS[fmt], draw(st.sampled_from([5, 16, 40])), 0)
    sizes = [7, 32, 50] if w.is_float else [n * w.format.block for n in (1, 2, 3)]
    k = draw(st.sampled_from(sizes))
    w = PackedMatrix(w.format, w.rows, k)
    m, columns = Var("m"), w.panels * LANES
    x, blob = Buf("x", (m, k), F32), Buf("w", (w.nbytes,), U8)
    scale, y = Buf("scale", (k,), F32), Buf("y", (m, columns), F32)
    z = Buf("z", (m, columns), F32)
    norm = draw(st.sampled_from([None, Norm(lambda c: Load(scale, (c,)), 1e-5)]))
    rows, body = prepare_rows(
        lambda r, c: Load(x, (r, c)), norm, m, k, [w], activations=activations
    )
    unit, row = Var("panel"), Var("row")
    operand = Operand(w, blob, ex.lit(0))
    seed = draw(st.integers(0, 2**16))

    def tile(width: int) -> tuple[Stmt, ...]:
        acc, computed = accumulate("acc", width, rows, operand, row, unit)
        i, j = Var("i"), Var("j")
        at = (ex.add(row, i), ex.add(ex.mul(unit, LANES), j))
        return (
            *computed,
            Map(y, at, (Axis(i, width), Axis(j, LANES)), _end(seed, acc, z, i, j, at)),
        )

    widths = draw(st.sampled_from(WIDTHS))
    tiles = RowTiles(row, m, tuple((width, tile(width)) for width in widths))
    body += [Share(unit, w.panels, (tiles,))]
    used = _used((x, scale, z, blob, y), tuple(body))
    return Program(Kernel("matmul", used, (m,), tuple(body)), m, y, ((blob, w),))


def _end(seed: int, acc: Buf, z: Buf, i: Expr, j: Expr, at: tuple[Expr, Expr]) -> Expr:
    a, b = Load(acc, (i, j)), Load(z, at)
    sigmoid = ex.div(f32(1.0), ex.add(f32(1.0), ex.unary(Fn.EXP, ex.unary(Fn.NEG, a))))
    ends = (a, ex.add(a, b), ex.mul(ex.mul(a, sigmoid), b), ex.fma(a, b, f32(-0.5)))
    return ends[seed % len(ends)]


@st.composite
def dots(draw: st.DrawFn) -> Program:
    """y[i, j] = sum over a moving span of a[i, k] * b[k, j], wide tiles, in two loops."""
    m, n = Var("m"), draw(st.sampled_from([3, 16, 29]))
    cols = draw(st.sampled_from([16, 32]))
    kind: DType = draw(st.sampled_from([F32, F16, I8]))
    a, b = Buf("a", (m, n), F32), Buf("b", (n, cols), kind)
    y = Buf("y", (m, cols), F32)
    row, step = Var("row"), Var("s")
    half = n // 2

    def tile(width: int) -> tuple[Stmt, ...]:
        acc = Buf("acc", (width, cols), F32, Mem.TILE)
        i, j, k, u, v = (Var(name) for name in "ijkuv")
        x, c = Var("x"), Var("c")
        left = Load(a, (ex.add(row, i), k))
        right = ex.mul(ex.cast(Load(b, (k, j)), F32), f32(0.25))
        lo, hi = ex.mul(step, half), ex.add(half, ex.mul(step, n - half))
        start = Map(acc, (u, v), (Axis(u, width), Axis(v, cols)), f32(0.5))
        out = Map(y, (ex.add(row, x), c), (Axis(x, width), Axis(c, cols)), Load(acc, (x, c)))
        return (Alloc(acc), start, For(step, 0, 2, (Dot(acc, i, j, k, lo, hi, left, right),)), out)

    widths = draw(st.sampled_from(WIDTHS))
    tiles = RowTiles(row, m, tuple((width, tile(width)) for width in widths))
    once = Var("once")
    body = (Share(once, 1, (tiles,)),)
    return Program(Kernel("dots", (a, b, y), (m,), body), m, y)


def _used(bufs: tuple[Buf, ...], body: tuple[Stmt, ...]) -> tuple[Buf, ...]:
    from speccc.ir.plan import accesses

    reads, writes = accesses(Kernel("probe", bufs, (), body))
    return tuple(b for b in bufs if b in reads | writes)
