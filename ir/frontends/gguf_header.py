"""GGUF bytes -> metadata and tensor list, trusting nothing.

`gguf.GGUFReader` believes every count and length in the file, so a hostile header makes it loop
or allocate without bound. This scan checks each against the bytes that remain before it uses
them. A test compares the two readers. Layout: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import BY_GGUF, Format, by_gguf_type
from speccc.ir.frontends.gguf_types import DEFAULT_ALIGNMENT, ValueType

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.generic]
Value = int | float | bool | str | list[str] | Numbers

MAX_METADATA = 256 << 20
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 22
MAX_KEY = 1 << 16
MAX_NAME = 63  # ggml keeps 64 bytes with the terminator
MAX_ALIGNMENT = 1 << 20
MAX_ELEMENTS = 1 << 48
WINDOW = 1 << 20
"""Bytes of strings that are copied at a time: bytes are cut faster than a mapped file."""
_LENGTH = struct.Struct("<Q")

_SCALARS: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.FLOAT64: np.dtype("<f8"),
    ValueType.BOOL: np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of the file: row-major shape (GGUF's dimensions reversed) and absolute bytes."""

    name: str
    shape: tuple[int, ...]
    format: Format
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """What precedes the data. `metadata` values are scalars, lists of str or number arrays."""

    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    notes: tuple[str, ...]


class _Cursor:
    """A reading position that never passes the end of the file or the metadata budget."""

    def __init__(self, data: Bytes, where: str) -> None:
        self.bytes = data.data
        self.size = len(data)
        self.end = min(len(data), MAX_METADATA)
        self.at = 0
        self.where = where

    def fail(self, message: str) -> InputError:
        return InputError(f"{message} (byte {self.at})", where=self.where)

    def take(self, count: int, what: str) -> memoryview:
        if count > self.end - self.at:
            if self.end < self.size:
                raise self.fail(f"{what} passes the limit of {MAX_METADATA >> 20} MiB of metadata")
            raise self.fail(
                f"{what} ends {count - (self.end - self.at)} bytes past the end of the file"
            )
        self.at += count
        return self.bytes[self.at - count : self.at]

    def uint(self, nbytes: int, what: str) -> int:
        return int.from_bytes(self.take(nbytes, what), "little")

    def count(self, limit: int, item_bytes: int, what: str) -> int:
        """A count whose items, at least `item_bytes` each, still fit in the file."""
        n = self.uint(8, what)
        if n > limit or n * item_bytes > self.end - self.at:
            raise self.fail(f"{what} is {n}, more than the file can hold")
        return n

    def string(self, limit: int, what: str) -> str:
        n = self.uint(8, f"length of {what}")
        if n > limit:
            raise self.fail(f"{what} is {n} bytes long, more than {limit}")
        try:
            return str(self.take(n, what), "utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8") from None

    def strings(self, count: int, key: str) -> list[str]:
        """`count` strings in a row: a vocabulary has a hundred thousand."""
        out: list[str] = []
        while len(out) < count:
            window = bytes(self.bytes[self.at : min(self.at + WINDOW, self.end)])
            self.at += _whole_strings(window, count - len(out), out)
            if len(out) < count:  # the window cuts this one, or something is wrong with it
                out.append(self.string(MAX_METADATA, f"{key}[{len(out)}]"))
        return out


def _whole_strings(window: bytes, most: int, out: list[str]) -> int:
    """Appends up to `most` strings that begin a window, until one is cut or bad; their bytes."""
    at = 0
    try:
        for _ in range(most):
            start = at + _LENGTH.size
            stop = start + _LENGTH.unpack_from(window, at)[0]
            if stop > len(window):
                break
            out.append(window[start:stop].decode())
            at = stop
    except (struct.error, UnicodeDecodeError):
        pass
    return at


