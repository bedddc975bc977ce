"""A shader's accesses under Vulkan's memory model: ordered by its barriers, not one by one.

Matrices bring this model with them, and glslang then makes every single load and store of shared
memory wait until the whole workgroup sees it: AMD's compiler puts a wait behind each. Our texts
have a barrier wherever one invocation reads what another wrote, so it is enough that these make
writes available and visible (SPIR-V, "Memory Semantics"), and that accesses are not private.
"""

from __future__ import annotations

import struct

from speccc.targets.spirv import CONSTANT, HEADER_WORDS, POINTER, VARIABLE, WORKGROUP, instructions

MEMORY_MODEL, VULKAN = 14, 3
FUNCTION, ACCESS_CHAIN, IN_BOUNDS_CHAIN, CONTROL_BARRIER = 54, 65, 66, 224
STORAGE_BUFFER = 12
BOUND = 3
"""The word of a header that is past the largest id."""
MAKE_AVAILABLE, MAKE_VISIBLE = 0x2000, 0x4000
"""Of a barrier's semantics."""
ALIGNED, AVAILABLE, VISIBLE, NON_PRIVATE = 0x2, 0x8, 0x10, 0x20
"""Of an access; a number follows the first, a scope each of the next two."""
ACCESSES = {61: (2, 3), 62: (0, 2), 4457: (2, 5), 4458: (0, 4)}
"""Loads and stores, of matrices too: where the pointer is, and where what is said of the access."""

Words = tuple[int, ...]


def ordered_by_barriers(module: bytes) -> bytes:
    """The module with its barriers alone in charge; as it is under any other memory model."""
    found = list(instructions(module))
    if not any(op == MEMORY_MODEL and words[1] == VULKAN for op, words in found):
        return module
    header = list(struct.unpack_from(f"<{HEADER_WORDS}I", module))
    shared, constants = _shared(found), {w[1]: w for op, w in found if op == CONSTANT}
    wider: dict[int, int] = {}
    body: list[tuple[int, Words]] = []
    for op, words in found:
        if op == CONTROL_BARRIER:
            wider.setdefault(words[2], header[BOUND] + len(wider))
            words = (*words[:2], wider[words[2]])
        elif op in ACCESSES and words[ACCESSES[op][0]] in shared:
            words = _access(words, ACCESSES[op][1])
        body.append((op, words))
    start = next(n for n, (op, _) in enumerate(body) if op == FUNCTION)
    body[start:start] = [(CONSTANT, _semantics(constants[old], new)) for old, new in wider.items()]
    header[BOUND] += len(wider)
    encoded = [w for op, words in body for w in (len(words) + 1 << 16 | op, *words)]
    return struct.pack(f"<{len(header) + len(encoded)}I", *header, *encoded)


def _shared(found: list[tuple[int, Words]]) -> set[int]:
    """Pointers to what invocations share: a workgroup's memory, and buffers."""
    kinds = {w[0] for op, w in found if op == POINTER and w[1] in (WORKGROUP, STORAGE_BUFFER)}
    made = (VARIABLE, ACCESS_CHAIN, IN_BOUNDS_CHAIN)
    return {w[1] for op, w in found if op in made and w[0] in kinds}


def _access(words: Words, at: int) -> Words:
    mask, *rest = words[at:] or (0,)
    kept = rest[:1] if mask & ALIGNED else []
    return (*words[:at], mask & ~(AVAILABLE | VISIBLE) | NON_PRIVATE, *kept)


def _semantics(constant: Words, new: int) -> Words:
    kind, _, value = constant
    return kind, new, value | MAKE_AVAILABLE | MAKE_VISIBLE
