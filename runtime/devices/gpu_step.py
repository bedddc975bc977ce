"""A step of kernel launches on a device: its buffers, its kernels, and one call for each launch.

A `Driver` is all that differs between vendors' interfaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, SpecccError
from speccc.runtime.devices.launch_plan import (
    SCRATCH,
    WHOLE,
    Buffer,
    Launch,
    LaunchPlan,
    Turn,
)

if TYPE_CHECKING:
    from speccc.runtime.devices.recorded_steps import Recorder

Array = npt.NDArray[Any]
BARRIER, LATE = "grid_barrier", 1
"""Where workers of one launch meet, and its word that is set when one of them waited in vain."""
Memory = Any
"""A driver's own handle of a buffer, or of a kernel."""
Kernel = Any


class DeviceError(SpecccError):
    """The device or its driver reported a failure."""


@dataclass(frozen=True, slots=True)
class Code:
    """A built kernel: `shared_bytes` are asked for at launch, beside what the code itself has."""

    binary: bytes
    entry: str
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """An argument: a buffer from a byte on."""

    memory: Memory
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Strided:
    """`count` pieces of `size` bytes, `stride` apart, from byte `source` on to byte `to` on."""

    source: int
    to: int
    size: int
    stride: int
    count: int


class Start(NamedTuple):
    """One launch along x with all that it takes; `scalar` is the type of its numbers.

    A launch of up to `most_groups` does the same: more than there is work for idle.
    """

    kernel: Kernel
    groups: int
    threads: int
    buffers: Sequence[Part]
    scalars: Sequence[int]
    scalar: str
    most_groups: int


class Driver(Protocol):
    """One device. Launches run in the order they are made; DeviceError for a failure."""

    @property
    def name(self) -> str:
        """What the device calls itself."""

    @property
    def arch(self) -> str:
        """Its architecture as targets name it: "sm_90"; "" where the interface does not say."""

    @property
    def groups(self) -> int:
        """Workgroups that keep the device busy."""

    @property
    def recorder(self) -> Recorder | None:
        """What records steps; None where the launches of each step are made one by one."""

    def load(self, code: Code) -> Kernel:
        """A kernel ready to launch."""

    def allocate(self, nbytes: int) -> Memory:
        """A buffer of zeros."""

    def upload(self, part: Part, data: Array) -> None:
        """Copies an array to the device."""

    def download(self, part: Part, into: Array) -> None:
        """Waits for what was launched, then copies from the device."""

    def copy(self, memory: Memory, moved: Strided) -> None:
        """Copies pieces of a buffer to other places in it."""

    def resident(self, kernel: Kernel, threads: int) -> int:
        """Workgroups of a kernel that run at the same time."""

    def launch(
        self,
        kernel: Kernel,
        groups: int,
        threads: int,
        buffers: Sequence[Part],
        scalars: Sequence[int],
        scalar: str,
    ) -> None:
        """One launch along x; `scalar` is the type of all scalars, "i32" or "i64"."""

    def finish(self) -> None:
        """Waits for everything."""

    def close(self) -> None:
        """Gives everything back."""


class _Ready(NamedTuple):
    """What is the same in every step of a launch in its round; `rounds` are numbers by place among
    its scalars."""

    number: int
    kernel: Kernel
    threads: int
    buffers: Sequence[Part]
    scalar: str
    rounds: tuple[tuple[int, int], ...]


