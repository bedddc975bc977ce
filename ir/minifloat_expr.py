"""One-byte floats as scalar expressions: integer steps, so that no device's flushing of
subnormals meets them on the way to a normal f32."""

from __future__ import annotations

from dataclasses import replace

from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Expr, Fn
from speccc.ir.minifloat import Minifloat
from speccc.ir.types import F32, I32

F32_BIAS, F32_MANTISSA = 127, 23


def minifloat_value(f: Minifloat, code: Expr) -> Expr:
    """The f32 value of an i32 code that is not NaN and, without a sign, below `f.nan`."""
    if f.signed:
        size = minifloat_value(replace(f, signed=False), ex.bit_and(code, f.nan))
        return ex.select(ex.lt(code, f.nan + 1), size, ex.unary(Fn.NEG, size))
    if not f.mantissa:
        return _power_of_two(f, code)
    shift = F32_MANTISSA - f.mantissa
    bits = _shl(ex.add(code, (F32_BIAS - f.bias) << f.mantissa), shift)
    small = ex.mul(ex.cast(code, F32), f.least)
    return ex.select(ex.lt(code, 1 << f.mantissa), small, ex.bitcast(bits, F32))


def _power_of_two(f: Minifloat, code: Expr) -> Expr:
    """Codes up to bias - 127 are subnormal in f32 too: 2^(e - bias) is one bit of its mantissa."""
    below = f.bias - F32_BIAS
    bits = ex.sub(_shl(code, F32_MANTISSA), below << F32_MANTISSA)
    one = 1 << (F32_MANTISSA - 1 - below)
    subnormal = Apply(Fn.SHL, (ex.lit(one, I32), ex.minimum(code, below)), I32)
    return ex.bitcast(ex.select(ex.lt(code, below + 1), subnormal, bits), F32)


def _shl(a: Expr, n: int) -> Expr:
    return Apply(Fn.SHL, (a, ex.lit(n, a.dtype)), a.dtype)
