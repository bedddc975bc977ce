"""Steps of a SYCL device as command graphs, for each shape of step one.

A graph's commands stay as they are: kernels read their numbers in memory, which it copies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from speccc.runtime.devices.gpu_step import Part, Start
from speccc.runtime.devices.recorded_steps import Move, Numbered, places_of, recorded_groups
from speccc.runtime.devices.sycl_graph import SyclGraphs

if TYPE_CHECKING:
    from speccc.runtime.devices.sycl import SyclDriver

Array = npt.NDArray[Any]
ALIGN = 16
"""Bytes at a multiple of which a launch's numbers begin."""


@dataclass
class SyclRecording(Numbered):
    """A graph, what it copies, and where the numbers of its launches lie on the device."""

    graph: int
    uploads: Sequence[Move]
    downloads: Sequence[Move]
    memory: Any


class SyclRecorder:
    """Records what a driver submits."""

    def __init__(self, driver: SyclDriver, graphs: SyclGraphs) -> None:
        """Nothing is recorded yet."""
        self._driver, self._graphs = driver, graphs
        self._made: list[SyclRecording] = []

    def stage(self, nbytes: int) -> Array:
        """Memory of the host that the device reads and writes."""
        return np.frombuffer(self._driver.host_memory(nbytes), np.uint8)

    def record(
        self, uploads: Sequence[Move], starts: Sequence[Start], downloads: Sequence[Move]
    ) -> SyclRecording:
        """A graph of the copies and launches, each behind the one before."""
        places, end = places_of(starts, ALIGN)
        numbers, memory = self.stage(end), self._driver.allocate(end)
        told: list[Sequence[int]] = [()] * len(starts)
        made = SyclRecording([], places, numbers, told, 0, uploads, downloads, memory)
        self._fill(made, starts)
        self._made.append(made)
        return made

    def replay(self, recording: SyclRecording, starts: Sequence[Start]) -> None:
        """One submission, waited for; a recording with too few workgroups is made anew."""
        if not recording.holds(starts):
            self._drop(recording)
            self._fill(recording, starts)
        recording.tell(starts)
        self._graphs.run(recording.graph)
        self._driver.wait()

    def forget(self, recording: SyclRecording) -> None:
        """Gives a graph and its memory back."""
        self._made.remove(recording)
        self._drop(recording)

    def close(self) -> None:
        """Gives all back."""
        for recording in list(self._made):
            self.forget(recording)

    def _drop(self, recording: SyclRecording) -> None:
        """Gives the graph back; there is none where making another failed."""
        graph, recording.graph = recording.graph, 0
        if graph:
            self._graphs.free(graph)

    def _fill(self, made: SyclRecording, starts: Sequence[Start]) -> None:
        groups = [recorded_groups(start) for start in starts]
        self._driver.wait()
        made.graph = self._graphs.record(lambda: self._submit(made, starts, groups))
        made.groups = groups

    def _submit(self, made: SyclRecording, starts: Sequence[Start], counts: Sequence[int]) -> None:
        driver = self._driver
        driver.copy_in(Move(Part(made.memory), made.numbers))
        for move in made.uploads:
            driver.copy_in(move)
        for start, groups, at in zip(starts, counts, made.places, strict=True):
            parts = list(start.buffers)
            if start.scalars:
                numbers = driver.span(Part(made.memory, at), made.numbers.nbytes - at)
                parts.append(Part(numbers))
            driver.submit(start.kernel, groups, start.threads, parts)
        for move in made.downloads:
            driver.copy_out(move)
