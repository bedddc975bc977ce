"""What a built kernel takes and uses, read from the files its stages made.

Each reader knows one kind of file. What a file does not say stays None.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from speccc.targets.cubin import cubin_resources
from speccc.targets.spirv import is_opencl, opcode_counts, workgroup_bytes


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Of one kernel: registers of an invocation, bytes of a workgroup's shared memory.

    `stack_bytes` is an invocation's memory beside its registers; `spills` how much of it is there
    because registers ran out (all of it on CUDA, where our kernels put nothing else).
    `instructions` counts matrix and dot instructions in the text by name, not how often they run.
    """

    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)
    stack_bytes: int | None = None


Reader = Callable[[bytes], KernelFacts]


FIGURES = ("registers", "spills", "shared_bytes", "stack_bytes")


def kernel_facts(stages: Mapping[str, bytes]) -> KernelFacts:
    """All that the files of one kernel say, by their endings; a later file overrules an earlier."""
    figures: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for ext, data in stages.items():
        if ext in READERS:
            found = READERS[ext](data)
            known = {name: getattr(found, name) for name in FIGURES}
            figures.update({name: n for name, n in known.items() if n is not None})
            counts.update(found.instructions)
    return KernelFacts(**figures, instructions=dict(sorted(counts.items())))


def _text_counts(pattern: str) -> Callable[[str], Mapping[str, int]]:
    found = re.compile(pattern)

    def count(text: str) -> Mapping[str, int]:
        return dict(Counter(" ".join(filter(None, m.groups())) for m in found.finditer(text)))

    return count


# An instruction starts a line; a comment or a name elsewhere in it does not count.
_PTX = _text_counts(
    r"(?m)^\s*(?:@!?%p\d+ )?(mma\.sync|wgmma\.mma_async|tcgen05\.mma|dp4a)\b"
    r"(?:\S*kind::(\w+)|\S*\.f32\.(f16|bf16|e4m3)\b)?"
)
_GCN = _text_counts(r"(?m)^\s*(v_(?:mfma|wmma|swmmac|smfmac|dot4)_\w+)")
_MSL = _text_counts(r"\b(simdgroup_multiply_accumulate)\s*\(")
_XE = _text_counts(r"(?m)^\s*(?:\([^)]*\)\s*)?(dpasw?(?=\.)|dp4a\b)")
_SPIRV = {
    4459: "OpCooperativeMatrixMulAddKHR",
    4450: "OpSDot",
    4451: "OpUDot",
    4452: "OpSUDot",
    4453: "OpSDotAccSat",
    4454: "OpUDotAccSat",
    4455: "OpSUDotAccSat",
}


def _cubin(data: bytes) -> KernelFacts:
    found = cubin_resources(data)
    return KernelFacts(
        found.registers, found.stack_bytes, found.shared_bytes, stack_bytes=found.stack_bytes
    )


def _amdgcn(data: bytes) -> KernelFacts:
    text = data.decode()
    # Scalar registers spill into lanes of vector registers: only vector registers go to memory.
    spilled = _field(text, "vgpr_spill_count")
    return KernelFacts(
        _field(text, "vgpr_count"),
        None if spilled is None else 4 * spilled,
        _field(text, "group_segment_fixed_size"),
        _GCN(text),
        _field(text, "private_segment_fixed_size"),
    )


def _field(text: str, name: str) -> int | None:
    """A field of the metadata that closes AMD's assembly; the largest where kernels differ."""
    found = [int(n) for n in re.findall(rf"(?m)^\s*-?\s*\.{name}:\s*(\d+)", text)]
    return max(found, default=None)


def _spirv(data: bytes) -> KernelFacts:
    counts = opcode_counts(data)
    found = {_SPIRV[op]: n for op, n in counts.items() if op in _SPIRV}
    # An OpenCL kernel may be given its local memory by the runtime: none declared says nothing.
    shared = workgroup_bytes(data)
    return KernelFacts(
        shared_bytes=None if shared == 0 and is_opencl(data) else shared, instructions=found
    )


_THREADGROUP = re.compile(r"(?m)^\s*threadgroup (\w+) \w+\[([\d* ]+)\];")
_MSL_BYTES = {"float": 4, "int": 4, "uint": 4, "half": 2, "bfloat": 2, "char": 1, "uchar": 1}


def _metal(data: bytes) -> KernelFacts:
    text = data.decode()
    found = [(_MSL_BYTES.get(kind), size) for kind, size in _THREADGROUP.findall(text)]
    known = [n * math.prod(map(int, size.split("*"))) for n, size in found if n is not None]
    shared = sum(known) if len(known) == len(found) else None
    return KernelFacts(shared_bytes=shared, instructions=_MSL(text))


def _facts(data: bytes) -> KernelFacts:
    """What a compiler said beside its files: a stage "json" of the target itself."""
    told = json.loads(data)
    figures = {name: told.get(name) for name in FIGURES}
    return KernelFacts(**figures, instructions=told.get("instructions", {}))


def _assembly(count: Callable[[str], Mapping[str, int]]) -> Reader:
    return lambda data: KernelFacts(instructions=count(data.decode(errors="replace")))


READERS: dict[str, Reader] = {
    "ptx": _assembly(_PTX),
    "cubin": _cubin,
    "amdgcn": _amdgcn,
    "spv": _spirv,
    "metal": _metal,
    "xe.asm": _assembly(_XE),
    "amd.asm": _assembly(_GCN),
    "json": _facts,
}
"""By file ending."""