def read_header(data: Bytes, where: str) -> Header:
    """Scan the header of a whole file (u8); InputError names the field that is wrong."""
    cursor = _Cursor(data, where)
    if bytes(cursor.take(4, "magic")) != b"GGUF":
        raise InputError("is not a GGUF file (no GGUF magic at its start)", where=where)
    version = cursor.uint(4, "version")
    if version not in (2, 3):
        swapped = version in (2 << 24, 3 << 24)
        reason = "is big-endian GGUF" if swapped else f"is GGUF version {version}"
        raise UnsupportedError(f"{reason}; convert it again (versions 2 and 3)", where=where)
    tensors = cursor.count(MAX_TENSORS, 8 + 4 + 8 + 4 + 8, "the number of tensors")
    entries = cursor.count(MAX_ENTRIES, 8 + 1 + 4 + 1, "the number of metadata entries")
    metadata = _metadata(cursor, entries)
    infos = [_tensor_info(cursor) for _ in range(tensors)]
    align = _alignment(metadata, where)
    base = -(-cursor.at // align) * align
    return _place(infos, metadata, base, align, cursor)


def _metadata(cursor: _Cursor, entries: int) -> dict[str, Value]:
    out: dict[str, Value] = {}
    for i in range(entries):
        key = _name(cursor, MAX_KEY, f"metadata key {i}")
        if key in out:
            raise cursor.fail(f"metadata key {key} occurs twice")
        out[key] = _value(cursor, _type(cursor, key), key)
    return out


def _name(cursor: _Cursor, limit: int, what: str) -> str:
    name = cursor.string(limit, what)
    if not name or any(c in name for c in "\0/\\") or not name.isprintable():
        raise cursor.fail(f"{what} is {name!r:.80}, which is empty or holds forbidden characters")
    return name


def _type(cursor: _Cursor, key: str) -> ValueType:
    number = cursor.uint(4, f"type of {key}")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.fail(f"{key} has unknown type {number}") from None


def _value(cursor: _Cursor, kind: ValueType, key: str) -> Value:
    if kind == ValueType.STRING:
        return cursor.string(MAX_METADATA, key)
    if kind == ValueType.ARRAY:
        return _array(cursor, key)
    scalar = np.frombuffer(cursor.take(_SCALARS[kind].itemsize, key), _SCALARS[kind])[0]
    if kind == ValueType.BOOL:
        if scalar > 1:
            raise cursor.fail(f"{key} is a boolean with value {scalar}")
        return bool(scalar)
    return float(scalar) if _SCALARS[kind].kind == "f" else int(scalar)


def _array(cursor: _Cursor, key: str) -> Value:
    item = _type(cursor, f"elements of {key}")
    if item == ValueType.ARRAY:
        raise cursor.fail(f"{key} is an array of arrays, which no model needs")
    if item == ValueType.STRING:
        n = cursor.count(MAX_STRINGS, 8, f"the length of {key}")
        return cursor.strings(n, key)
    n = cursor.count(MAX_METADATA, _SCALARS[item].itemsize, f"the length of {key}")
    values = np.frombuffer(cursor.take(n * _SCALARS[item].itemsize, key), _SCALARS[item])
    if item == ValueType.BOOL:
        if (values > 1).any():
            raise cursor.fail(f"{key} holds a boolean that is neither 0 nor 1")
        return values.astype(np.bool_)
    return values


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = _name(cursor, MAX_NAME, "a tensor name")
    n_dims = cursor.uint(4, f"dimensions of {name}")
    if not 1 <= n_dims <= 4:
        raise cursor.fail(f"tensor {name} has {n_dims} dimensions, not 1 to 4")
    dims = tuple(cursor.uint(8, f"dimensions of {name}") for _ in range(n_dims))
    if min(dims) < 1 or math.prod(dims) > MAX_ELEMENTS:
        raise cursor.fail(f"tensor {name} has dimensions {list(dims)}")
    kind = cursor.uint(4, f"type of {name}")
    return name, dims[::-1], kind, cursor.uint(8, f"offset of {name}")


def _alignment(metadata: dict[str, Value], where: str) -> int:
    align = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    good = type(align) is int and 0 < align <= MAX_ALIGNMENT and align & (align - 1) == 0
    if not good:
        raise InputError(
            f"general.alignment is {align!r:.40}, not a power of two up to {MAX_ALIGNMENT}",
            where=where,
        )
    return int(align)  # type: ignore[arg-type]


def _format(name: str, kind: int, where: str) -> Format:
    try:
        return by_gguf_type(kind)
    except UnsupportedError:
        from gguf import GGMLQuantizationType  # slow to import

        known = {int(t): t.name for t in GGMLQuantizationType}
        raise UnsupportedError(
            f"tensor {name} is {known.get(kind, f'of unknown type {kind}')}; this version reads "
            f"{', '.join(map(str, BY_GGUF.values())).upper()}: quantize the model to one of them",
            where=where,
        ) from None


def _place(
    infos: list[tuple[str, tuple[int, ...], int, int]],
    metadata: dict[str, Value],
    base: int,
    align: int,
    cursor: _Cursor,
) -> Header:
    """Tensors follow each other in order, each padded to the alignment, as ggml requires."""
    out: list[TensorInfo] = []
    seen: set[str] = set()
    at = 0
    for name, shape, kind, offset in infos:
        if name in seen:
            raise InputError(f"tensor {name} occurs twice", where=cursor.where)
        seen.add(name)
        fmt = _format(name, kind, cursor.where)
        if shape[-1] % fmt.block:
            raise InputError(
                f"tensor {name} has rows of {shape[-1]}, not a multiple of {fmt.block} ({fmt})",
                where=cursor.where,
            )
        if offset != at:
            raise InputError(
                f"tensor {name} starts at offset {offset} of the data, not at {at}: "
                "data overlaps, leaves a hole or is out of order",
                where=cursor.where,
            )
        end = base + offset + fmt.size(shape)
        if end > cursor.size:
            raise InputError(
                f"tensor {name} ends {end - cursor.size} bytes past the end of the file: "
                "the file is cut short; download it again",
                where=cursor.where,
            )
        out.append(TensorInfo(name, shape, fmt, base + offset, end))
        at = -(-(offset + fmt.size(shape)) // align) * align
    rest = cursor.size - max(out[-1].end if out else base, base)
    notes = (f"{rest} bytes follow the last tensor and are ignored",) if rest >= align else ()
    return Header(metadata, tuple(out), notes)
