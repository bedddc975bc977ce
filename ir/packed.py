"""Packed weight matrices: panels of 16 rows in reading order, one layout for any number of tokens.

A panel holds rows 16p..16p+15. For a block format it is a run of 32-wide blocks, each
  codes   for c in 0..: 64 bytes, byte 4 * lane + t = code of (row lane, column 4c + t);
          4-bit codes pair quad c (low nibble) with quad c + 4 (high nibble);
  scales  16 of the format's scale type for each group of columns, then 16 f16 minima if any.
For a float format the panel is [k][16] elements. A format with a factor for each row has 16 f32 at
the panel's end. Rows past the end are zero. This is the operand
order of a 4-way int8 dot product with one lane a row (AVX512-VNNI vpdpbusd, and by halves AVX2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from speccc.ir import expr as ex
from speccc.ir.formats import Format
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.minifloat_expr import minifloat_value
from speccc.ir.types import BF16, E4M3, F16, F32, I32, DType

if TYPE_CHECKING:
    from speccc.ir.tile import Buf

PANEL = 16
BLOCK = 32
U8Array = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FLOATS: dict[str, DType] = {"f32": F32, "f16": F16, "bf16": BF16, "fp8": E4M3}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A [rows, k] matrix of `format`, packed in panels; k must be a multiple of the block."""

    format: Format
    rows: int
    k: int

    @property
    def panels(self) -> int:
        """Number of 16-row panels."""
        return -(-self.rows // PANEL)

    @property
    def blocks(self) -> int:
        """32-wide blocks along k (block formats)."""
        return self.k // BLOCK

    @property
    def is_float(self) -> bool:
        """Whether elements are plain floats."""
        return self.format.name in FLOATS

    @property
    def bits(self) -> int:
        """Bits of one stored code."""
        return self.format.code_bits

    @property
    def code_bytes(self) -> int:
        """Bytes of codes in one block of a panel."""
        return PANEL * BLOCK * self.bits // 8

    @property
    def groups(self) -> int:
        """Scales of a row in one block."""
        return BLOCK // self.format.group

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of a panel."""
        minima = PANEL * F16.nbytes if self.format.has_min else 0
        return self.code_bytes + self.groups * self.scale_bytes + minima

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one group of columns in a block of a panel."""
        return PANEL * self.format.scale_type.nbytes

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel."""
        if self.is_float:
            return self.k * PANEL * FLOATS[self.format.name].nbytes + self.tail_bytes
        return self.blocks * self.block_bytes + self.tail_bytes

    @property
    def tail_bytes(self) -> int:
        """Bytes of the rows' factors in a panel."""
        return PANEL * self.format.tail

    @property
    def nbytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.panels * self.panel_bytes

    def pack(self, raw: U8Array) -> U8Array:
        """Row-major bytes of [rows, k] in the format -> packed bytes [nbytes]."""
        shape = (self.rows, self.k)
        body = self._pack_floats(raw) if self.is_float else self._pack_blocks(raw)
        factors = self.format.row_factors(raw, shape)
        if factors is None:
            return body.reshape(-1)
        full = np.ones(self.panels * PANEL, np.float32)
        full[: self.rows] = factors
        tails = full.reshape(self.panels, PANEL).view(np.uint8)
        return np.concatenate([body.reshape(self.panels, -1), tails], axis=1).reshape(-1)

    def _pack_floats(self, raw: U8Array) -> U8Array:
        dtype = FLOATS[self.format.name]
        rows = raw.reshape(self.rows, -1)
        own = np.ascontiguousarray(rows[:, : rows.shape[1] - self.format.tail])
        full = np.zeros((self.panels * PANEL, self.k), dtype.numpy)
        full[: self.rows] = own.view(dtype.numpy)
        panels = full.reshape(self.panels, PANEL, self.k).transpose(0, 2, 1)
        return np.ascontiguousarray(panels).reshape(-1).view(np.uint8)

    def _pack_blocks(self, raw: U8Array) -> U8Array:
        scale, minimum = self.format.scales(raw, (self.rows, self.k))
        out = np.zeros((self.panels, self.blocks, self.block_bytes), np.uint8)
        out[..., : self.code_bytes] = self._pack_codes(raw)
        end = self.code_bytes + self.groups * self.scale_bytes
        out[..., self.code_bytes : end] = self._pack_column(scale, self.format.scale_type)
        if minimum is not None:
            out[..., end:] = self._pack_column(minimum, F16)
        return out

    def _pack_codes(self, raw: U8Array) -> U8Array:
        shape, zero, levels = (self.rows, self.k), self.format.zero_point, self.format.levels
        # Of the codes of one level the first is kept: a sign beside a zero would need care later.
        firsts = np.array([levels.index(v) for v in levels], np.uint8)
        pairs = self.format.pairs(raw, shape)
        if pairs is not None:  # as a panel pairs them, so that they move together
            both = (firsts[:, None] << np.uint8(4) | firsts).reshape(-1)
            return self._in_lanes(np.take(both, pairs) if levels else pairs, zero << 4 | zero)
        codes = self.format.codes(raw, shape)[0]
        lanes = self._in_lanes(np.take(firsts, codes) if levels else codes, zero)
        if self.bits == 4:
            half = lanes.shape[2] // 2
            lanes = lanes[:, :, :half] | (lanes[:, :, half:] << np.uint8(4))
        return lanes

    def _in_lanes(self, own: U8Array, zero: int) -> U8Array:
        """Bytes of rows [rows, n] -> of blocks of panels [panels, blocks, 16 * n / blocks], four of
        a row after four of another; rows past the end are `zero`."""
        full = own
        if self.rows % PANEL:
            full = np.full((self.panels * PANEL, own.shape[1]), zero, np.uint8)
            full[: self.rows] = own
        # Four codes move as one number, several times as fast as one by one.
        quads = full.view(np.uint32).reshape(self.panels, PANEL, self.blocks, -1)
        lanes = np.ascontiguousarray(quads.transpose(0, 2, 3, 1)).view(np.uint8)
        return lanes.reshape(self.panels, self.blocks, -1)

    def _pack_column(self, column: Floats, dtype: DType) -> U8Array:
        full = np.zeros((self.panels * PANEL, column.shape[1]), dtype.numpy)
        full[: self.rows] = MINIFLOATS[dtype].codes(column) if dtype in MINIFLOATS else column
        lanes = full.reshape(self.panels, PANEL, self.blocks, -1).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(lanes).view(np.uint8).reshape(self.panels, self.blocks, -1)

    def unpack_panel(self, panel: U8Array) -> tuple[U8Array, Floats, Floats | None]:
        """Codes [16, blocks, 32], scales [16, blocks, groups], minima [16, blocks] of a panel."""
        own = panel[: self.panel_bytes - self.tail_bytes]
        blocks = own.reshape(self.blocks, self.block_bytes)
        flat = blocks[:, : self.code_bytes].reshape(self.blocks, -1, PANEL, 4)
        if self.bits == 4:
            flat = np.concatenate([flat & 15, flat >> 4], axis=1)
        codes = flat.transpose(2, 0, 1, 3).reshape(PANEL, self.blocks, BLOCK)
        end = self.code_bytes + self.groups * self.scale_bytes
        scale = _columns(blocks[:, self.code_bytes : end], self.format.scale_type)
        if not self.format.has_min:
            return codes, scale, None
        return codes, scale, _columns(blocks[:, end:], F16)[:, :, 0]

    def element(self, blob: Buf, offset: ex.Expr, row: ex.Expr, k: ex.Expr) -> ex.Expr:
        """The f32 value of element (row, k) as an expression over the blob's bytes."""
        panel, lane = ex.idiv(row, PANEL), ex.mod(row, PANEL)
        value = self._own_element(blob, offset, panel, lane, k)
        if not self.format.row_scale:
            return value
        return ex.mul(value, self.row_factor(blob, offset, panel, lane))

    def row_factor(self, blob: Buf, offset: ex.Expr, panel: ex.Expr, lane: ex.Expr) -> ex.Expr:
        """The f32 factor of row `lane` of a panel."""
        end = ex.add(ex.mul(panel, self.panel_bytes), self.panel_bytes - self.tail_bytes)
        return _lane_of(blob, ex.add(offset, end), lane, F32)

    def _own_element(
        self, blob: Buf, offset: ex.Expr, panel: ex.Expr, lane: ex.Expr, k: ex.Expr
    ) -> ex.Expr:
        base = ex.add(offset, ex.mul(panel, self.panel_bytes))
        if self.is_float:
            return self._float_element(blob, base, lane, k)
        b, t = ex.idiv(k, BLOCK), ex.mod(k, BLOCK)
        base = ex.add(base, ex.mul(b, self.block_bytes))
        value = ex.cast(self.integer(blob, base, lane, t), F32)
        scale = self.scale(blob, base, lane, ex.idiv(t, self.format.group))
        if not self.format.has_min:
            return ex.mul(value, scale)
        return ex.fma(value, scale, self.minimum(blob, base, lane))

    def integer(
        self, blob: Buf, base: ex.Expr, lane: ex.Expr, t: ex.Expr, less: int = 0
    ) -> ex.Expr:
        """What the code of row `lane`, column t of the block at byte `base` stands for, less
        `less` (i32)."""
        code = self.code(blob, base, lane, t)
        if not self.format.levels:
            return ex.sub(code, self.format.zero_point + less)
        return ex.sub(level(self.format.levels, code), less)

    def code(self, blob: Buf, base: ex.Expr, lane: ex.Expr, t: ex.Expr) -> ex.Expr:
        """The unsigned code (i32) of row `lane`, column t of the block at byte `base`."""
        quads = BLOCK // 4 * self.bits // 8
        quad = ex.idiv(t, 4)
        at = ex.add(ex.mul(ex.mod(quad, quads), 4 * PANEL), ex.add(ex.mul(lane, 4), ex.mod(t, 4)))
        code = ex.cast(ex.Load(blob, (ex.add(base, at),)), I32)
        if self.bits == 4:
            half = ex.cast(ex.mul(ex.idiv(quad, quads), 4), I32)
            code = ex.bit_and(ex.shr(code, half), 15)
        return code

    def scale(self, blob: Buf, base: ex.Expr, lane: ex.Expr, group: ex.Scalar = 0) -> ex.Expr:
        """The f32 scale of row `lane` for a group of columns of the block at byte `base`."""
        start = ex.add(ex.mul(ex.lit(group), self.scale_bytes), self.code_bytes)
        return _lane_of(blob, ex.add(base, start), lane, self.format.scale_type)

    def minimum(self, blob: Buf, base: ex.Expr, lane: ex.Expr) -> ex.Expr:
        """The f32 minimum of row `lane` of the block at byte `base`."""
        start = self.code_bytes + self.groups * self.scale_bytes
        return _lane_of(blob, ex.add(base, start), lane, F16)

    def _float_element(self, blob: Buf, base: ex.Expr, lane: ex.Expr, k: ex.Expr) -> ex.Expr:
        dtype = FLOATS[self.format.name]
        at = ex.add(base, ex.mul(ex.add(ex.mul(k, PANEL), lane), dtype.nbytes))
        return load_le(blob, at, dtype)


def _columns(raw: U8Array, dtype: DType) -> Floats:
    """Bytes [blocks, columns * 16 elements] -> f32 [16, blocks, columns]."""
    typed = np.ascontiguousarray(raw).view(dtype.numpy)
    small = MINIFLOATS.get(dtype)
    values = typed.astype(np.float32) if small is None else small.decode(typed.view(np.uint8))
    return values.reshape(len(raw), -1, PANEL).transpose(2, 0, 1)


def level(levels: tuple[int, ...], code: ex.Expr) -> ex.Expr:
    """The level of a 4-bit code (i32): its magnitude out of a constant's nibbles, then its sign."""
    size = ex.bit_and(ex.shr(level_word(levels), ex.mul(ex.bit_and(code, 7), 4)), 15)
    return ex.select(ex.lt(code, 8), size, ex.unary(ex.Fn.NEG, size))


def level_word(levels: tuple[int, ...]) -> ex.Expr:
    """The magnitudes of codes 0..7 as the nibbles of an i32, the first lowest."""
    word = sum(v << (4 * n) for n, v in enumerate(levels[:8]))
    return ex.lit(word - (word >> 31 << 32), I32)


def _lane_of(blob: Buf, start: ex.Expr, lane: ex.Expr, dtype: DType) -> ex.Expr:
    return load_le(blob, ex.add(start, ex.mul(lane, dtype.nbytes)), dtype)


def load_le(blob: Buf, at: ex.Expr, dtype: DType) -> ex.Expr:
    """The little-endian `dtype` at byte `at` of a u8 buffer, as f32."""
    if dtype in MINIFLOATS:
        return minifloat_value(MINIFLOATS[dtype], ex.cast(ex.Load(blob, (at,)), I32))
    return ex.cast(ex.LoadBytes(blob, at, dtype), F32)
