"""How a recorded step runs on a device: its kernels, what they bind, and their order.

The file `launches.json` of an artifact, checked before use.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from speccc.errors import InputError

FILE = "launches.json"
FOLDER = "kernels"
ARENA, SCRATCH, SIZES = "arena", "scratch", "sizes"
"""Bindings that are no parameters of the step."""
SOFTWARE_DEVICE = "llvmpipe"
"""How Mesa's device that is the CPU calls itself: its memory is the host's."""
MOST = 1 << 31
MOST_KERNELS, MOST_BINDINGS, MOST_LAUNCHES = 1024, 31, 1 << 16


@dataclass(frozen=True, slots=True)
class Binding:
    """One buffer of a kernel, by name.

    Activations are `arena` from byte `offset` on; scratch is `each` bytes for every workgroup.
    """

    buffer: str
    offset: int = 0
    each: int = 0


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel and its bindings, to which the sizes are added; `most` workgroups are of use.

    `pushed`: it takes the number of its loop's round as push constant.
    """

    name: str
    subgroup: int
    most: int | None
    bindings: tuple[Binding, ...]
    pushed: bool


@dataclass(frozen=True, slots=True)
class Rounds:
    """Kernels, by number, run one after the other `count` times over."""

    count: int
    kernels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The whole step. `device` is a part of the device's name, `matrix` the instruction's m, n, k.

    `workers` are the most workgroups of a launch where the session does not say.
    """

    device: str
    matrix: tuple[int, int, int] | None
    workers: int
    kernels: tuple[KernelLaunch, ...]
    order: tuple[Rounds, ...]

    @property
    def launches(self) -> int:
        """Launches of one step."""
        return sum(r.count * len(r.kernels) for r in self.order)


def code_entries(spec: LaunchSpec) -> tuple[str, ...]:
    """The artifact's entries with the kernels' SPIR-V, in order."""
    return tuple(f"{FOLDER}/{k.name}.spv" for k in spec.kernels)


def sealed_code(data: Mapping[str, Any]) -> bytes:
    """What the manifest's seal binds to the step: the hashes of the launches and of all code."""
    spec = parse_launches(json.loads(bytes(data[FILE])))
    names = (FILE, *code_entries(spec))
    return b"".join(hashlib.sha256(data[n]).digest() for n in names)


def read_launches(data: Mapping[str, Any], where: str) -> LaunchSpec:
    """The launches of an artifact's entries; InputError names what is missing or wrong."""
    if FILE not in data:
        raise InputError(f"entry {FILE} is missing: compile the model again", where=where)
    try:
        spec = parse_launches(json.loads(bytes(data[FILE])))
        missing = next((n for n in code_entries(spec) if n not in data), None)
        if missing is not None:
            raise ValueError(f"entry {missing} is missing")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        said = " ".join(str(e).split())[:200]
        raise InputError(f"{FILE} is damaged ({said}): compile the model again", where=where) from e
    return spec


def parse_launches(record: Any) -> LaunchSpec:
    """The record of a launch document; ValueError, KeyError or TypeError for a bad field."""
    kernels = tuple(_kernel(k) for k in _list(record["kernels"], MOST_KERNELS))
    if not kernels or len({k.name for k in kernels}) < len(kernels):
        raise ValueError("no kernels, or two of one name")
    matrix = record["matrix"]
    spec = LaunchSpec(
        _text(record["device"]),
        None if matrix is None else _shape(matrix),
        _number(record["workers"], 1, 1 << 16),
        kernels,
        tuple(_rounds(r, len(kernels)) for r in _list(record["order"], MOST_LAUNCHES)),
    )
    if not 1 <= spec.launches <= MOST_LAUNCHES:
        raise ValueError(f"{spec.launches} launches")
    return spec


def check_bindings(spec: LaunchSpec, bufs: Collection[str], arena: int, scratch: int) -> None:
    """ValueError unless every binding is a parameter or fits into the arena or the scratch.

    `arena` is bytes, `scratch` bytes of one worker.
    """
    for kernel in spec.kernels:
        for b in kernel.bindings:
            if b.buffer not in (ARENA, SCRATCH) and b.buffer not in bufs:
                raise ValueError(f"kernel {kernel.name} binds {b.buffer}, which is no buffer")
            if b.buffer == ARENA and b.offset >= arena:
                raise ValueError(f"kernel {kernel.name} binds bytes past the arena")
        if sum(_padded(b.each) for b in kernel.bindings) > scratch:
            raise ValueError(f"kernel {kernel.name} takes more scratch than there is")


ALIGN = 256
"""Bytes: bindings start at multiples of it, the most that a device may ask for."""


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def scratch_bytes(each: Collection[int]) -> int:
    """Bytes of scratch of one worker for buffers of these sizes, each aligned."""
    return sum(_padded(n) for n in each)


def _kernel(k: Any) -> KernelLaunch:
    name = _text(k["name"])
    if not name or not name.replace("_", "").replace(".", "").isalnum():
        raise ValueError(f"a kernel called {name[:40]!r}")
    return KernelLaunch(
        name,
        _number(k["subgroup"], 0, 128),
        None if k["most"] is None else _number(k["most"], 1, MOST),
        tuple(_binding(b) for b in _list(k["bindings"], MOST_BINDINGS)),
        _flag(k["pushed"]),
    )


def _binding(b: Any) -> Binding:
    offset = _number(b.get("offset", 0), 0, MOST)
    if offset % 64:
        raise ValueError(f"a binding at byte {offset}")
    return Binding(_text(b["buffer"]), offset, _number(b.get("each", 0), 0, MOST))


def _rounds(r: Any, kernels: int) -> Rounds:
    numbers = tuple(_number(n, 0, kernels) for n in _list(r["kernels"], MOST_KERNELS))
    return Rounds(_number(r["count"], 1, MOST_LAUNCHES), numbers)


def _shape(sides: Any) -> tuple[int, int, int]:
    m, n, k = (_number(s, 1, 1024) for s in _list(sides, 3))
    return m, n, k


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{str(value)[:40]!r} is no list of at most {most}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return value


def _number(value: Any, least: int, end: int) -> int:
    if type(value) is not int or not least <= value < end:
        raise ValueError(f"{str(value)[:40]!r} is no number from {least} to {end - 1}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{str(value)[:40]!r} is not true or false")
    return value
