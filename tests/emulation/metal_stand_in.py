"""Runs MSL on this CPU: compiled with a stand-in for `metal_stdlib`, in processes of its own.

The kernel's attributes say which buffer and which number each parameter takes; threads, barriers,
simdgroups and what counts as an error are `metal/threadgroup.cpp`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from emulation.stand_in_program import ProgramError, StandInProgram

Array = npt.NDArray[Any]

HERE = Path(__file__).parent / "metal"
COMPILERS = ("g++", "clang++", "c++")
# What the texts' pragmas say to Metal's compiler, the flags say to this one.
FLAGS = ("-std=c++17", "-ffp-contract=off", "-Wno-attributes", "-Wno-unknown-pragmas")
# An optimizer may read early what it might not need, which would look like a race. What C++ gives
# no meaning (an overflow, a wrong shift, a number at no multiple of its size) ends the program.
AS_WRITTEN = (
    "-O0",
    "-fsanitize=thread",
    "-fsanitize=undefined,float-cast-overflow",
    "-fsanitize-undefined-trap-on-error",
)
NUMBERS = {
    "thread_index_in_threadgroup": "number",
    "simdgroup_index_in_threadgroup": "simdgroup",
    "thread_index_in_simdgroup": "number % metal::LANES",
    "threadgroup_position_in_grid": "group",
    "threadgroups_per_grid": "groups",
}
DEFINED, UNDEFINED, CONSTANT, FILE = range(4)
WATCHED = (DEFINED, UNDEFINED)
TIMEOUT_S = 120.0
MOST_PROCESSES = 16


class StandInError(Exception):
    """The stand-in refused a text or stopped a kernel; the message is its own."""


def find_compiler() -> str | None:
    """A C++ compiler of this machine."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


