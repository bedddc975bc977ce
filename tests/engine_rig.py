"""What the tests of float dots on matrix engines share: one product, its rows, and the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cpu_rig import same_bits
from fragment_rig import rewritten, with_body

from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.formats import FORMATS
from speccc.ir.fragment import FragLoad, FragmentKernel, Role
from speccc.ir.interp_tile import run_kernel
from speccc.ir.matrix_engine import engine_bound
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.packed import FLOATS, PackedMatrix, load_le
from speccc.ir.tile import LANES, Alloc, Axis, Buf, Dot, Kernel, Map, Mem, RowTiles, Share, Stmt
from speccc.ir.types import BF16, F32, U8, DType
from speccc.passes.float_dot_to_fragment import DEPTH, HELD_AS

Array = npt.NDArray[Any]
WIDTHS = (8, 7, 6, 5, 4, 3, 2, 1)


@dataclass(frozen=True)
class Product:
    """y [m, columns] = x [m, k] w^T, summed by an engine of `dtype` where there is one."""

    kernel: Kernel
    m: Var
    x: Buf
    blob: Buf
    y: Buf
    w: PackedMatrix
    dtype: DType


def product(fmt: str, n: int, k: int, widths: tuple[int, ...] = WIDTHS) -> Product:
    """With weights of the float format `fmt`, [n, k]; without its rows' factors."""
    w, dtype = PackedMatrix(FORMATS[fmt], n, k), FLOATS[fmt]
    engine = dtype if dtype in HELD_AS else None
    m, panel, row = Var("m"), Var("panel"), Var("row")
    x, blob = Buf("x", (m, k), F32), Buf("w", (w.nbytes,), U8)
    y = Buf("y", (m, w.panels * LANES), F32)

    def tile(width: int) -> tuple[Stmt, ...]:
        acc = Buf("acc", (width, LANES), F32, Mem.TILE)
        u, v, i, j, c, r, s = (Var(name) for name in "uvijcrs")
        zero = Map(acc, (u, v), (Axis(u, width), Axis(v, LANES)), ex.lit(0.0, F32))
        base = ex.mul(panel, w.panel_bytes)
        at = ex.add(base, ex.mul(ex.add(ex.mul(c, LANES), j), dtype.nbytes))
        dot = Dot(
            acc, i, j, c, 0, k, Load(x, (ex.add(row, i), c)), load_le(blob, at, dtype), engine
        )
        index = (ex.add(row, r), ex.add(ex.mul(panel, LANES), s))
        out = Map(y, index, (Axis(r, width), Axis(s, LANES)), Load(acc, (r, s)))
        return (Alloc(acc), zero, dot, out)

    tiles = RowTiles(row, m, tuple((width, tile(width)) for width in widths))
    body = (Share(panel, w.panels, (tiles,)),)
    return Product(Kernel("product", (x, blob, y), (m,), body), m, x, blob, y, w, dtype)


def nearest(dtype: DType, values: Array) -> Array:
    """f32 values rounded to an engine's type."""
    if dtype in MINIFLOATS:
        small = MINIFLOATS[dtype]
        return small.decode(small.nearest(values.astype(np.float32)))
    if dtype == BF16:
        bits = values.astype(np.float32).view(np.uint32)
        rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
        return rounded
    return values.astype(dtype.numpy).astype(np.float32)


def inputs(p: Product, m: int, seed: int = 0) -> dict[Buf, Array]:
    """Rows of the engine's type, weights of the format, an output of zeros."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((p.w.rows, p.w.k)).astype(np.float32)
    return {
        p.x: nearest(p.dtype, rng.standard_normal((m, p.w.k))),
        p.blob: p.w.pack(p.w.format.encode(values).reshape(-1)),
        p.y: np.zeros((m, p.w.panels * LANES), np.float32),
    }


def golden(p: Product, bufs: dict[Buf, Array]) -> Array:
    """y by the block-level interpreter: fused multiply-adds in order."""
    own = {**bufs, p.y: bufs[p.y].copy()}
    run_kernel(p.kernel, own, {p.m: len(bufs[p.x])})
    return own[p.y]


def bound(p: Product, bufs: dict[Buf, Array]) -> Array:
    """How far from golden the engine may be, by element of y; e4m3 are multiplied as halves."""
    k, columns = p.w.k, bufs[p.y].shape[1]
    unit = {**bufs, p.x: np.eye(k, dtype=np.float32), p.y: np.zeros((k, columns), np.float32)}
    weights = golden(p, unit)  # exact: of each sum one product is not zero
    return engine_bound(HELD_AS[p.dtype], bufs[p.x], weights)


def rows_of(p: Product, bufs: dict[Buf, Array], rows: slice) -> dict[Buf, Array]:
    """The same weights with some of the rows."""
    return {**bufs, p.x: bufs[p.x][rows], p.y: np.zeros_like(bufs[p.y][rows])}


def swapped_steps(kernel: FragmentKernel) -> FragmentKernel:
    """The kernel with rows of k taken from the other end: right where k is a whole chunk."""

    def rule(s: Stmt) -> Stmt:
        if not isinstance(s, FragLoad) or s.frag.role is not Role.B:
            return s
        last = DEPTH - s.frag.shape.k
        first, second = s.at
        at = (first, ex.sub(last, second)) if s.transposed else (ex.sub(last, first), second)
        return replace(s, at=at)

    return with_body(kernel, rewritten(kernel.body, rule))


Run = Callable[[dict[Buf, Array]], Array]
"""Buffers of a product -> y."""


def check(p: Product, run: Run, m: int, seed: int = 0) -> None:
    """Within the bound of golden; a row has the same bits alone, among five and among all."""
    bufs = inputs(p, m, seed)
    y = run(bufs)
    assert (np.abs(y - golden(p, bufs)) <= bound(p, bufs)).all()
    for part in (slice(m - 1, m), slice(max(0, m - 5), m)):
        assert same_bits(run(rows_of(p, bufs, part)), y[part])


def fails(p: Product, run: Run) -> None:
    """The control: nearly all that a wrong kernel makes is further off than the bound."""
    bufs = inputs(p, 9)
    off = np.abs(run(bufs) - golden(p, bufs)) > bound(p, bufs)
    assert off[:, : p.w.rows].mean() > 0.9
