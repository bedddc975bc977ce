"""A safetensors file's header, checked before any byte of data is used.

The `safetensors` library checks sizes and offsets too; what it lets pass or leaves slow is refused
here first: duplicate names, padding that is not spaces, too many entries, other files' bytes.
Layout: u64 length, JSON header, data.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import BF16_, E4M3_, F16_, F32_, PAIRS, Format
from speccc.ir.frontends.scales import is_scale

MAX_HEADER = 100_000_000
MAX_ENTRIES = 1 << 17
MAX_ELEMENTS = 1 << 48
DTYPES: dict[str, Format] = {
    "F32": F32_,
    "F16": F16_,
    "BF16": BF16_,
    "F8_E4M3": E4M3_,
    "U8": PAIRS,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file: its format, shape and mapped bytes."""

    name: str
    format: Format
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]


def read_file(path: Path) -> dict[str, Entry]:
    """Map a file and return its tensors; InputError names the file and what is wrong."""
    where = str(path)
    size = path.stat().st_size
    if size < 8:
        raise InputError(f"is not a safetensors file: it has {size} bytes", where=where)
    data = np.memmap(path, np.uint8, mode="r")
    header = parse_header(data, where)
    base = 8 + int.from_bytes(data[:8].tobytes(), "little")
    entries = _entries(header, data[base:].view(np.ndarray), where)
    _second_opinion(path)
    return entries


def parse_header(data: npt.NDArray[np.uint8], where: str) -> dict[str, object]:
    """The JSON object at the start of a file's bytes."""
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > MAX_HEADER or length > len(data) - 8:
        raise InputError(
            f"header of {length} bytes does not fit in a file of {len(data)}: the file is cut "
            "short or is not safetensors",
            where=where,
        )
    text = data[8 : 8 + length].tobytes()
    if text[:1] != b"{":
        raise InputError("header does not start with '{'", where=where)
    if text.rstrip(b" ")[-1:] != b"}":
        raise InputError("header is padded with something other than spaces", where=where)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise InputError(f"header is not valid JSON: {str(error)[:80]}", where=where) from None
    if len(header) > MAX_ENTRIES:
        raise InputError(f"header lists {len(header)} entries", where=where)
    return dict(header)


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in out if names.count(n) > 1)!r:.60} occurs twice")
    return out


def _second_opinion(path: Path) -> None:
    """Let the reference reader validate the header as well."""
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"is not valid safetensors: {reason}", where=str(path)) from None


def _entries(
    header: dict[str, object], data: npt.NDArray[np.uint8], where: str
) -> dict[str, Entry]:
    """Tensors must tile the data: no hole, no overlap, nothing after the last."""
    found = [_entry(k, v, where) for k, v in header.items() if k != "__metadata__"]
    at = 0
    out = {}
    for name, fmt, shape, begin, end in sorted(found, key=lambda item: item[3:]):
        if begin != at or end > len(data):
            raise InputError(
                f"tensor {name} covers bytes {begin}..{end} of {len(data)}, not from {at}: "
                "data overlaps, leaves a hole or is cut short",
                where=where,
            )
        at = end
        out[name] = Entry(name, fmt, shape, data[begin:end])
    if at != len(data):
        raise InputError(f"{len(data) - at} bytes follow the last tensor", where=where)
    return out


def _entry(name: str, value: object, where: str) -> tuple[str, Format, tuple[int, ...], int, int]:
    if not name or not name.isprintable():
        raise InputError(f"tensor name {name!r:.80} is empty or not printable", where=where)
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"tensor {name:.80} has other fields than it should", where=where)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [-1]
    if any(type(n) is not int or n < 0 for n in numbers) or len(offsets) != 2:
        raise InputError(f"tensor {name:.80} has a malformed shape or offsets", where=where)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsupportedError(
            f"tensor {name:.80} is {dtype!r:.20}; {', '.join(DTYPES)} are supported", where=where
        )
    fmt = DTYPES[dtype]
    if (not shape and not is_scale(name)) or math.prod(shape) > MAX_ELEMENTS:
        raise InputError(f"tensor {name:.80} has shape {shape!r:.60}", where=where)
    begin, end = offsets
    size = fmt.size(tuple(shape) or (1,))
    if end - begin != size:
        raise InputError(
            f"tensor {name:.80} of {dtype}{shape} takes {size} bytes, "
            f"but its offsets cover {end - begin}",
            where=where,
        )
    return name, fmt, tuple(shape), begin, end
