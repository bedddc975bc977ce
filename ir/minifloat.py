"""Floats of one byte in stored weights: a table of 256 values each, and back again.

The scales of MXFP4 and NVFP4 are read at half their value, as ggml does: the codes beside them
stand for twice an e2m1 (OCP Microscaling Formats 1.0), which is an integer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speccc.ir.types import E4M3, E8M0_HALF, UE4M3_HALF, DType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Minifloat:
    """`exponent` bits over `mantissa` bits; above them a sign, or what is not looked at.

    Without a mantissa the value is 2^(e - bias); else (1 + m / 2^mantissa) * 2^(e - bias), and
    for e = 0 the subnormal m * 2^(1 - bias - mantissa). All ones is NaN; there is no infinity.
    """

    dtype: DType
    exponent: int
    mantissa: int
    bias: int
    signed: bool = False

    @property
    def nan(self) -> int:
        """The code of NaN; those below are the positive ones, in the order of their values."""
        return (1 << (self.exponent + self.mantissa)) - 1

    @property
    def least(self) -> float:
        """The smallest positive value, which is also the step between subnormals."""
        return 2.0 ** (-self.bias if not self.mantissa else 1 - self.bias - self.mantissa)

    def decode(self, codes: Bytes) -> Floats:
        """Exact f32 values of raw bytes, in their shape."""
        return np.take(_values(self), codes)

    def nearest(self, values: Floats) -> Bytes:
        """The bytes of the nearest values, ties to even codes; what is too large becomes the top.

        The sign is kept if there is one to keep; ValueError for a NaN.
        """
        if np.isnan(values).any():
            raise ValueError(f"{self.dtype}: a value is NaN")
        table = _values(self)[: self.nan]
        middle = (table[1:] + table[:-1]) / 2
        size = np.abs(values)
        low = np.searchsorted(middle, size)
        tie = (low < len(middle)) & (middle[np.minimum(low, len(middle) - 1)] == size)
        found: Bytes = (low + (tie & (low % 2 == 1))).astype(np.uint8)
        sign: Bytes = np.signbit(values).astype(np.uint8) << np.uint8(7)
        return np.bitwise_or(found, sign) if self.signed else found

    def codes(self, values: Floats) -> Bytes:
        """The bytes of positive values of the table; ValueError for any other."""
        table = _values(self)[: self.nan]
        found = np.minimum(np.searchsorted(table, values), self.nan - 1)
        if not np.array_equal(table[found], values):
            raise ValueError(f"a value is no {self.dtype}")
        return found.astype(np.uint8)


@functools.cache
def _values(f: Minifloat) -> Floats:
    codes = np.arange(256) & f.nan
    e, m = codes >> f.mantissa, codes & ((1 << f.mantissa) - 1)
    out = (1 + m / 2.0**f.mantissa) * 2.0 ** (e - f.bias)
    if f.mantissa:
        out = np.where(e == 0, m * f.least, out)
    out[codes == f.nan] = np.nan
    if f.signed:
        out[128:] = -out[:128]
    return out.astype(np.float32)


MINIFLOATS: dict[DType, Minifloat] = {
    f.dtype: f
    for f in (
        Minifloat(E8M0_HALF, 8, 0, 128),
        Minifloat(UE4M3_HALF, 4, 3, 8),
        Minifloat(E4M3, 4, 3, 7, signed=True),
    )
}