class GpuStep:
    """The step of a launch plan, bound to a device's memory."""

    def __init__(
        self,
        driver: Driver,
        plan: LaunchPlan,
        codes: Mapping[str, Code],
        capacity: Mapping[str, int],
        given: Mapping[str, Array],
        groups: int | None = None,
    ) -> None:
        """Loads the kernels and makes every buffer as large as `capacity`'s sizes ask.

        A launch has at most `groups` workgroups. `given` are contents by name; other buffers start
        as zeros. InputError when a kernel's code or a size is missing, or an array has not the
        bytes of its buffer.
        """
        self.driver, self.plan = driver, plan
        self.groups = groups or driver.groups
        self._check(codes, capacity, given)
        self._kernels = {name: driver.load(codes[name]) for name in plan.entries}
        self._sizes = dict(capacity)
        self._ran = False
        self._launches = plan.launches()
        self._rounds = {name: 0 for turn in plan.turns() for name in turn.rounds}
        self._most: dict[int, int] = {}
        arena = self._allocate(plan.arena)
        self.parts = {
            b.name: self._place(b, arena)
            for b in plan.buffers.values()
            if b.role != SCRATCH and b.window is None
        }
        bound = self._bind(capacity)
        self._ready = [self._prepare(turn, bound[turn.number]) for turn in plan.turns()]
        for name, array in given.items():
            self.write(name, array)

    def _check(
        self, codes: Mapping[str, Code], capacity: Mapping[str, int], given: Mapping[str, Array]
    ) -> None:
        for name in self.plan.entries:
            if name not in codes:
                raise InputError(f"kernel {name} is not built for this device")
        for name in self.plan.sizes:
            if name not in capacity:
                raise InputError(f"the plan's size {name} is not known here")
        for name, array in given.items():
            need = self.plan.buffers[name].nbytes(capacity)
            if array.nbytes != need:
                raise InputError(f"buffer {name} has {array.nbytes} bytes, not {need}")

    def _place(self, b: Buffer, arena: Memory) -> Part:
        if b.offset is not None:
            end = b.offset + b.nbytes(self._sizes)
            if end > self.plan.arena:
                raise InputError(f"buffer {b.name} ends {end - self.plan.arena} past the arena")
            return Part(arena, b.offset)
        return Part(self._allocate(b.nbytes(self._sizes)))

    def _allocate(self, nbytes: int) -> Memory:
        try:
            return self.driver.allocate(max(nbytes, 1))
        except DeviceError as error:
            raise DeviceError(f"{error}: give a shorter context (-c) or a smaller model") from None

    def _bind(self, sizes: Mapping[str, int]) -> list[list[Part]]:
        """The arguments of each launch; all have their scratch in the same bytes."""
        places = [self.plan.scratch(s, self.groups, sizes) for s in self._launches]
        most = max((end for _, end in places), default=0)
        memory = self._allocate(most) if most else None
        return [
            [
                Part(memory, own[name]) if name in own else self.parts.get(name, self.parts[WHOLE])
                for name in launch.buffers
            ]
            for launch, (own, _) in zip(self._launches, places, strict=True)
        ]

    def _prepare(self, turn: Turn, bound: list[Part]) -> _Ready:
        """A launch in its round, with the windows that it sees then."""
        number, launch, rounds = turn
        windows = self.plan.windows(launch, {**self._sizes, **rounds})
        if windows:
            whole = self.parts[WHOLE].memory
            bound = [
                Part(whole, windows[name]) if name in windows else part
                for name, part in zip(launch.buffers, bound, strict=True)
            ]
        told = tuple((at, rounds[name]) for at, name in enumerate(launch.scalars) if name in rounds)
        kernel = self._kernels[launch.kernel]
        return _Ready(number, kernel, launch.threads, bound, launch.scalar, told)

    def write(self, name: str, array: Array, at: int = 0) -> None:
        """Copies an array into a buffer, `at` bytes from its start."""
        part = self.parts[name]
        if array.nbytes:
            self.driver.upload(Part(part.memory, part.offset + at), np.ascontiguousarray(array))

    def read(self, name: str, into: Array, at: int = 0) -> None:
        """Fills a contiguous array from a buffer, once the step is done.

        DeviceError when the step's workers did not all meet: what it wrote means nothing.
        """
        if self._ran and BARRIER in self.parts:
            self._ran = False
            words = np.zeros(LATE + 1, np.int64)
            self.driver.download(self.parts[BARRIER], words)
            check_met(words)
        part = self.parts[name]
        if into.nbytes:
            self.driver.download(Part(part.memory, part.offset + at), into)

    def copy(self, name: str, moved: Strided) -> None:
        """Copies pieces of a buffer that stands by itself."""
        self.driver.copy(self.parts[name].memory, moved)

    def launch(self, starts: Sequence[Start]) -> None:
        """Makes the launches of a step; `read` waits for them."""
        self._ran = True
        for s in starts:
            self.driver.launch(s.kernel, s.groups, s.threads, s.buffers, s.scalars, s.scalar)

    def starts(self, sizes: Mapping[str, int]) -> list[Start]:
        """The launches of a step, in order; one without work is left out."""
        known = {**self._rounds, **self._sizes, **sizes}
        numbers = [self._numbers(n, launch, known) for n, launch in enumerate(self._launches)]
        out = []
        for number, kernel, threads, buffers, scalar, rounds in self._ready:
            groups, most, scalars = numbers[number]
            if groups < 1:
                continue
            told = scalars.copy()
            for at, value in rounds:
                told[at] = value
            out.append(Start(kernel, groups, threads, buffers, tuple(told), scalar, most))
        return out

    def _numbers(
        self, number: int, launch: Launch, known: Mapping[str, int]
    ) -> tuple[int, int, list[int]]:
        """Workgroups and most workgroups of a launch, and its scalars but for those of rounds."""
        units = launch.most(known)
        if units < 1:
            return 0, 0, []
        most = self._most_groups(number, launch)
        return min(units, most), min(launch.fixed or most, most), launch.numbers(known)

    def _most_groups(self, number: int, launch: Launch) -> int:
        """The most workgroups that a launch may have; DeviceError when not one of it runs."""
        if number not in self._most:
            self._most[number] = self.groups
            if launch.resident:
                # They wait for each other: one that does not run would be waited for without end.
                kernel = self._kernels[launch.kernel]
                held = self.driver.resident(kernel, launch.threads)
                self._most[number] = min(self.groups, held)
        if self._most[number] < 1:
            raise DeviceError(
                f"kernel {launch.kernel} does not fit this device: "
                "compile the model for it (--target)"
            )
        return self._most[number]


def check_met(words: Array) -> None:
    """DeviceError when a step's barrier, i64 words, says that its workers did not all meet."""
    if words[LATE]:
        raise DeviceError("the workers of a step did not meet: open the session anew")


SPAN = 1 << 20
"""Bytes that are cheaper to fetch at once than piece by piece."""


def copy_through_host(driver: Driver, memory: Memory, moved: Strided) -> None:
    """`Driver.copy` for devices that only copy runs of bytes."""
    reach = moved.stride * (moved.count - 1) + moved.size
    if reach > SPAN:
        piece = np.empty(moved.size, np.uint8)
        for n in range(moved.count):
            driver.download(Part(memory, moved.source + n * moved.stride), piece)
            driver.upload(Part(memory, moved.to + n * moved.stride), piece)
        return
    source, to = np.empty(reach, np.uint8), np.empty(reach, np.uint8)
    driver.download(Part(memory, moved.source), source)
    driver.download(Part(memory, moved.to), to)
    for at in range(0, reach, moved.stride):
        to[at : at + moved.size] = source[at : at + moved.size]
    driver.upload(Part(memory, moved.to), to)
