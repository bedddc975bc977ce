"""Steps on a driver that replays what it recorded: a recording for each shape of step.

A recording copies the inputs in, launches, and copies the results out; from one step to the next
only the numbers of its launches change: they are told to the recording, or lie in memory that its
launches read. So a step is one call of the driver.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from speccc.runtime.devices.gpu_step import Part, Start

Array = npt.NDArray[Any]
FORMS = {"i32": "i", "i64": "q"}
"""Types of scalars as `struct` names them."""
MOST = 64
"""Recordings that are kept: each number of rows, with picks, with the largest logits or all."""


@dataclass
class Recording:
    """A graph ready to run, its kernels' nodes in order, and the launches they make as it is."""

    graph: Any
    ready: Any
    nodes: list[Any]
    starts: list[Start]

    def changes(self, starts: Sequence[Start]) -> Iterator[tuple[Any, Start]]:
        """Nodes to be told other numbers; each counts as told when the next is asked for."""
        for n, (node, start) in enumerate(zip(self.nodes, starts, strict=True)):
            if start != self.starts[n]:
                yield node, start
                self.starts[n] = start


@dataclass
class Numbered:
    """Launches whose commands stay as they are recorded: what changes lies in `numbers`, u8.

    Each launch's scalars begin at its `places`. As a launch of more workgroups than there is work
    for does the same, each has the next power of two: a text that grows is seldom recorded anew.
    """

    groups: list[int]
    places: list[int]
    numbers: Array
    told: list[Sequence[int]]

    def holds(self, starts: Sequence[Start]) -> bool:
        """Whether the launches have enough workgroups for these."""
        return all(start.groups <= n for start, n in zip(starts, self.groups, strict=True))

    def tell(self, starts: Sequence[Start]) -> None:
        """Writes the scalars that changed."""
        into = self.numbers.data
        for n, start in enumerate(starts):
            scalars = start.scalars
            if scalars != self.told[n]:
                _form(len(scalars), start.scalar).pack_into(into, self.places[n], *scalars)
                self.told[n] = scalars


def recorded_groups(start: Start) -> int:
    """Workgroups of a launch that stays as it is recorded."""
    return min(start.most_groups, 1 << (start.groups - 1).bit_length())


def places_of(starts: Sequence[Start], align: int) -> tuple[list[int], int]:
    """Bytes at which each launch's scalars begin, multiples of `align`, and the end: at least 1."""
    places, end = [], 0
    for start in starts:
        places.append(end)
        end += -(-_form(len(start.scalars), start.scalar).size // align) * align
    return places, max(end, 1)


@cache
def _form(count: int, scalar: str) -> struct.Struct:
    """How so many scalars lie in memory."""
    return struct.Struct(f"<{count}{FORMS[scalar]}")


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes between a place on the device and an array of `Recorder.stage`."""

    part: Part
    array: Array


class Recorder(Protocol):
    """What records steps of a driver."""

    def stage(self, nbytes: int) -> Array:
        """Bytes of the host u8 [nbytes] that the device reads and writes by itself."""

    def record(
        self, uploads: Sequence[Move], starts: Sequence[Start], downloads: Sequence[Move]
    ) -> Any:
        """A recording of these, one after the other."""

    def replay(self, recording: Any, starts: Sequence[Start]) -> None:
        """Runs a recording with other numbers of workgroups and scalars, and waits for it."""

    def forget(self, recording: Any) -> None:
        """Gives a recording back."""


class RecordedSteps:
    """The recordings of one step function, by what they copy and launch."""

    def __init__(
        self, recorder: Recorder, parts: Mapping[str, Part], most: Mapping[str, int]
    ) -> None:
        """`parts` are the places of the buffers, `most` their bytes."""
        self._recorder, self._parts, self._most = recorder, parts, most
        self._staged: dict[str, Array] = {}
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def run(
        self, inputs: Mapping[str, Array], starts: Sequence[Start], results: Mapping[str, int]
    ) -> dict[str, Array]:
        """Inputs in, launches, `results` (bytes by name) out as u8, valid until the next step."""
        for name, array in inputs.items():
            self._stage(name, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        sizes = {name: array.nbytes for name, array in inputs.items()}
        # `starts` lacks launches without work, which is so of all launches of a kernel or of none.
        key = (*sizes.items(), *(id(s.kernel) for s in starts), *results.items())
        if key in self._kept:
            self._kept.move_to_end(key)
            self._recorder.replay(self._kept[key], starts)
        else:
            made = self._recorder.record(self._moves(sizes), starts, self._moves(results))
            self._kept[key] = made
            self._recorder.replay(made, starts)
            if len(self._kept) > MOST:
                self._recorder.forget(self._kept.popitem(last=False)[1])
        return {name: self._stage(name, nbytes) for name, nbytes in results.items()}

    def _moves(self, sizes: Mapping[str, int]) -> list[Move]:
        return [Move(self._parts[name], self._stage(name, n)) for name, n in sizes.items()]

    def _stage(self, name: str, nbytes: int) -> Array:
        """The first bytes of the buffer's array on the host, which is as large as the buffer."""
        if name not in self._staged:
            self._staged[name] = self._recorder.stage(self._most[name])
        return self._staged[name][:nbytes]
