"""What ptxas wrote into a cubin about a kernel's resources: an ELF64 file's `.nv.info` notes.

The notes are pairs of an attribute and a value: registers 0x2f, frame size 0x11 (each for a symbol
of the file). NVIDIA documents them by `cuobjdump -elf`; the layout is that of `readelf`'s sections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from speccc.targets.build_error import BuildError

REGISTERS, FRAME = 0x2F, 0x11
WORDS = 4
"""Format of a note whose value is a run of words; in others it is part of the header."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The largest of the file's kernels: registers and stack of a thread, static shared memory."""

    registers: int | None
    stack_bytes: int | None
    shared_bytes: int | None


def cubin_resources(data: bytes) -> Resources:
    """Of one cubin. BuildError when it is none."""
    try:
        sections = dict(_sections(data))
        found: dict[int, int] = {}
        for attribute, value in _notes(sections.get(".nv.info", (0, b""))[1]):
            found[attribute] = max(value, found.get(attribute, 0))
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise BuildError(f"is no cubin: {error}", where="cubin") from None
    # The driver keeps a part for itself under this name.
    shared = [
        size
        for name, (size, _) in sections.items()
        if name.startswith(".nv.shared.") and not name.startswith(".nv.shared.reserved")
    ]
    return Resources(found.get(REGISTERS), found.get(FRAME), max(shared, default=None))


def _sections(data: bytes) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """(name, (size, contents)); a section without contents in the file has none."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("not an ELF64 file")
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + n * entry) for n in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, size in headers:
        start = strings + name
        text = data[start : data.index(b"\0", start)].decode()
        yield text, (size, b"" if kind == _NOBITS else data[offset : offset + size])


_NOBITS = 8


def _notes(info: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == WORDS:
            if size == 8:
                yield attribute, struct.unpack_from("<II", info, at)[1]
            at += size
