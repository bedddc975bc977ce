"""Packing f32 blocks into each format's bytes, with the rounding of gguf-py's `quants.py`.

gguf-py has no encoder of NVFP4; its scale is as in NVIDIA's recipe without a tensor's own scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.types import E4M3, E8M0_HALF, UE4M3_HALF

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _f32(x: Floats) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def _f16(x: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return x.astype("<f2").view(np.uint8)


def _bf16(x: Floats) -> Bytes:
    """Round to nearest even; a NaN is made quiet so that rounding cannot turn it into infinity."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    quiet = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x00400000)
    bits = np.where(nan, quiet, bits)
    rounded = bits.astype(np.uint64) + np.uint64(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint64(16)).astype("<u2").view(np.uint8)


def _inverse(d: Floats) -> Floats:
    """1/d; 0 where that is beyond f32, as for a zero: such a scale is stored as 0, whatever x/d."""
    with np.errstate(divide="ignore", over="ignore"):
        out = np.float32(1) / d
    return np.where(np.isfinite(out), out, np.float32(0))


def _half(d: Floats, name: str) -> Bytes:
    with np.errstate(over="ignore"):
        half = d.astype("<f2")
    if not np.isfinite(half).all():
        raise ValueError(f"{name}: a block holds NaN, infinity or a scale beyond f16")
    return half.view(np.uint8)


def _nibbles(codes: npt.NDArray[np.number[Any]]) -> Bytes:
    """Two codes a byte: the first half of the block low, the second half high."""
    q: Bytes = np.clip(codes, 0, 15).astype(np.uint8)
    return q[:, :16] | (q[:, 16:] << np.uint8(4))


def _q4_0(x: Floats) -> Bytes:
    """d = (value of largest magnitude) / -8; code = trunc(x/d + 8.5) in 0..15."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    d = largest / np.float32(-8)
    half = _half(d, "q4_0")
    with np.errstate(over="ignore", invalid="ignore"):
        codes = np.trunc(x * _inverse(d) + np.float32(8.5))
    return np.concatenate([half, _nibbles(codes)], axis=1)


def _q4_1(x: Floats) -> Bytes:
    """d = (max - min) / 15, m = min; code = trunc((x - m)/d + 0.5) in 0..15."""
    low = x.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        d = (x.max(axis=1, keepdims=True) - low) / np.float32(15)
        halves = _half(d, "q4_1"), _half(low, "q4_1")
        codes = np.trunc((x - low) * _inverse(d) + np.float32(0.5))
    return np.concatenate([*halves, _nibbles(codes)], axis=1)


def _q8_0(x: Floats) -> Bytes:
    """d = max|x| / 127; code = x/d rounded to nearest, halves away from zero."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    half = _half(d, "q8_0")
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = x * _inverse(d)
        size = np.abs(scaled)
        floor = np.floor(size)
        codes = np.sign(scaled) * (floor + np.floor(2 * (size - floor)))
    return np.concatenate([half, np.clip(codes, -128, 127).astype(np.int8).view(np.uint8)], axis=1)


_E2M1_TWICE = np.array((0, 1, 2, 3, 4, 6, 8, 12), np.float32)
_BETWEEN = (_E2M1_TWICE[1:] + _E2M1_TWICE[:-1]) / 2


def _e2m1(scaled: Floats) -> Bytes:
    """Nearest code of twice an e2m1, a tie to the smaller magnitude; a zero has no sign."""
    size = np.searchsorted(_BETWEEN, np.abs(scaled)).astype(np.uint8)
    return np.where((scaled < 0) & (size > 0), size | np.uint8(8), size)


def _mxfp4(x: Floats) -> Bytes:
    """d = 2^(floor(log2(max|x|)) - 2), halved beside codes of twice an e2m1."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise ValueError("mxfp4: a block holds NaN or infinity")
    with np.errstate(divide="ignore"):
        power = np.where(largest > 0, np.floor(np.log2(largest)) - 2 + 127, 0)
    if (power > 252).any():  # the logarithm was rounded up to 128, and so would be the element
        raise ValueError("mxfp4: a block holds an element that it rounds to infinity")
    e = np.clip(power, 0, 254).astype(np.uint8)
    codes = _e2m1(x / MINIFLOATS[E8M0_HALF].decode(e))
    return np.concatenate([e, _nibbles(codes)], axis=1)


def _nvfp4(x: Floats) -> Bytes:
    """d = max|x| / 6 of 16 elements to the nearest unsigned e4m3, halves away from zero."""
    groups = x.reshape(-1, 4, 16)
    target = np.abs(groups).max(axis=2) / np.float32(6)
    if not (target <= _UE4M3[-1]).all():
        raise ValueError("nvfp4: a block holds NaN, infinity or a scale beyond 448")
    d = np.searchsorted((_UE4M3[1:] + _UE4M3[:-1]) / 2, target, side="right").astype(np.uint8)
    inverse = _inverse(MINIFLOATS[UE4M3_HALF].decode(d))
    codes = _e2m1(groups * inverse[:, :, None])
    halves = codes[:, :, :8] | (codes[:, :, 8:] << np.uint8(4))
    return np.concatenate([d, halves.reshape(-1, 32)], axis=1)


_UE4M3 = 2 * MINIFLOATS[UE4M3_HALF].decode(np.arange(127, dtype=np.uint8))


def _fp8(x: Floats) -> Bytes:
    return MINIFLOATS[E4M3].nearest(x)


ROW_TOPS: dict[str, float] = {"fp8": 448.0, "nvfp4_rows": 448.0 * 6}
"""The largest element that a format with a factor a row can hold where the factor is 1."""
F16_TOP = 65504.0
F32_TOP = float(np.finfo(np.float32).max)


def row_factors(x: Floats, name: str) -> Floats:
    """f32 [n, 1]: what each row is divided by; 1 for zeros.

    ValueError for NaN, infinity, and rows whose product with activations in f16's range may be
    beyond f32: |sum of w x| <= k max|w| max|x|.
    """
    largest = np.abs(x).max(axis=1, keepdims=True)
    most = F32_TOP / F16_TOP / x.shape[1]
    if not (largest <= most).all():
        raise ValueError(
            f"{name}: a block holds NaN, infinity or an element beyond {most:.0e}, "
            "with which sums of products overflow f32"
        )
    factors = largest / np.float32(ROW_TOPS[name])
    return np.where(factors > 0, factors, np.float32(1))


ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q8_0": _q8_0,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "nvfp4_rows": _nvfp4,
    "fp8": _fp8,
}
