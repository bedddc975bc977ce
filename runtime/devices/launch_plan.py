"""A launch plan, the JSON beside a target's kernels -> what to launch for given sizes.

An emitted folder and an artifact have the same one, on every device. It is checked field by field
before anything is allocated; its messages name the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from speccc.errors import InputError
from speccc.ir.types import DTYPES
from speccc.runtime.devices.size_expr import Size, read_size

FILE = "launch-plan.json"
SCRATCH = "scratch"
ROLES = ("input", "weights", "state", "activation", "output", "workspace", SCRATCH)
ALIGN = 256
"""Bytes: what a buffer's part starts at a multiple of, the most that a device may ask for."""
END = {"i32": 2**31 - 1, "i64": 2**63 - 1}
"""The largest number by type of scalar: only the weights can have more bytes than an i32 says, and
then kernels see windows of them."""
SCALARS = tuple(END)
WHOLE = "weights"
MOST_THREADS = 1024
MOST_TRIPS = 100_000
MOST_LAUNCHES = 1 << 16
"""Of one step."""
MOST_SIDE = 1024


@dataclass(frozen=True, slots=True)
class Needs:
    """What is asked of the device.

    `device` is what its driver calls it (a part of its name, or a filter), "" for the first there
    is; `subgroup` is invocations, 0 for any; `matrix` an int8 instruction's m, n, k; `halves` those
    of one that sums f16 as f32. `workers` are workgroups that keep it busy, 0 where the driver
    knows.
    """

    device: str = ""
    subgroup: int = 0
    matrix: tuple[int, int, int] | None = None
    halves: tuple[int, int, int] | None = None
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer by name; `offset` is bytes into the arena, None for one of its own.

    A `window` is a part of the buffer `weights`, from that byte on, which may differ by a loop's
    round: so 32 bits reach any place in it.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    role: str
    offset: int | None
    window: Size | None = None

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Its bytes for given sizes."""
        total = DTYPES[self.dtype].nbytes
        for d in self.shape:
            total *= d(sizes)
        return total


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, its arguments, and how many workgroups there is work for: in every round the same.

    `fixed` is that number where it does not depend on the sizes either.
    """

    kernel: str
    buffers: tuple[str, ...]
    scalars: tuple[str, ...]
    scalar: str
    most: Size
    threads: int
    resident: bool
    fixed: int | None = None

    def numbers(self, known: Mapping[str, int]) -> list[int]:
        """What the kernel's scalars are told; as much as their type holds."""
        end = END[self.scalar]
        return [min(known[name], end) for name in self.scalars]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A body repeated for var = 0..extent-1."""

    var: str
    extent: int
    body: tuple[Step, ...]


Step = Union[Launch, Repeat]  # noqa: UP007 (forward reference)


class Turn(NamedTuple):
    """A launch in a round of the loops around it; `number` is its own among `launches()`."""

    number: int
    launch: Launch
    rounds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a step launches: `entries` is each kernel's function by the kernel's name."""

    sizes: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    entries: Mapping[str, str]
    steps: tuple[Step, ...]
    arena: int
    needs: Needs = Needs()

    def launches(self) -> tuple[Launch, ...]:
        """Each launch once, in order."""
        return tuple(_flat(self.steps))

    def scratch(
        self, launch: Launch, groups: int, sizes: Mapping[str, int]
    ) -> tuple[dict[str, int], int]:
        """Where the scratch buffers of a launch begin, and the end: launches share the bytes."""
        out, at = {}, 0
        for name in launch.buffers:
            b = self.buffers[name]
            if b.role == SCRATCH:
                out[name] = at
                at += -(-groups * b.nbytes(sizes) // ALIGN) * ALIGN
        return out, at

    def turns(self) -> Iterator[Turn]:
        """The launches of one step in order, those in a loop again and again."""
        return _turns(self.steps, 0, {})

    def windows(self, launch: Launch, known: Mapping[str, int]) -> dict[str, int]:
        """Where in the weights the windows of a launch begin; InputError for one outside them."""
        out = {}
        for name in launch.buffers:
            b = self.buffers[name]
            if b.window is not None:
                out[name] = b.window(known)
                whole = self.buffers[WHOLE].nbytes(known)
                if not 0 <= out[name] <= whole - b.nbytes(known):
                    raise InputError(f"buffer {name} lies outside the weights")
        return out


def _flat(steps: tuple[Step, ...]) -> Iterator[Launch]:
    for step in steps:
        if isinstance(step, Repeat):
            yield from _flat(step.body)
        else:
            yield step


def _turns(steps: tuple[Step, ...], number: int, rounds: Mapping[str, int]) -> Iterator[Turn]:
    """Turns of steps whose first launch has that number."""
    for step in steps:
        if isinstance(step, Repeat):
            for n in range(step.extent):
                yield from _turns(step.body, number, {**rounds, step.var: n})
        else:
            yield Turn(number, step, rounds)
        number += sum(1 for _ in _flat((step,)))


def read_launch_plan(document: Any, where: str) -> LaunchPlan:
    """The plan of a parsed launch-plan.json. InputError names what is damaged."""
    try:
        return _plan(document)
    except KeyError as error:
        reason = f"{error} is missing"
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = str(error)[:200]
    raise InputError(f"the launch plan is damaged ({reason}): make it again", where=where)


def _plan(document: Any) -> LaunchPlan:
    if not isinstance(document, dict):
        raise ValueError("it is no object")
    sizes = tuple(_text(s) for s in document["sizes"])
    arena = _count(document["arena_bytes"])
    inside = (*sizes, *_loops(document["launches"]))
    buffers = {b.name: b for b in (_buffer(b, sizes, inside, arena) for b in document["buffers"])}
    if len(buffers) != len(document["buffers"]):
        raise ValueError("a buffer is there twice")
    if any(b.window for b in buffers.values()) and WHOLE not in buffers:
        raise ValueError("parts of weights that are not there")
    entries = {_text(k["name"]): _text(k["entry"]) for k in document["kernels"]}
    reader = _Reader(buffers, entries, sizes)
    steps = reader.steps(document["launches"], sizes)
    count = sum(map(_launches, steps))
    if len(entries) != len(document["kernels"]) or not 1 <= count <= MOST_LAUNCHES:
        raise ValueError(f"{count} launches of {len(entries)} kernels")
    return LaunchPlan(sizes, buffers, entries, steps, arena, _needs(document["needs"]))


def _launches(step: Step) -> int:
    return step.extent * sum(map(_launches, step.body)) if isinstance(step, Repeat) else 1


def _needs(n: Any) -> Needs:
    device = n["device"]
    if not isinstance(device, str) or not (device.isascii() and device.isprintable()):
        raise ValueError(f"{str(device)[:40]!r} is no device")
    matrix, halves = _sides(n["matrix"]), _sides(n.get("halves"))
    return Needs(device, _count(n["subgroup"]), matrix, halves, _count(n["workers"]))


def _sides(sides: Any) -> tuple[int, int, int] | None:
    if sides is None:
        return None
    if not isinstance(sides, list) or len(sides) != 3:
        raise ValueError(f"a matrix of {str(sides)[:40]!r}")
    if not all(1 <= _count(s) <= MOST_SIDE for s in sides):
        raise ValueError(f"a matrix of {sides}")
    return sides[0], sides[1], sides[2]


def _loops(steps: Any) -> Iterator[str]:
    """The variables of all loops."""
    for step in steps:
        if "loop" in step:
            yield _text(step["loop"])
            yield from _loops(step["body"])


def _buffer(b: Any, sizes: tuple[str, ...], inside: tuple[str, ...], arena: int) -> Buffer:
    name, role = _text(b["name"]), b["role"]
    if role not in ROLES or b["dtype"] not in DTYPES:
        raise ValueError(f"buffer {name} is of an unknown kind")
    offset = _count(b["arena_offset"]) if role == "activation" else None
    if offset is not None and (offset > arena or offset % 4):
        raise ValueError(f"buffer {name} lies outside the arena")
    shape = tuple(read_size(d, sizes) for d in b["shape"])
    window = read_size(b["window"], inside) if "window" in b else None
    if window is not None and (role != WHOLE or name == WHOLE):
        raise ValueError(f"buffer {name} is no part of the weights")
    return Buffer(name, b["dtype"], shape, role, offset, window)


@dataclass(frozen=True, slots=True)
class _Reader:
    """What launches may name."""

    buffers: Mapping[str, Buffer]
    entries: Mapping[str, str]
    sizes: tuple[str, ...]

    def steps(self, document: Any, names: tuple[str, ...]) -> tuple[Step, ...]:
        return tuple(self._step(s, names) for s in document)

    def _step(self, s: Any, names: tuple[str, ...]) -> Step:
        if "loop" in s:
            var, extent = _text(s["loop"]), _count(s["extent"])
            if extent > MOST_TRIPS or var in names:
                raise ValueError(f"a loop over {var} of {extent}")
            return Repeat(var, extent, self.steps(s["body"], (*names, var)))
        kernel, buffers, scalars = s["kernel"], tuple(s["buffers"]), tuple(s["scalars"])
        unknown = [n for n in buffers if n not in self.buffers]
        unknown += [n for n in scalars if n not in names]
        if kernel not in self.entries or unknown:
            raise ValueError(f"a launch names {unknown[0] if unknown else kernel}")
        grid = s["workgroups"]
        threads = _count(grid["threads"])
        if not 1 <= threads <= MOST_THREADS or s["scalar_type"] not in SCALARS:
            raise ValueError(f"kernel {kernel} takes {threads} threads of {s['scalar_type']}")
        most = read_size(grid["most"], self.sizes)
        resident = grid["all_resident"] is True
        fixed = grid["most"] if type(grid["most"]) is int else None
        kind = s["scalar_type"]
        return Launch(kernel, buffers, scalars, kind, most, threads, resident, fixed)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise ValueError(f"{str(value)[:40]!r} is no name")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value
