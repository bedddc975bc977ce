"""The proof program: RMSNorm and int8 rows -> Q4_1 gate and up -> SwiGLU in one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.formats import FORMATS
from speccc.ir.packed import PackedMatrix
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Kernel,
    Map,
    Mem,
    QuantRows,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)
from speccc.ir.types import F32, U8
from speccc.passes.quantize_rows import Norm, quant_buffers, quantize_rows

WIDTHS = (8, 7, 6, 5, 4, 3, 2, 1)


@dataclass(frozen=True)
class Proof:
    """The kernel and the objects its caller needs."""

    kernel: Kernel
    m: Var
    x: Buf
    norm: Buf
    blob: Buf
    y: Buf
    w: PackedMatrix


def swiglu(g: Expr, u: Expr) -> Expr:
    """silu(g) * u."""
    denominator = ex.add(ex.lit(1.0, F32), ex.unary(Fn.EXP, ex.unary(Fn.NEG, g)))
    return ex.div(ex.mul(g, u), denominator)


def proof_program(k: int, n: int, fmt: str = "q4_1", widths: tuple[int, ...] = WIDTHS) -> Proof:
    """y[m, n] = silu(x' wg) * (x' wu) with x' = rmsnorm(x) as int8; gate, then up, in w.

    k is rounded up to whole blocks of the format.
    """
    m, block = Var("m"), FORMATS[fmt].block
    k = -(-k // block) * block
    w = PackedMatrix(FORMATS[fmt], n, k)
    x, y = Buf("x", (m, k), F32), Buf("y", (m, n), F32)
    norm, blob = Buf("norm", (k,), F32), Buf("w", (2 * w.nbytes,), U8)
    q = quant_buffers(m, k, halves=w.groups > 1)
    prologue = quantize_rows(
        lambda r, c: Load(x, (r, c)), Norm(lambda c: Load(norm, (c,)), 1e-5), m, k, q
    )
    panel, row = Var("panel"), Var("row")
    tiles = tuple((width, _tile(width, q, w, blob, y, panel, row)) for width in widths)
    body = (*prologue, Share(panel, w.panels, (RowTiles(row, m, tiles),)))
    return Proof(Kernel("ffn_gate_up", (x, norm, blob, y), (m,), body), m, x, norm, blob, y, w)


def _tile(
    width: int, q: QuantRows, w: PackedMatrix, blob: Buf, y: Buf, panel: Var, row: Var
) -> tuple[Stmt, ...]:
    gate, up = (Buf(name, (width, LANES), F32, Mem.TILE) for name in ("gate", "up"))
    out: list[Stmt] = []
    at = replace(q, row=row)
    for acc, offset in ((gate, 0), (up, w.nbytes)):
        a, b = Var("i"), Var("j")
        out += [Alloc(acc), Map(acc, (a, b), (Axis(a, width), Axis(b, LANES)), ex.lit(0.0, F32))]
        out.append(ScaledDot(acc, at, w, blob, ex.lit(offset), panel))
    i, j = Var("i"), Var("j")
    index = (ex.add(row, i), ex.add(ex.mul(panel, LANES), j))
    value = swiglu(Load(gate, (i, j)), Load(up, (i, j)))
    out.append(Map(y, index, (Axis(i, width), Axis(j, LANES)), value))
    return tuple(out)


def inputs(p: Proof, m: int, seed: int = 0) -> dict[Buf, npt.NDArray[np.generic]]:
    """Random arrays for every buffer."""
    rng = np.random.default_rng(seed)
    k, n = p.w.k, p.w.rows
    weights = rng.standard_normal((2, n, k)).astype(np.float32) / np.sqrt(k, dtype=np.float32)
    blob = np.concatenate([p.w.pack(p.w.format.encode(w).reshape(-1)) for w in weights])
    return {
        p.x: rng.standard_normal((m, k)).astype(np.float32),
        p.norm: (1 + rng.standard_normal(k) / 8).astype(np.float32),
        p.blob: blob,
        p.y: np.zeros((m, n), np.float32),
    }