@dataclass
class MetalStandIn:
    """Compiles texts and runs them; each text is compiled once."""

    compiler: str
    folder: Path
    lanes: int = 32
    include: Path = HERE
    built: dict[str, StandInProgram] = field(default_factory=dict)

    def bound(self, text: str, entry: str, count: int) -> list[Param]:
        """The kernel's `count` buffers by number."""
        return _bound(text, entry, count)

    def source(self, text: str, entry: str) -> str:
        """What is compiled: the text, and the function that the runner calls."""
        return f"{text}\n{_call(text, entry)}"

    def program(self, text: str, entry: str) -> StandInProgram:
        """The program that runs one kernel of a text. StandInError quotes the compiler."""
        key = hashlib.sha256(f"{entry}\n{text}".encode()).hexdigest()[:16]
        if key not in self.built:
            source, out = self.folder / f"{key}.cpp", self.folder / key
            source.write_text(self.source(text, entry))
            watched = self.folder / f"{key}.o"
            self._compile(
                *AS_WRITTEN, f"-I{self.include}", self._width, "-c", str(source), "-o", str(watched)
            )
            self._compile(str(watched), str(self._runner()), "-o", str(out))
            self.built[key] = StandInProgram(out, timeout_s=TIMEOUT_S)
        # What was used last is last; the processes of all but a model's kernels end.
        self.built[key] = self.built.pop(key)
        for idle in list(self.built.values())[:-MOST_PROCESSES]:
            idle.close()
        return self.built[key]

    def run(
        self,
        text: str,
        entry: str,
        buffers: Sequence[Array],
        *,
        groups: int,
        simdgroups: int,
        undefined: Collection[int] = (),
        order: int = 0,
        files: Mapping[int, Path] | None = None,
    ) -> list[Array]:
        """The buffers afterwards; the kernel's sizes are one of them, an array of i32.

        `undefined` numbers buffers whose contents may not be read before they are written; `files`
        have the contents of constant ones. `order` of the invocations between barriers: 0 from the
        first, 1 from the last, else a shuffle's seed. StandInError says what the kernel did wrong.
        """
        given, held = [np.ascontiguousarray(b) for b in buffers], files or {}
        params = self.bound(text, entry, len(given))
        kinds = [p.buffer_kind(p.number in undefined, p.number in held) for p in params]
        head = struct.pack("<4i", groups, simdgroups, order, len(given))
        names = (f"{p.name}:{held.get(n, '')}".encode() for n, p in enumerate(params))
        told = (
            struct.pack("<q2i", b.nbytes, kind, len(name)) + name
            for b, kind, name in zip(given, kinds, names, strict=True)
        )
        piped = (b.tobytes() for b, k in zip(given, kinds, strict=True) if k != FILE)
        size = sum(b.nbytes for b, k in zip(given, kinds, strict=True) if k in WATCHED)
        try:
            answer = self.program(text, entry).launch(b"".join((head, *told, *piped)), size)
        except ProgramError as error:
            raise StandInError(f"{entry}: {error}") from None
        return _afterwards(answer, given, kinds)

    @property
    def _width(self) -> str:
        return f"-DSTAND_IN_LANES={self.lanes}"

    def _runner(self) -> Path:
        out = self.folder / "threadgroup.o"
        if not out.exists():
            # Fortified, a jump to another fiber's stack would pass for an error.
            source = str(HERE / "threadgroup.cpp")
            self._compile("-O2", "-U_FORTIFY_SOURCE", self._width, "-c", source, "-o", str(out))
        return out

    def _compile(self, *words: str) -> None:
        done = subprocess.run(
            [self.compiler, *FLAGS, *words], capture_output=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise StandInError(done.stderr.decode(errors="replace"))


def stand_in(folder: Path) -> MetalStandIn:
    """A stand-in that builds in `folder`. StandInError without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise StandInError(f"no C++ compiler: none of {', '.join(COMPILERS)}")
    return MetalStandIn(compiler, folder)


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel: its type, its name, its attribute, and a buffer's number."""

    kind: str
    name: str
    attribute: str
    number: int | None

    def buffer_kind(self, undefined: bool, file: bool) -> int:
        """As the runner numbers kinds. StandInError for a file that the kernel may write."""
        constant = "const" in self.kind
        if file and not constant:
            raise StandInError(f"{self.name} is written: a file cannot hold it")
        if constant and not undefined:
            return FILE if file else CONSTANT
        return UNDEFINED if undefined else DEFINED


def parameters(text: str, entry: str) -> list[Param]:
    """What a kernel takes, in order. StandInError unless every parameter has one attribute."""
    found = re.search(rf"kernel void {re.escape(entry)}\(([^{{]*)\) *\{{", text)
    if not found:
        raise StandInError(f"no kernel {entry}")
    out = []
    for param in found[1].split(",\n"):
        parts = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*\[\[(\w+)(?:\((\d+)\))?\]\]\s*", param)
        if not parts:
            raise StandInError(f"{entry}: a parameter without an attribute: {param.strip()}")
        out.append(Param(parts[1], parts[2], parts[3], int(parts[4]) if parts[4] else None))
    return out


def _bound(text: str, entry: str, count: int) -> list[Param]:
    """The buffers by number."""
    bound = {p.number: p for p in parameters(text, entry) if p.attribute == "buffer"}
    if sorted(n for n in bound if n is not None) != list(range(count)):
        raise StandInError(f"{entry}: takes buffers {sorted(bound)}, was given {count}")
    return [bound[n] for n in range(count)]


def _afterwards(data: bytes, given: Sequence[Array], kinds: Sequence[int]) -> list[Array]:
    out, at = [], 0
    for b, kind in zip(given, kinds, strict=True):
        if kind in WATCHED:
            part = np.frombuffer(data, b.dtype, b.size, at)
            out.append(part.reshape(b.shape).copy())
            at += b.nbytes
        else:
            out.append(b)
    return out


def _call(text: str, entry: str) -> str:
    """The function the runner calls: it hands each parameter what its attribute says."""
    words = []
    for p in parameters(text, entry):
        if p.attribute == "buffer":
            kind = re.sub(r"^(device|constant) +", "", p.kind)
            place = f"buffers[{p.number}]"
            by_name = kind.endswith("&")
            words.append(f"*(const {kind[:-1]}*){place}" if by_name else f"({kind}){place}")
        elif p.attribute in NUMBERS:
            words.append(NUMBERS[p.attribute])
        else:
            raise StandInError(f"{entry}: [[{p.attribute}]] is not known here")
    head = (
        'extern "C" void stand_in_kernel(void* const* buffers, uint number, uint simdgroup, '
        "uint group, uint groups)"
    )
    return f"{head} {{\n    {entry}({', '.join(words)});\n}}\n"
