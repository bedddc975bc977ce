"""Sums of products by matrix engines: which operands they take, and how far a sum may be off.

An engine's order of additions and how it rounds them are not documented. So its sums have a class
of their own: the same bits for any number of rows on one device, and from the golden machine, which
adds one product after the other, at most `engine_bound` away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.ir.expr import Apply, Expr, Fn, Load, LoadBytes, cast, children
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.minifloat_expr import minifloat_value
from speccc.ir.types import BF16, E4M3, F16, F32, I32, DType

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
HALF_ULP = 2.0**-24
LEAST_NORMAL = 2.0**-126


@dataclass(frozen=True, slots=True)
class Engine:
    """`fraction` bits below the largest term of a sum are kept, at least; what is below is cut off.

    With a `step` an engine sums no more products than that, from zero: its sum is added to the
    accumulator in f32, and steps in their order.
    """

    fraction: int
    step: int | None = None


ENGINES: dict[DType, Engine] = {
    # Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021.
    F16: Engine(23),
    BF16: Engine(23),
    # "Around 14 bits", DeepSeek-V3 Technical Report 2024, section 3.3.2: of Hopper, the least.
    E4M3: Engine(13, step=32),
}


def holds(dtype: DType, values: Array) -> npt.NDArray[np.bool_]:
    """Where f32 values are values of an engine's type; a NaN is one of each."""
    with np.errstate(over="ignore"):
        if dtype == BF16:
            same = (np.ascontiguousarray(values, np.float32).view(np.uint32) & 0xFFFF) == 0
        elif dtype == F16:
            same = values.astype(np.float16).astype(np.float32) == values
        else:
            small = MINIFLOATS[dtype]
            finite = np.where(np.isnan(values), np.float32(0), values).astype(np.float32)
            same = small.decode(small.nearest(finite)) == values
    return np.asarray(same | np.isnan(values), np.bool_)


def stored(dtype: DType, e: Expr) -> Expr | None:
    """The element of `dtype`, or its byte, whose f32 value an expression is; None if it is not."""
    if dtype in MINIFLOATS:
        return next((x for x in _bytes(e) if e == _value_of_byte(dtype, x)), None)
    widened = isinstance(e, Apply) and e.fn is Fn.CAST and e.dtype == F32
    return e.args[0] if isinstance(e, Apply) and widened and e.args[0].dtype == dtype else None


def _bytes(e: Expr) -> list[Expr]:
    if isinstance(e, (Load, LoadBytes)):
        return [e]
    return [x for c in children(e) for x in _bytes(c)]


def _value_of_byte(dtype: DType, byte: Expr) -> Expr:
    return minifloat_value(MINIFLOATS[dtype], cast(byte, I32))


def engine_bound(dtype: DType, a: Array, b: Array, start: Array | float = 0.0) -> F64:
    """How far an engine's start + a @ b may be from the golden sum: f64 [rows, columns].

    With T = |start| + sum |a b| over n products: an engine moves n terms to the exponent of the
    largest and cuts them off, then rounds at most n sums, each time by less than 2^-fraction times
    a partial sum, which is at most T and what was lost (Higham 2002, section 4.2). In steps of s
    products that is 2 s 2^-fraction for the products of each, and n / s sums in f32. The golden
    sum rounds n times by 2^-24. A result that is not normal may be flushed at each.
    """
    engine, n = ENGINES[dtype], a.shape[1]
    total = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(start)
    step = n + 1 if engine.step is None else min(n, engine.step)
    inside = _grown(2 * step, 2.0**-engine.fraction)
    outside = _grown(-(-n // step), HALF_ULP) * (1 + inside)
    bound = (inside + outside + _grown(n, HALF_ULP)) * total + 2 * (n + 1) * LEAST_NORMAL
    return np.asarray(bound, np.float64)


def _grown(count: int, each: float) -> float:
    """The most that `count` relative errors make together."""
    return count * each / (1 - count * each)
