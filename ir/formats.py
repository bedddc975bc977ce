"""Number formats of stored weights: one frozen record each, from which decoding and packing follow.

A block of `block` consecutive elements of a row takes `nbytes` bytes made of named fields. A
quantised element is `integer * scale (+ minimum)`, computed in f32 in that order, where a code
stands for the integer `code - zero_point` or for one of `levels`; another one is a field itself.
A format may keep a factor of a whole row, an f32 behind the row's blocks.
Layouts are those of GGUF (ggml-quants, gguf-py `quants.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.ir.format_encode import ENCODERS, ROW_TOPS, row_factors
from speccc.ir.format_expr import (
    Bin,
    Blocks,
    Const,
    Expr,
    Field,
    Lane,
    Read,
    Table,
    ToF32,
    evaluate,
)
from speccc.ir.types import BF16, E4M3, E8M0_HALF, F16, F32, U8, UE4M3_HALF, DType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Elements decoded at a time: keeps temporaries in the tens of megabytes.
_CHUNK = 1 << 21


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers are stored in a tensor's rows.

    `value` is the scalar expression of one element. Quantised formats also name their parts:
    `code` (unsigned, at most 8 bits), `zero_point` or `levels`, `scale` and `minimum`, the latter
    two constant over each `group` of elements and stored as `scale_type`. `levels` are a sign bit
    over magnitudes below 16. With `row_scale` all elements of a row are times the f32 at its end.
    `gguf_type` is the type's number in GGUF files.
    """

    name: str
    block: int
    nbytes: int
    fields: tuple[Field, ...]
    value: Expr
    gguf_type: int | None = None
    code: Expr | None = None
    code_bits: int = 0
    zero_point: int = 0
    scale: Expr | None = None
    minimum: Expr | None = None
    group: int = 1
    scale_type: DType = F16
    levels: tuple[int, ...] = ()
    row_scale: bool = False

    def __hash__(self) -> int:
        # Types of all weights hold a format: its expressions would be hashed again each time.
        return hash(self.name)

    @property
    def quantized(self) -> bool:
        """Whether elements are codes with a scale."""
        return self.code is not None

    @property
    def plain(self) -> bool:
        """Whether a row is its elements, each a float by itself."""
        return self.code is None and not self.row_scale

    @property
    def tail(self) -> int:
        """Bytes behind the blocks of a row."""
        return F32.nbytes if self.row_scale else 0

    @property
    def has_min(self) -> bool:
        """Whether a minimum is added to each element."""
        return self.minimum is not None

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k elements; ValueError when k is not a multiple of the block."""
        if k % self.block:
            raise ValueError(f"{self.name}: rows of {k} are not a multiple of {self.block}")
        return k // self.block * self.nbytes + self.tail

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor; blocks run along the last axis."""
        return prod(shape[:-1]) * self.row_bytes(shape[-1])

    def decode(self, raw: Bytes, shape: tuple[int, ...]) -> Floats:
        """Exact f32 values in `shape` from raw bytes; ValueError when the sizes disagree."""
        blocks = self._blocks(raw, shape)
        out = np.empty((len(blocks), self.block), dtype=np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            for part in self._parts(len(blocks)):
                out[part] = evaluate(self.value, self._view(blocks[part]))
        factors = self.row_factors(raw, shape)
        rows = out.reshape(-1, shape[-1])
        return (rows if factors is None else rows * factors[:, None]).reshape(shape)

    def encode(self, x: npt.ArrayLike) -> Bytes:
        """Raw bytes u8 [..., row bytes] of an f32 array, rounded as gguf-py does.

        ValueError when rows are not whole blocks, or a quantised format meets a value it cannot
        hold (NaN, infinity, a scale beyond f16).
        """
        values = np.ascontiguousarray(x, dtype=np.float32)
        width, rows = self.row_bytes(values.shape[-1]), values.reshape(-1, values.shape[-1])
        if not self.row_scale:
            packed = ENCODERS[self.name](rows.reshape(-1, self.block))
            return packed.reshape(*values.shape[:-1], width)
        factors, top = row_factors(rows, self.name), np.float32(ROW_TOPS[self.name])
        packed = ENCODERS[self.name](np.clip(rows / factors, -top, top).reshape(-1, self.block))
        return self.with_factors(packed, factors).reshape(*values.shape[:-1], width)

    def with_factors(self, packed: Bytes, factors: npt.ArrayLike) -> Bytes:
        """Rows of blocks without their factors, and the factors f32 [n] -> bytes [n, row bytes]."""
        tails = np.ascontiguousarray(factors, "<f4").reshape(-1, 1).view(np.uint8)
        return np.concatenate([packed.reshape(len(tails), -1), tails], axis=1)

    def row_factors(self, raw: Bytes, shape: tuple[int, ...]) -> Floats | None:
        """The factor f32 [n] of each row; None where rows have none."""
        if not self.row_scale:
            return None
        rows = raw.reshape(prod(shape[:-1]), -1)
        return np.ascontiguousarray(rows[:, -self.tail :]).view("<f4")[:, 0]

    def codes(self, raw: Bytes, shape: tuple[int, ...]) -> tuple[Bytes, Floats, Floats | None]:
        """Codes u8 [n, k], scale f32 [n, k/group] and minimum f32 [n, k/group] (or None).

        The element is `integers(code) * scale (+ minimum)`, times its row's factor. ValueError
        for formats without codes.
        """
        if self.code is None:
            raise ValueError(f"{self.name} has no codes")
        blocks = self._blocks(raw, shape)
        codes = np.empty((len(blocks), self.block), dtype=np.uint8)
        for part in self._parts(len(blocks)):
            codes[part] = evaluate(self.code, self._view(blocks[part]))
        return codes.reshape(prod(shape[:-1]), shape[-1]), *self.scales(raw, shape)

    def scales(self, raw: Bytes, shape: tuple[int, ...]) -> tuple[Floats, Floats | None]:
        """Scale f32 [n, k/group] and minimum f32 [n, k/group] (or None), as `codes` has them."""
        if self.scale is None:
            raise ValueError(f"{self.name} has no scales")
        blocks = self._blocks(raw, shape)
        n, groups = prod(shape[:-1]), shape[-1] // self.group
        scale = self._per_group(self.scale, blocks).reshape(n, groups)
        if self.minimum is None:
            return scale, None
        return scale, self._per_group(self.minimum, blocks).reshape(n, groups)

    def pairs(self, raw: Bytes, shape: tuple[int, ...]) -> Bytes | None:
        """Codes of 4 bits as they are stored, u8 [n, k/2], where byte j of the 16 for 32 columns
        holds column j in its low nibble and j + 16 in its high one; None where they are not so."""
        if self.code is not _NIBBLE:
            return None
        codes = self._view(self._blocks(raw, shape)).field("qs")
        return codes.view(np.uint8).reshape(prod(shape[:-1]), shape[-1] // 2)

    def integers(self, codes: Bytes) -> npt.NDArray[np.int32]:
        """What codes stand for, i32 in their shape."""
        if self.levels:
            return np.take(np.asarray(self.levels, np.int32), codes)
        return codes.astype(np.int32) - np.int32(self.zero_point)

    def bound(self, raw: Bytes, shape: tuple[int, ...]) -> float:
        """What no element's magnitude exceeds: one quick scan of scales, or of plain elements.

        NaN or infinite if one of them, a minimum or a factor is.
        """
        blocks = self._blocks(raw, shape)
        factors = self.row_factors(raw, shape)
        views = (self._view(blocks[part]) for part in self._parts(len(blocks)))
        largest = _magnitude([self._bound(view) for view in views])
        return largest * (1.0 if factors is None else _magnitude(factors))

    def _bound(self, view: Blocks) -> float:
        if self.code is None:
            return _magnitude(evaluate(self.value, view))
        integers = self.integers(np.arange(1 << self.code_bits, dtype=np.uint8))
        scales, minimums = self._sizes(self.scale, view), self._sizes(self.minimum, view)
        return _magnitude(integers) * scales + minimums

    def _sizes(self, part: Expr | None, view: Blocks) -> float:
        if part is None:
            return 0.0
        # A field is read without spreading it over the lanes of its group.
        return _magnitude(
            view.field(part.field) if isinstance(part, Read) else evaluate(part, view)
        )

    def _parts(self, blocks: int) -> Iterator[slice]:
        step = _CHUNK // self.block
        return (slice(at, at + step) for at in range(0, blocks, step))

    def _per_group(self, expr: Expr, blocks: Bytes) -> Floats:
        full = evaluate(expr, self._view(blocks))
        wide = np.broadcast_to(full, (len(blocks), max(full.shape[1], self.block // self.group)))
        step = max(1, wide.shape[1] * self.group // self.block)
        return np.ascontiguousarray(wide[:, ::step], dtype=np.float32)

    def _blocks(self, raw: Bytes, shape: tuple[int, ...]) -> Bytes:
        flat = np.ascontiguousarray(raw).reshape(-1)
        if flat.dtype != np.uint8 or flat.size != self.size(shape):
            raise ValueError(
                f"{self.name}{list(shape)} takes {self.size(shape)} bytes, not {flat.nbytes}"
            )
        rows = flat.reshape(-1, self.row_bytes(shape[-1]))
        blocks = rows[:, : rows.shape[1] - self.tail]
        return np.ascontiguousarray(blocks).reshape(-1, self.nbytes)

    def _view(self, blocks: Bytes) -> Blocks:
        return Blocks(blocks, self.fields, self.block)

    def __str__(self) -> str:
        return self.name


def _magnitude(x: npt.ArrayLike) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(np.abs(x).max(initial=0))


def plain(name: str, field: Field, gguf_type: int | None = None) -> Format:
    """A format whose element is one float field."""
    return Format(name, 1, field.nbytes, (field,), Read(field.name), gguf_type)


def affine(
    name: str,
    fields: tuple[Field, ...],
    *,
    code: Expr,
    bits: int,
    zero_point: int = 0,
    scale: Expr,
    minimum: Expr | None = None,
    block: int = 32,
    group: int = 32,
    gguf_type: int | None = None,
    scale_type: DType = F16,
    levels: tuple[int, ...] = (),
) -> Format:
    """A quantised format: the value expression is derived from its parts."""
    value: Expr = ToF32(Table(levels, code) if levels else code)
    if zero_point:
        value = Bin("sub", value, ToF32(Const(zero_point)))
    value = Bin("mul", value, scale)
    if minimum is not None:
        value = Bin("add", value, minimum)
    return Format(
        name,
        block,
        sum(f.nbytes for f in fields),
        fields,
        value,
        gguf_type,
        code,
        bits,
        zero_point,
        scale,
        minimum,
        group,
        scale_type,
        levels,
    )


def _nibble(count: int) -> Expr:
    """Runs of 2 * `count` elements: the first half in the low nibbles of their bytes."""
    half = Bin("div", Lane(), Const(count))
    run = Bin("mul", Bin("div", half, Const(2)), Const(count))
    byte = Read("qs", Bin("add", run, Bin("mod", Lane(), Const(count))))
    return Bin("and", Bin("shr", byte, Bin("mul", Bin("mod", half, Const(2)), Const(4))), Const(15))


_NIBBLE = _nibble(16)

E2M1_TWICE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values of e2m1 are halves, so twice of each is an integer (OCP Microscaling Formats 1.0)."""

F32_ = plain("f32", Field("x", 0, F32), 0)
F16_ = plain("f16", Field("x", 0, F16), 1)
BF16_ = plain("bf16", Field("x", 0, BF16), 30)
Q4_0 = affine(
    "q4_0",
    (Field("d", 0, F16), Field("qs", 2, U8, 16)),
    code=_NIBBLE,
    bits=4,
    zero_point=8,
    scale=Read("d"),
    gguf_type=2,
)
Q4_1 = affine(
    "q4_1",
    (Field("d", 0, F16), Field("m", 2, F16), Field("qs", 4, U8, 16)),
    code=_NIBBLE,
    bits=4,
    scale=Read("d"),
    minimum=Read("m"),
    gguf_type=3,
)
# The signed byte with its sign bit flipped is the unsigned code.
Q8_0 = affine(
    "q8_0",
    (Field("d", 0, F16), Field("qs", 2, U8, 32)),
    code=Bin("xor", Read("qs", Lane()), Const(128)),
    bits=8,
    zero_point=128,
    scale=Read("d"),
    gguf_type=8,
)

MXFP4 = affine(
    "mxfp4",
    (Field("d", 0, E8M0_HALF), Field("qs", 1, U8, 16)),
    code=_NIBBLE,
    bits=4,
    scale=Read("d"),
    scale_type=E8M0_HALF,
    levels=E2M1_TWICE,
    gguf_type=39,
)
NVFP4 = affine(
    "nvfp4",
    (Field("d", 0, UE4M3_HALF, 4), Field("qs", 4, U8, 32)),
    code=_nibble(8),
    bits=4,
    scale=Read("d", Bin("div", Lane(), Const(16))),
    scale_type=UE4M3_HALF,
    levels=E2M1_TWICE,
    block=64,
    group=16,
    gguf_type=40,
)
# Bytes of e4m3 as files have them, before they are joined with their factor.
E4M3_ = plain("e4m3", Field("x", 0, E4M3))
# Bytes of two 4-bit codes, before they are joined with their scales.
PAIRS = plain("u8", Field("x", 0, U8))
# A factor for a whole tensor, as files of NVFP4 and FP8 have it, is one that all rows share.
NVFP4_ROWS = replace(NVFP4, name="nvfp4_rows", row_scale=True, gguf_type=None)
FP8 = replace(E4M3_, name="fp8", row_scale=True)

FORMATS: dict[str, Format] = {
    f.name: f for f in (F32_, F16_, BF16_, Q4_0, Q4_1, Q8_0, MXFP4, NVFP4, NVFP4_ROWS, FP8)
}
BY_GGUF: dict[int, Format] = {f.gguf_type: f for f in FORMATS.values() if f.gguf_type is not None}


def by_gguf_type(number: int) -> Format:
    """The format of a GGUF tensor type; UnsupportedError when speccc has no row for it."""
    found = BY_GGUF.get(number)
    if found is None:
        names = ", ".join(f.name for f in BY_GGUF.values())
        raise UnsupportedError(f"tensor type {number} is not supported; convert to one of {names}")
    return found
