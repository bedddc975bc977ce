"""Element types, symbolic sizes and tensor types: the vocabulary of every IR."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from speccc.ir.formats import Format


class Kind(Enum):
    """What the bits of an element mean."""

    FLOAT = "float"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar element type, `bits` wide."""

    name: str
    bits: int
    kind: Kind

    @property
    def nbytes(self) -> int:
        """Bytes of one element (a bool takes one)."""
        return max(1, self.bits // 8)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy type with the same bits; bf16 and one-byte floats are held as raw integers."""
        return np.dtype(_NUMPY[self.name])

    def __str__(self) -> str:
        return self.name


F32 = DType("f32", 32, Kind.FLOAT)
F16 = DType("f16", 16, Kind.FLOAT)
BF16 = DType("bf16", 16, Kind.FLOAT)
I8 = DType("i8", 8, Kind.INT)
U8 = DType("u8", 8, Kind.UINT)
I32 = DType("i32", 32, Kind.INT)
U32 = DType("u32", 32, Kind.UINT)
INDEX = DType("index", 64, Kind.INT)
"""Sizes, offsets and loop variables of the tile IR."""
BOOL = DType("bool", 1, Kind.BOOL)
# Floats of one byte: only in stored weights. `speccc.ir.minifloat` says what their bits mean.
E8M0_HALF = DType("e8m0_half", 8, Kind.FLOAT)
UE4M3_HALF = DType("ue4m3_half", 8, Kind.FLOAT)
E4M3 = DType("e4m3", 8, Kind.FLOAT)

DTYPES: dict[str, DType] = {d.name: d for d in (F32, F16, BF16, I8, U8, I32, U32, INDEX, BOOL)}
_NUMPY: dict[str, npt.DTypeLike] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "i8": np.int8,
    "u8": np.uint8,
    "i32": np.int32,
    "u32": np.uint32,
    "index": np.int64,
    "bool": np.bool_,
    "e8m0_half": np.uint8,
    "ue4m3_half": np.uint8,
    "e4m3": np.uint8,
}


@dataclass(frozen=True, slots=True)
class Sym:
    """A symbolic size with inclusive bounds, e.g. `m` in 1..64."""

    name: str
    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi:
            raise ValueError(f"symbol {self.name}: bounds {self.lo}..{self.hi} are not ordered")

    def __str__(self) -> str:
        return self.name


Dim = int | Sym


@dataclass(frozen=True, slots=True)
class TensorType:
    """A shape of ints and symbols, and an element type or a block format along the last axis."""

    shape: tuple[Dim, ...]
    elem: DType | Format

    def __str__(self) -> str:
        return f"{self.elem.name}[{', '.join(map(str, self.shape))}]"
