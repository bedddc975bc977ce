"""A SPIR-V module as a stream of instructions."""

from __future__ import annotations

import struct
from collections import Counter

from speccc.targets.build_error import BuildError

MAGIC = 0x07230203
HEADER_WORDS = 5


def opcode_counts(module: bytes) -> Counter[int]:
    """How often each opcode stands in a module. BuildError when it is none."""
    if len(module) % 4 or len(module) < 4 * HEADER_WORDS:
        raise BuildError("is no SPIR-V: not whole words", where="module")
    words = struct.unpack(f"<{len(module) // 4}I", module)
    if words[0] != MAGIC:
        raise BuildError("is no SPIR-V: wrong magic number", where="module")
    counts: Counter[int] = Counter()
    at = HEADER_WORDS
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            raise BuildError("is no SPIR-V: an instruction ends past it", where="module")
        counts[opcode] += 1
        at += length
    return counts
