"""The quantised matmul as devices compute it, in NumPy: int8 activations, exact dots, f32 sums.

Per 32-block b of a row: xs = max|x| / 127 and xq = rint(x / xs) (0 when xs is 0). Then for b in
order: acc = fma(f32(dot - zero_point * sum(xq)), xs * ws, acc), and with a minimum
acc = fma(wm, xs * f32(sum(xq)), acc). This is `ScaledDot` of the tile IR.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
BLOCK = 32


def quantize_rows(x: Floats) -> tuple[Floats, Floats]:
    """x f32[m, k] -> integer codes held as f32[m, k/32, 32] and scales f32[m, k/32]."""
    blocks = x.reshape(len(x), -1, BLOCK)
    scale = np.abs(blocks).max(axis=2) / np.float32(127)
    safe = np.where(scale > 0, scale, np.float32(1))
    return np.rint(blocks / safe[:, :, None]).astype(np.float32), scale


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c in f32, rounded once.

    The product is exact in f64; the sum is rounded to odd there, so that the rounding to f32 sees
    on which side of a tie it lies (Boldo and Melquiond 2008).
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = np.atleast_1d(total).view(np.int64)
    inexact = np.atleast_1d((error != 0) & np.isfinite(total)) & ((bits & 1) == 0)
    toward = np.where(np.atleast_1d((error > 0) == (total > 0)), 1, -1)
    odd = np.where(inexact, bits + toward, bits).view(np.float64)
    return odd.reshape(total.shape).astype(np.float32)


def matmul_int8(
    x: Floats,
    codes: npt.NDArray[np.uint8],
    scale: Floats,
    minimum: Floats | None,
    zero_point: int,
) -> Floats:
    """x f32[m, k] times the transposed quantised weight (codes u8[n, k], scale f32[n, k/32])."""
    xq, xs = quantize_rows(x)
    sums = xq.sum(axis=2, dtype=np.float32)
    acc = np.zeros((len(x), len(codes)), np.float32)
    for b in range(xs.shape[1]):
        # Exact in f32 in any order: |dot| <= 32 * 127 * 255 < 2^24.
        w = codes[:, b * BLOCK : (b + 1) * BLOCK].astype(np.float32)
        dot = xq[:, b] @ w.T - np.float32(zero_point) * sums[:, b, None]
        acc = fma(dot, xs[:, b, None] * scale[None, :, b], acc)
        if minimum is not None:
            term = np.broadcast_to(xs[:, b, None] * sums[:, b, None], acc.shape)
            acc = fma(np.broadcast_to(minimum[None, :, b], acc.shape), term, acc)
    return acc
