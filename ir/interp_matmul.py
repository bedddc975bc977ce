"""The quantised matmul as devices compute it, in NumPy: int8 activations, exact dots, f32 sums.

Per 32-block b of a row: xs = max|x| / 127 and xq = rint(x / xs) (0 when xs is 0). Then for b in
order, and for each group of columns in it that has a scale of its own: acc = fma(f32(dot), xs * ws,
acc), and with a minimum acc = fma(wm, xs * f32(sum(xq)), acc). This is `ScaledDot` of the tile IR.
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
    x: Floats, integers: npt.NDArray[np.int32], scale: Floats, minimum: Floats | None
) -> Floats:
    """x f32[m, k] times the transposed quantised weight (integers i32[n, k], scale f32[n, groups]).

    A minimum is f32[n, k/32]; a block of 32 has one scale or several.
    """
    xq, xs = quantize_rows(x)
    sums = xq.sum(axis=2, dtype=np.float32)
    acc = np.zeros((len(x), len(integers)), np.float32)
    groups = scale.shape[1] // xs.shape[1]
    size = BLOCK // groups
    parts = xq.reshape(len(x), -1, size)
    for n in range(scale.shape[1]):
        b = n // groups
        # Exact in f32 in any order: |dot| <= 32 * 127 * 255 < 2^24.
        dot = parts[:, n] @ integers[:, n * size : (n + 1) * size].astype(np.float32).T
        acc = fma(dot, xs[:, b, None] * scale[None, :, n], acc)
        if minimum is not None:
            term = np.broadcast_to(xs[:, b, None] * sums[:, b, None], acc.shape)
            acc = fma(np.broadcast_to(minimum[None, :, b], acc.shape), term, acc)
    return acc
