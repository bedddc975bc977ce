"""Where each weight lies in the two constant arrays of a plan: packed matrices and f32 vectors."""

from __future__ import annotations

from dataclasses import dataclass, field

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Var
from speccc.ir.formats import FORMATS, Format
from speccc.ir.packed import PackedMatrix
from speccc.ir.types import DType, TensorType

ALIGN, WINDOW_ALIGN = 64, 256
"""Bytes; and, for vectors, elements. The larger is that of places which devices bind buffers at."""


@dataclass(frozen=True, slots=True)
class MatrixSlot:
    """A weight packed at a byte offset; `group` rows at a time are stored evens first if set."""

    name: str
    matrix: PackedMatrix
    offset: int
    group: int | None = None


@dataclass(frozen=True, slots=True)
class VectorSlot:
    """A weight as f32 at an element offset."""

    name: str
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class LayerVar:
    """The loop variable in whose iterations weights are taken one after another."""

    var: Var
    trips: int


@dataclass
class WeightLayout:
    """Allocates slots in reading order; a weight used twice keeps its first place.

    `windowed`: each matrix is to be bound by itself, where 32 bits do not reach all of them.
    """

    windowed: bool = False
    matrices: list[MatrixSlot] = field(default_factory=list)
    vectors: list[VectorSlot] = field(default_factory=list)
    matrix_bytes: int = 0
    vector_elements: int = 0
    _placed: dict[tuple[tuple[str, ...], int | None], Expr] = field(default_factory=dict)

    def matrix(
        self,
        names: tuple[str, ...],
        packed: PackedMatrix,
        group: int | None,
        layer: LayerVar | None,
    ) -> Expr:
        """Byte offset of names[layer] (of names[0] outside a loop); all are packed alike."""
        key = (names, group)
        if key not in self._placed:
            align = WINDOW_ALIGN if self.windowed else ALIGN
            first, stride = self.matrix_bytes, _up(packed.nbytes, align)
            for n, name in enumerate(names):
                self.matrices.append(MatrixSlot(name, packed, first + n * stride, group))
            self.matrix_bytes += stride * len(names)
            self._placed[key] = _at(first, stride, layer if len(names) > 1 else None)
        return self._placed[key]

    def vector(self, names: tuple[str, ...], size: int, layer: LayerVar | None) -> Expr:
        """Element offset of names[layer] among the vectors."""
        key = (("vector", *names), None)
        if key not in self._placed:
            first, stride = self.vector_elements, _up(size)
            for n, name in enumerate(names):
                self.vectors.append(VectorSlot(name, size, first + n * stride))
            self.vector_elements += stride * len(names)
            self._placed[key] = _at(first, stride, layer if len(names) > 1 else None)
        return self._placed[key]


def _up(n: int, align: int = ALIGN) -> int:
    return -(-n // align) * align


def _at(first: int, stride: int, layer: LayerVar | None) -> Expr:
    return ex.lit(first) if layer is None else ex.add(ex.mul(layer.var, stride), first)


def packed_matrix(t: TensorType) -> PackedMatrix:
    """The packed form of a weight's type [rows, k]."""
    rows, k = t.shape
    fmt: Format = FORMATS[t.elem.name] if isinstance(t.elem, DType) else t.elem
    if not isinstance(rows, int) or not isinstance(k, int):
        raise ValueError(f"a weight has fixed sizes, not {t}")
    return PackedMatrix(fmt, rows, k)
