"""Steps on a driver that replays what it recorded: a recording for each shape of step.

A recording copies the inputs in, launches, and copies the results out; from one step to the next
only the numbers of its launches change. So a step is one call of the driver.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from speccc.runtime.devices.gpu_step import Part, Start

Array = npt.NDArray[Any]
MOST = 256
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


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes between a place on the device and an array of `Recorder.stage`."""

    part: Part
    array: Array


@runtime_checkable
class Recorder(Protocol):
    """A driver that records steps."""

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
        self, driver: Recorder, parts: Mapping[str, Part], most: Mapping[str, int]
    ) -> None:
        """`parts` are the places of the buffers, `most` their bytes."""
        self._driver, self._parts, self._most = driver, parts, most
        self._staged: dict[str, Array] = {}
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def run(
        self, inputs: Mapping[str, Array], starts: Sequence[Start], results: Mapping[str, int]
    ) -> dict[str, Array]:
        """Inputs in, launches, `results` (bytes by name) out as u8, valid until the next step."""
        for name, array in inputs.items():
            self._stage(name, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        sizes = {name: array.nbytes for name, array in inputs.items()}
        key = (*sizes.items(), *(id(s.kernel) for s in starts), *results.items())
        if key in self._kept:
            self._kept.move_to_end(key)
            self._driver.replay(self._kept[key], starts)
        else:
            made = self._driver.record(self._moves(sizes), starts, self._moves(results))
            self._kept[key] = made
            self._driver.replay(made, starts)
            if len(self._kept) > MOST:
                self._driver.forget(self._kept.popitem(last=False)[1])
        return {name: self._stage(name, nbytes) for name, nbytes in results.items()}

    def _moves(self, sizes: Mapping[str, int]) -> list[Move]:
        return [Move(self._parts[name], self._stage(name, n)) for name, n in sizes.items()]

    def _stage(self, name: str, nbytes: int) -> Array:
        """The first bytes of the buffer's array on the host, which is as large as the buffer."""
        if name not in self._staged:
            self._staged[name] = self._driver.stage(self._most[name])
        return self._staged[name][:nbytes]
