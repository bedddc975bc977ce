"""A matrix engine's sum of float products, as bad as `speccc.ir.matrix_engine` lets one be.

The products of eight columns and what was summed before are moved to the exponent of the largest
and cut off below so many bits; so is their sum. An element depends on its row and column alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
WIDTH = 8


def engine_sum(a: Array, b: Array, start: Array, fraction: int, width: int = WIDTH) -> Array:
    """start [m, n] + a [m, k] @ b [k, n] of f32 values, as f32."""
    products = a.T[:, :, None].astype(np.float64) * b[:, None, :].astype(np.float64)
    acc = start.astype(np.float64)
    for k in range(0, len(products), width):
        acc = cut(np.concatenate([acc[None], products[k : k + width]]), fraction)
    return acc.astype(np.float32)


def cut(terms: Array, fraction: int) -> Array:
    """Terms [n, ...] moved to the exponent of the largest and cut off, then their sum, cut off."""
    moved = _cut_off(terms, np.abs(terms).max(axis=0), fraction).sum(axis=0)
    return _cut_off(moved, np.abs(moved), fraction)


def _cut_off(x: Array, top: Array, fraction: int) -> Array:
    """Below `fraction` bits behind the first of `top`; what is no number stays."""
    known = np.isfinite(top) & (top > 0)
    unit = np.exp2(np.floor(np.log2(np.where(known, top, 1))) - fraction)
    out: Array = np.where(known, np.trunc(x / unit) * unit, x)
    return out
