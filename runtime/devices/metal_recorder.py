"""Steps of an Apple GPU as indirect command buffers, for each shape of step one.

Commands stay as they are encoded: kernels read their numbers in memory that the host shares, so a
step is one command that executes them all, each behind a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from speccc.runtime.devices.gpu_step import DeviceError, Part, Start
from speccc.runtime.devices.recorded_steps import Move, Numbered, places_of, recorded_groups

if TYPE_CHECKING:
    from speccc.runtime.devices.metal import MetalDriver

Array = npt.NDArray[Any]
ALIGN = 256
"""Bytes: no GPU of Apple's feature tables asks more of where a buffer of constants begins."""
MOST_BUFFERS = 31
MOST_COMMANDS = 16384
"""Of an indirect command buffer (Apple's page on `maxCommandCount`)."""
DISPATCH = b"concurrentDispatchThreadgroups:threadsPerThreadgroup:"


def tell_sizes(metal: Any) -> None:
    """Says of `DISPATCH` that it takes two MTLSize.

    pyobjc's own metadata (its tests up to version 11 ask for it) has integers there. What is
    registered for a class and a selector replaces that; where it was right it stays as it was.
    """
    import objc

    size = {"type": metal.MTLSize.__typestr__}
    # The first two arguments of a method are the object and the selector.
    objc.registerMetaDataForSelector(b"NSObject", DISPATCH, {"arguments": {2: size, 3: size}})


@dataclass
class MetalRecording(Numbered):
    """Commands, what they use, and what is copied before and after them."""

    commands: Any
    count: int
    uses: list[Any]
    pipelines: list[Any]
    uploads: Sequence[Move]
    downloads: Sequence[Move]
    memory: Any


class MetalRecorder:
    """Encodes the commands of a driver's steps."""

    def __init__(self, driver: MetalDriver, metal: Any, device: Any) -> None:
        """Nothing is recorded yet."""
        self._driver, self._metal, self._device = driver, metal, device
        tell_sizes(metal)

    def stage(self, nbytes: int) -> Array:
        """Bytes that are copied by the host, which shares the device's memory."""
        return np.zeros(nbytes, np.uint8)

    def record(
        self, uploads: Sequence[Move], starts: Sequence[Start], downloads: Sequence[Move]
    ) -> MetalRecording:
        """Commands that launch these, one after the other."""
        if len(starts) > MOST_COMMANDS:
            raise DeviceError(f"{len(starts)} launches: Metal records {MOST_COMMANDS}")
        places, end = places_of(starts, ALIGN)
        memory = self._driver.allocate(end)
        numbers, told = self._driver.bytes(Part(memory), end), [()] * len(starts)
        made = MetalRecording(
            [], places, numbers, list(told), None, len(starts), [], [], uploads, downloads, memory
        )
        self._encode(made, starts)
        return made

    def replay(self, recording: MetalRecording, starts: Sequence[Start]) -> None:
        """One command, waited for; a recording with too few threadgroups is made anew."""
        if not recording.holds(starts):
            self._encode(recording, starts)
        recording.tell(starts)
        for move in recording.uploads:
            self._driver.upload(move.part, move.array)
        self._driver.execute(
            recording.commands, recording.count, recording.uses, recording.pipelines
        )
        for move in recording.downloads:
            self._driver.download(move.part, move.array)

    def forget(self, recording: MetalRecording) -> None:
        """Its memory goes with the last reference to it."""

    def _encode(self, made: MetalRecording, starts: Sequence[Start]) -> None:
        """Fills a new buffer; what it holds is not changed while it might run."""
        counts = [recorded_groups(start) for start in starts]
        made.commands, made.groups = self._buffer(len(starts)), counts
        uses = {id(part.memory): part.memory for start in starts for part in start.buffers}
        made.uses = [*uses.values(), made.memory]
        made.pipelines = list({id(start.kernel): start.kernel for start in starts}.values())
        size = self._metal.MTLSizeMake
        for n, (start, groups) in enumerate(zip(starts, counts, strict=True)):
            command = made.commands.indirectComputeCommandAtIndex_(n)
            command.setComputePipelineState_(start.kernel)
            parts = list(start.buffers)
            if start.scalars:
                parts.append(Part(made.memory, made.places[n]))
            for at, part in enumerate(parts):
                command.setKernelBuffer_offset_atIndex_(part.memory, part.offset, at)
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(
                size(groups, 1, 1), size(start.threads, 1, 1)
            )
            command.setBarrier()

    def _buffer(self, count: int) -> Any:
        metal = self._metal
        shape = metal.MTLIndirectCommandBufferDescriptor.alloc().init()
        shape.setCommandTypes_(metal.MTLIndirectCommandTypeConcurrentDispatch)
        shape.setInheritBuffers_(False)
        shape.setInheritPipelineState_(False)
        shape.setMaxKernelBufferBindCount_(MOST_BUFFERS)
        made = self._device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
            shape, count, metal.MTLResourceStorageModeShared
        )
        if made is None:
            raise DeviceError(f"no buffer for {count} commands", where="metal")
        return made
