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
    """f32 a * b + c: the product is exact in f64 and the sum is rounded to f64, then to f32.

    Differs from one rounding only when the f64 sum falls exactly between two f32 (rare: 2**-28).
    """
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return exact.astype(np.float32)


def exp(x: Array) -> Array:
    """e**x in f32 as every target computes it: see `EXP` for the constants.

    n = rint(x / ln 2); r = x - n * ln 2 in two pieces; a degree 5 polynomial in r; scaled by 2**n.
    Inputs below -87 give 0; inputs above 88 are not needed by the ops that use it and are clamped.
    """
    x = x.astype(np.float32)
    clamped = np.clip(x, np.float32(EXP.low), np.float32(EXP.high))
    n = np.rint(clamped * np.float32(EXP.log2e))
    r = fma(n, np.float32(-EXP.ln2_hi), clamped)
    r = fma(n, np.float32(-EXP.ln2_lo), r)
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


def cast(x: Array, source: DType, dtype: DType) -> Array:
    """`x` as `dtype`; f16 saturates, floats to integers truncate toward zero."""
    if source == BF16:
        wide = (x.astype(np.uint32) << 16).view(np.float32)
        return wide if dtype == F32 else cast(wide, F32, dtype)
    if dtype == F16 and source.kind is Kind.FLOAT:
        return _round_half(x)
    out: Array = x.astype(dtype.numpy)
    return out


def _shift_right(a: Array, b: Array) -> Array:
    unsigned = a.view(np.dtype(f"u{a.dtype.itemsize}"))
    shifted: Array = (unsigned >> b.astype(unsigned.dtype)).view(a.dtype)
    return shifted


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
    if isinstance(e, Const):
        return np.asarray(e.value, e.dtype.numpy)
    if isinstance(e, Var):
        if e not in env:
            raise VerifyError(f"variable {e.name} has no value here")
        return env[e]
    if isinstance(e, Load):
        return read(e, tuple(evaluate(i, env, read) for i in e.index))
    if isinstance(e, LoadBytes):
        return read(e, (evaluate(e.at, env, read),))
    return _apply(e, env, read)


def _apply(e: Apply, env: Mapping[Var, Array], read: Reader) -> Array:
    args = [np.asarray(evaluate(a, env, read)) for a in e.args]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if e.fn is Fn.CAST:
            return cast(args[0], e.args[0].dtype, e.dtype)
        if e.fn is Fn.BITCAST:
            bits: Array = args[0].view(e.dtype.numpy)
            return bits
        out = _FUNCTIONS[e.fn](*args)
    typed: Array = np.asarray(out).astype(e.dtype.numpy, copy=False)
    return typed
