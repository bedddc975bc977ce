"""A SPIR-V module as a stream of instructions."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from speccc.targets.build_error import BuildError

MAGIC = 0x07230203
HEADER_WORDS = 5


INT, FLOAT, VECTOR, ARRAY, CONSTANT, POINTER, VARIABLE = 21, 22, 23, 28, 43, 32, 59
CAPABILITY, KERNEL = 17, 6
WORKGROUP, PUSH_CONSTANT = 4, 9
"""Storage classes."""
DECORATE, BINDING = 71, 33


@dataclass(frozen=True, slots=True)
class Interface:
    """What a shader of one descriptor set is bound to: bindings are 0 to `bindings` - 1."""

    bindings: int
    pushed: bool


def instructions(module: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(opcode, operands) of each instruction. BuildError when it is no module."""
    if len(module) % 4 or len(module) < 4 * HEADER_WORDS:
        raise BuildError("is no SPIR-V: not whole words", where="module")
    words = struct.unpack(f"<{len(module) // 4}I", module)
    if words[0] != MAGIC:
        raise BuildError("is no SPIR-V: wrong magic number", where="module")
    at = HEADER_WORDS
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            raise BuildError("is no SPIR-V: an instruction ends past it", where="module")
        yield opcode, words[at + 1 : at + length]
        at += length


def opcode_counts(module: bytes) -> Counter[int]:
    """How often each opcode stands in a module."""
    return Counter(opcode for opcode, _ in instructions(module))


def is_opencl(module: bytes) -> bool:
    """Whether it is of OpenCL's kind (the capability Kernel), not of Vulkan's."""
    return any(op == CAPABILITY and words[0] == KERNEL for op, words in instructions(module))


def interface(module: bytes) -> Interface:
    """The bindings of a Vulkan module, and whether it takes push constants."""
    bindings, pushed = 0, False
    for opcode, words in instructions(module):
        if opcode == DECORATE and words[1] == BINDING:
            bindings = max(bindings, words[2] + 1)
        elif opcode == VARIABLE:
            pushed |= words[2] == PUSH_CONSTANT
    return Interface(bindings, pushed)


def workgroup_bytes(module: bytes) -> int | None:
    """Bytes of its Workgroup variables; None when one has a type that is not counted here."""
    sizes: dict[int, int] = {}
    constants: dict[int, int] = {}
    pointees: dict[int, int] = {}
    total = 0
    for opcode, words in instructions(module):
        if opcode in (INT, FLOAT):
            sizes[words[0]] = words[1] // 8
        elif opcode == CONSTANT:
            constants[words[1]] = words[2]
        elif opcode in (VECTOR, ARRAY) and words[1] in sizes:
            count = words[2] if opcode == VECTOR else constants.get(words[2], 0)
            sizes[words[0]] = count * sizes[words[1]]
        elif opcode == POINTER:
            pointees[words[0]] = words[2]
        elif opcode == VARIABLE and words[2] == WORKGROUP:
            size = sizes.get(pointees[words[0]])
            if not size:
                return None
            total += size
    return total
