"""Apple GPUs through Metal, called by `pyobjc`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Strided, copy_through_host
from speccc.runtime.devices.metal_recorder import MetalRecorder

Array = npt.NDArray[Any]

MEND = "on a Mac: pip install 'speccc[metal]'"
GROUPS = 256
"""Threadgroups that keep any of these GPUs busy: Metal does not say how many cores there are."""
SCALARS = {"i32": "i", "i64": "q"}


def _bindings() -> Any:
    """The module; UnsupportedError when it is not installed."""
    try:
        import Metal
    except ImportError as error:
        raise UnsupportedError(f"metal: {error}: {MEND}") from None
    return Metal


class MetalDriver:
    """The system's GPU and one queue.

    Launches gather in a command buffer, which is run when somebody waits. Memory is shared with the
    host, so copies are the host's own.
    """

    def __init__(self) -> None:
        """UnsupportedError when there is no GPU that Metal knows."""
        self._metal = _bindings()
        self._device = self._metal.MTLCreateSystemDefaultDevice()
        if self._device is None:
            raise UnsupportedError(f"metal: this system has no GPU for it: {MEND}")
        self._queue = self._device.newCommandQueue()
        self._commands: Any = None
        self._encoder: Any = None
        self._recorder: MetalRecorder | None = None
        # Of compute commands: Apple's own GPUs in Macs. Others' launches are made anew each step.
        if self._device.supportsFamily_(self._metal.MTLGPUFamilyApple7):
            self._recorder = MetalRecorder(self, self._metal, self._device)

    @property
    def name(self) -> str:
        """As Apple calls it: "Apple M4 Pro"."""
        return str(self._device.name())

    @property
    def arch(self) -> str:
        """The chip's first word: "m4" of "Apple M4 Pro"."""
        return self.name.removeprefix("Apple ").split(" ")[0].lower()

    @property
    def groups(self) -> int:
        """Threadgroups that keep the device busy."""
        return GROUPS

    @property
    def recorder(self) -> MetalRecorder | None:
        """Indirect command buffers, where the GPU has them for kernels."""
        return self._recorder

    def load(self, code: Code) -> Any:
        """A pipeline of a function; `code.binary` is MSL, compiled here with exact arithmetic."""
        options = self._metal.MTLCompileOptions.alloc().init()
        options.setFastMathEnabled_(False)
        text = code.binary.decode()
        library, error = self._device.newLibraryWithSource_options_error_(text, options, None)
        if library is None:
            raise DeviceError(f"{code.entry}: {error}", where="metal")
        function = library.newFunctionWithName_(code.entry)
        if function is None:
            raise DeviceError(f"{code.entry}: no such function", where="metal")
        pipeline, error = self._pipeline(function)
        if pipeline is None:
            raise DeviceError(f"{code.entry}: {error}", where="metal")
        return pipeline

    def _pipeline(self, function: Any) -> tuple[Any, Any]:
        """A pipeline that recorded commands may name, or None and why."""
        shape = self._metal.MTLComputePipelineDescriptor.alloc().init()
        shape.setComputeFunction_(function)
        shape.setSupportIndirectCommandBuffers_(self._recorder is not None)
        make = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_
        # Versions of pyobjc differ in whether the reflection comes back too, between these.
        found = make(shape, self._metal.MTLPipelineOptionNone, None, None)
        return found[0], found[-1]

    def allocate(self, nbytes: int) -> Any:
        """A shared buffer, which Metal fills with zeros."""
        mode = self._metal.MTLResourceStorageModeShared
        buffer = self._device.newBufferWithLength_options_(nbytes, mode)
        if buffer is None:
            raise DeviceError(f"no memory for {nbytes} bytes", where="metal")
        return buffer

    def upload(self, part: Part, data: Array) -> None:
        """Waits for what was launched, then copies."""
        self.bytes(part, data.nbytes)[:] = data.reshape(-1).view(np.uint8)

    def download(self, part: Part, into: Array) -> None:
        """Waits for what was launched, then copies."""
        into.reshape(-1).view(np.uint8)[:] = self.bytes(part, into.nbytes)

    def copy(self, memory: Any, moved: Strided) -> None:
        """On the host, which shares the memory."""
        copy_through_host(self, memory, moved)

    def resident(self, kernel: Any, threads: int) -> int:
        """One: Metal does not promise that any two run at once."""
        return 1

    def launch(
        self,
        kernel: Any,
        groups: int,
        threads: int,
        buffers: Sequence[Part],
        scalars: Sequence[int],
        scalar: str,
    ) -> None:
        """One dispatch; the scalars are one record after the buffers."""
        encoder = self._encode()
        encoder.setComputePipelineState_(kernel)
        for n, part in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(part.memory, part.offset, n)
        if scalars:
            record = struct.pack(f"<{len(scalars)}{SCALARS[scalar]}", *scalars)
            encoder.setBytes_length_atIndex_(record, len(record), len(buffers))
        size = self._metal.MTLSizeMake
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(size(groups, 1, 1), size(threads, 1, 1))

    def execute(
        self, commands: Any, count: int, uses: Sequence[Any], pipelines: Sequence[Any]
    ) -> None:
        """Runs the first commands of an indirect buffer, and waits for them.

        `uses` are the buffers that they name, `pipelines` their pipelines.
        """
        encoder, metal = self._encode(), self._metal
        usage = metal.MTLResourceUsageRead | metal.MTLResourceUsageWrite
        encoder.useResources_count_usage_(uses, len(uses), usage)
        nothing = metal.MTLSizeMake(0, 0, 0)
        for pipeline in pipelines:
            # M1 and M2 fault on a pipeline that only recorded commands name, and no call says that
            # it is used: so it is set, for no threads (as tinygrad does for these).
            encoder.setComputePipelineState_(pipeline)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(nothing, nothing)
        encoder.executeCommandsInBuffer_withRange_(commands, (0, count))
        self.finish()

    def finish(self) -> None:
        """Runs what was gathered and waits for it."""
        if self._commands is None:
            return
        commands, self._commands = self._commands, None
        self._encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        if commands.error() is not None:
            raise DeviceError(str(commands.error()), where="metal")

    def close(self) -> None:
        """Waits; memory goes with the last reference to it."""
        self.finish()

    def _encode(self) -> Any:
        if self._commands is None:
            self._commands = self._queue.commandBuffer()
            # A serial encoder: each dispatch sees what those before it wrote.
            self._encoder = self._commands.computeCommandEncoder()
        return self._encoder

    def bytes(self, part: Part, nbytes: int) -> Array:
        """A place of a buffer, once what was launched has run."""
        self.finish()
        whole = part.memory.contents().as_buffer(part.memory.length())
        return np.frombuffer(whole, np.uint8)[part.offset : part.offset + nbytes]
