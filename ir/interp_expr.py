"""The meaning of scalar expressions on NumPy arrays: every element of a set of axes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import VerifyError
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.types import BF16, F16, F32, DType, Kind

Array = npt.NDArray[Any]
F16_MAX = 65504.0
Reader = Callable[[Load | LoadBytes, tuple[Array, ...]], Array]


def fma(a: Array, b: Array, c: Array) -> Array:
    """f32 a * b + c rounded once: exact product in f64, sum rounded to odd in f64, then to f32.

    A sum rounded to odd never falls between two f32 by rounding, so the second rounding is right
    (Boldo and Melquiond 2008). Only sums that look like such a midpoint are worth the work.
    """
    wide = c.astype(np.float64)
    product = a.astype(np.float64) * b.astype(np.float64)
    total = np.asarray(product + wide)
    bits = total.view(np.int64)
    middle = (bits & _BELOW_F32) == _HALF_F32
    middle |= (np.abs(total) < _TINY_F32) & (total != 0)
    if middle.any():
        shape = total.shape
        odd = _to_odd(*(np.broadcast_to(x, shape)[middle] for x in (total, product, wide)))
        total[middle] = odd
    return total.astype(np.float32)


_BELOW_F32, _HALF_F32 = (1 << 29) - 1, 1 << 28  # the bits of an f64 below those of an f32
_TINY_F32 = 2.0**-126  # subnormal f32 have their midpoints elsewhere


def _to_odd(total: Array, a: Array, b: Array) -> Array:
    """fl(a + b) moved to the neighbour with an odd last bit when it is not exact (TwoSum)."""
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    even = (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    moved: Array = np.where(even, bits + step, bits).view(np.float64)
    return moved


def exp(x: Array) -> Array:
    """e**x in f32 as every target computes it: see `EXP` for the constants.

    n = rint(x / ln 2); r = x - n * ln 2 in two pieces; a degree 5 polynomial in r; scaled by 2**n.
    Inputs below -87 give 0; inputs above 88 are not needed by the ops that use it and are clamped.
    """
    x = x.astype(np.float32)
    clamped = np.clip(x, np.float32(EXP.low), np.float32(EXP.high))
    n = np.rint(clamped * np.float32(EXP.log2e))
    r = fma(n, np.asarray(-EXP.ln2_hi, np.float32), clamped)
    r = fma(n, np.asarray(-EXP.ln2_lo, np.float32), r)
    p = np.broadcast_to(np.float32(EXP.poly[0]), r.shape)
    for c in EXP.poly[1:]:
        p = fma(p, r, np.broadcast_to(np.float32(c), r.shape))
    scale = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    out: Array = np.where(x < np.float32(EXP.low), np.float32(0), p * scale)
    return out


class EXP:
    """Constants of `exp` (Cephes expf by Moshier: ln 2 in two pieces, minimax polynomial)."""

    low = -87.0
    high = 88.0
    log2e = 1.44269504088896341
    ln2_hi = 0.693359375
    ln2_lo = -2.12194440e-4
    poly = (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
        1.0,
        1.0,
    )


def _round_half(x: Array) -> Array:
    clipped = np.clip(x, np.float32(-F16_MAX), np.float32(F16_MAX))
    return clipped.astype(np.float16)


def _bf16_bits(x: Array) -> Array:
    bits = np.ascontiguousarray(x).view(np.uint32)
    if (bits & 0xFFFF).any():
        raise VerifyError("an f32 that is no bf16 is cast to it")
    out: Array = (bits >> 16).astype(np.uint16).reshape(x.shape)
    return out


def cast(x: Array, source: DType, dtype: DType) -> Array:
    """`x` as `dtype`; f16 saturates, floats to integers truncate toward zero.

    VerifyError for an f32 cast to bf16 that is none: who wants one rounds by steps.
    """
    if source == BF16:
        wide = (x.astype(np.uint32) << 16).view(np.float32)
        return wide if dtype == F32 else cast(wide, F32, dtype)
    if dtype == F16 and source.kind is Kind.FLOAT:
        return _round_half(x)
    if dtype == BF16:
        return _bf16_bits(x.astype(np.float32))
    out: Array = x.astype(dtype.numpy)
    return out


def _shift_right(a: Array, b: Array) -> Array:
    unsigned = a.view(np.dtype(f"u{a.dtype.itemsize}"))
    shifted: Array = (unsigned >> b.astype(unsigned.dtype)).view(a.dtype)
    return shifted


def _dot4(a: Array, b: Array) -> Array:
    a, b = (np.ascontiguousarray(x, np.int32)[..., None].view(np.int8) for x in (a, b))
    out: Array = (a.astype(np.int32) * b.astype(np.int32)).sum(axis=-1, dtype=np.int32)
    return out


_FUNCTIONS: dict[Fn, Callable[..., Array]] = {
    Fn.ADD: np.add,
    Fn.SUB: np.subtract,
    Fn.MUL: np.multiply,
    Fn.DIV: np.divide,
    Fn.IDIV: np.floor_divide,
    Fn.MOD: np.mod,
    Fn.MIN: np.minimum,
    Fn.MAX: np.maximum,
    Fn.AND: np.bitwise_and,
    Fn.OR: np.bitwise_or,
    Fn.XOR: np.bitwise_xor,
    Fn.SHL: np.left_shift,
    Fn.SHR: _shift_right,
    Fn.LT: np.less,
    Fn.LE: np.less_equal,
    Fn.EQ: np.equal,
    Fn.DOT4: _dot4,
    Fn.FMA: fma,
    Fn.SELECT: np.where,
    Fn.NEG: np.negative,
    Fn.ABS: np.abs,
    Fn.RINT: np.rint,
    Fn.SQRT: np.sqrt,
    Fn.EXP: exp,
}


def evaluate(e: Expr, env: Mapping[Var, Array], read: Reader) -> Array:
    """The value of `e`, an array broadcast over whatever the environment's arrays span."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _value(e, env, read)


def _value(e: Expr, env: Mapping[Var, Array], read: Reader) -> Array:
    if isinstance(e, Apply):
        return _apply(e, env, read)
    if isinstance(e, Const):
        return np.asarray(e.value, e.dtype.numpy)
    if isinstance(e, Var):
        if e not in env:
            raise VerifyError(f"variable {e.name} has no value here")
        return env[e]
    if isinstance(e, Load):
        return read(e, tuple(_value(i, env, read) for i in e.index))
    return read(e, (_value(e.at, env, read),))


def _apply(e: Apply, env: Mapping[Var, Array], read: Reader) -> Array:
    args = [np.asarray(_value(a, env, read)) for a in e.args]
    if e.fn is Fn.CAST:
        return cast(args[0], e.args[0].dtype, e.dtype)
    if e.fn is Fn.BITCAST:
        bits: Array = args[0].view(e.dtype.numpy)
        return bits
    out = _FUNCTIONS[e.fn](*args)
    typed: Array = np.asarray(out).astype(e.dtype.numpy, copy=False)
    return typed
