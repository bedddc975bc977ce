"""Scalar expressions over the byte fields of a block: how a number format is written down once.

An expression is a tree of frozen nodes. `evaluate` runs it over all lanes of many blocks at once;
renderers print the same tree. Integers keep the width of the field they come from, so codes of
byte-wide fields stay one byte wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.types import BF16, DType, Kind


@dataclass(frozen=True, slots=True)
class Field:
    """`count` little-endian elements of type `dtype`, from byte `byte` of a block."""

    name: str
    byte: int
    dtype: DType
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes the field takes in the block."""
        return self.dtype.nbytes * self.count


@dataclass(frozen=True, slots=True)
class Lane:
    """The index of the element within its block."""


@dataclass(frozen=True, slots=True)
class Const:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Read:
    """Element `index` of a field; float fields read as f32, integer fields at their own width."""

    field: str
    index: Expr = Const(0)


@dataclass(frozen=True, slots=True)
class Bin:
    """A binary operation; the names are the keys of `BINARY`."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class ToF32:
    """An integer as f32 (exact: codes are at most 16 bits wide)."""

    a: Expr


@dataclass(frozen=True, slots=True)
class Table:
    """An integer looked up by a code, e.g. the doubled e2m1 values."""

    values: tuple[int, ...]
    index: Expr


Expr = Lane | Const | Read | Bin | ToF32 | Table
_Array = npt.NDArray[np.generic]

BINARY: dict[str, Callable[[_Array, _Array], _Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.floor_divide,
    "mod": np.remainder,
    "shr": np.right_shift,
    "shl": np.left_shift,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Raw blocks u8 [b, nbytes] with the fields that name their bytes and the lane count."""

    raw: npt.NDArray[np.uint8]
    fields: tuple[Field, ...]
    lanes: int

    def field(self, name: str) -> _Array:
        """All elements of a field: [b, count], floats widened to f32."""
        found = next((f for f in self.fields if f.name == name), None)
        if found is None:
            raise KeyError(f"no field {name} in the block")
        cut = self.raw[:, found.byte : found.byte + found.nbytes]
        # A block's bytes move as one item, several times as fast as one by one.
        whole = np.ascontiguousarray(cut.view(f"V{found.nbytes}"))
        bits = whole.view(found.dtype.numpy.newbyteorder("<"))
        if found.dtype == BF16:
            return bf16_to_f32(bits.astype(np.uint16, copy=False))
        if found.dtype in MINIFLOATS:
            return MINIFLOATS[found.dtype].decode(bits.astype(np.uint8, copy=False))
        if found.dtype.kind is Kind.FLOAT:
            return bits.astype(np.float32, copy=False)
        return bits


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The f32 whose upper half is `bits` (exact)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def evaluate(expr: Expr, blocks: Blocks) -> _Array:
    """The value for every lane: an array that broadcasts to [b, lanes]."""
    if isinstance(expr, Lane):
        return np.arange(blocks.lanes, dtype=np.uint8 if blocks.lanes <= 256 else np.uint16)[None]
    if isinstance(expr, Const):
        return np.full((1, 1), expr.value, dtype=np.min_scalar_type(expr.value))
    if isinstance(expr, ToF32):
        return evaluate(expr.a, blocks).astype(np.float32)
    if isinstance(expr, Table):
        index = evaluate(expr.index, blocks).astype(np.intp)
        dtype = np.uint8 if min(expr.values) >= 0 else np.int8
        return np.take(np.asarray(expr.values, dtype=dtype), index)
    if isinstance(expr, Bin):
        return BINARY[expr.op](evaluate(expr.a, blocks), evaluate(expr.b, blocks))
    picked: _Array = blocks.field(expr.field)[:, evaluate(expr.index, blocks)[0]]
    return picked
