"""AMD GPUs through the HIP API of `hip-python`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Start, Strided
from speccc.runtime.devices.recorded_steps import Move, Recording

Array = npt.NDArray[Any]

MEND = "install ROCm, then the hip-python of its version"
HIDDEN = (0, 0)
"""Triton's kernels take two more pointers, to scratch and to profiles, which ours do not use."""
WAVES = 4
"""Workgroups for each compute unit where nothing else limits them."""
SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


def _bindings() -> Any:
    """The module; UnsupportedError when it is not installed."""
    try:
        from hip import hip
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(f"rocm: {error}: {MEND}") from None
    return hip


class RocmDriver:
    """One GPU and one stream: launches run in order, and steps are graphs."""

    def __init__(self, device: int = 0) -> None:
        """UnsupportedError when there is no such GPU."""
        self._hip = _bindings()
        self._memory: list[int] = []
        self._staged: list[int] = []
        self._recordings: list[Recording] = []
        self._modules: list[Any] = []
        self._closed = False
        try:
            self._call(self._hip.hipInit(0))
            self._call(self._hip.hipSetDevice(device))
        except (DeviceError, RuntimeError) as error:
            # The bindings raise when they cannot load the driver's library.
            said = error if isinstance(error, DeviceError) else f"rocm: {error}"
            raise UnsupportedError(f"{said}: {MEND}") from None
        self._stream = self._call(self._hip.hipStreamCreate())
        kind = self._hip.hipDeviceAttribute_t.hipDeviceAttributeMultiprocessorCount
        self._units = int(self._call(self._hip.hipDeviceGetAttribute(kind, device)))
        self._facts = self._hip.hipDeviceProp_t()
        self._call(self._hip.hipGetDeviceProperties(self._facts, device))

    @property
    def name(self) -> str:
        """As AMD calls it: "AMD Radeon RX 7900 XTX"."""
        return _text(self._facts.name)

    @property
    def arch(self) -> str:
        """Without what is switched on or off: "gfx942" of "gfx942:sramecc+:xnack-"."""
        return _text(self._facts.gcnArchName).partition(":")[0]

    @property
    def groups(self) -> int:
        """Workgroups that keep the device busy."""
        return WAVES * self._units

    @property
    def recorder(self) -> RocmDriver:
        """Itself: steps are graphs."""
        return self

    def load(self, code: Code) -> tuple[Any, int]:
        """The function of a code object, and the shared memory to ask for."""
        try:
            module = self._call(self._hip.hipModuleLoadData(code.binary))
        except DeviceError as error:
            raise DeviceError(
                f"kernel {code.entry}: {error}: is it compiled for this device, {self.arch}? "
                "(--target)"
            ) from None
        self._modules.append(module)
        function = self._call(self._hip.hipModuleGetFunction(module, code.entry.encode()))
        return function, code.shared_bytes

    def allocate(self, nbytes: int) -> int:
        """A buffer of zeros; DeviceError when the memory is not there."""
        address = int(self._call(self._hip.hipMalloc(nbytes)))
        self._memory.append(address)
        self._call(self._hip.hipMemsetAsync(address, 0, nbytes, self._stream))
        return address

    def upload(self, part: Part, data: Array) -> None:
        """From pageable memory HIP copies before it returns."""
        to = part.memory + part.offset
        self._call(self._hip.hipMemcpyHtoDAsync(to, data, data.nbytes, self._stream))

    def download(self, part: Part, into: Array) -> None:
        """Waits for the stream, then copies."""
        self._fetch(part, into)
        self.finish()

    def _fetch(self, part: Part, into: Array) -> None:
        source = part.memory + part.offset
        self._call(self._hip.hipMemcpyDtoHAsync(into, source, into.nbytes, self._stream))

    def copy(self, memory: int, moved: Strided) -> None:
        """One two-dimensional copy inside the device."""
        kind = self._hip.hipMemcpyKind.hipMemcpyDeviceToDevice
        to, source = memory + moved.to, memory + moved.source
        self._call(
            self._hip.hipMemcpy2DAsync(
                to, moved.stride, source, moved.stride, moved.size, moved.count, kind, self._stream
            )
        )

    def resident(self, kernel: tuple[Any, int], threads: int) -> int:
        """As many as fit all compute units at once."""
        function, shared = kernel
        each = self._call(
            self._hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
        )
        return int(each) * self._units

    def launch(
        self,
        kernel: tuple[Any, int],
        groups: int,
        threads: int,
        buffers: Sequence[Part],
        scalars: Sequence[int],
        scalar: str,
    ) -> None:
        """One launch on the stream; the bindings pack the arguments as the code object has them."""
        function, shared = kernel
        arguments = _arguments(buffers, scalars, scalar)
        self._call(
            self._hip.hipModuleLaunchKernel(
                function, groups, 1, 1, threads, 1, 1, shared, self._stream, None, arguments
            )
        )

    def stage(self, nbytes: int) -> Array:
        """Page-locked memory: copies of a graph go straight from and to it."""
        address = int(self._call(self._hip.hipHostMalloc(nbytes, 0)))
        self._staged.append(address)
        held: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(held, np.uint8)

    def record(
        self, uploads: Sequence[Move], starts: Sequence[Start], downloads: Sequence[Move]
    ) -> Recording:
        """A graph of what the stream would do.

        It is captured: the bindings' calls that add a node cannot say which one it follows.
        """
        mode = self._hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        self._call(self._hip.hipStreamBeginCapture(self._stream, mode))
        try:
            nodes = self._captured(uploads, starts, downloads)
        except BaseException:
            # The stream is of no use before the capture's end, which may be an error by now.
            _, graph = self._hip.hipStreamEndCapture(self._stream)
            if graph is not None:
                self._call(self._hip.hipGraphDestroy(graph))
            raise
        graph = self._call(self._hip.hipStreamEndCapture(self._stream))
        try:
            ready = self._call(self._hip.hipGraphInstantiate(graph, None, 0))
        except BaseException:
            self._call(self._hip.hipGraphDestroy(graph))
            raise
        made = Recording(graph, ready, nodes, list(starts))
        self._recordings.append(made)
        return made

    def _captured(
        self, uploads: Sequence[Move], starts: Sequence[Start], downloads: Sequence[Move]
    ) -> list[int]:
        """Puts all on the stream; the nodes of kernels, in order."""
        nodes: list[int] = []
        for move in uploads:
            self.upload(move.part, move.array)
        for s in starts:
            self.launch(s.kernel, s.groups, s.threads, s.buffers, s.scalars, s.scalar)
            nodes.append(self._last_node())
        for move in downloads:
            self._fetch(move.part, move.array)
        return nodes

    def _last_node(self) -> int:
        """The node of what was captured last: what follows depends on it, and on no other."""
        array = ctypes.c_void_p()
        asked = self._hip.hipStreamGetCaptureInfo_v2(self._stream, ctypes.addressof(array))
        self._call(asked)
        *_, count = asked
        if count != 1 or array.value is None:
            raise DeviceError(f"a launch was captured as {count} nodes", where="rocm")
        return int(ctypes.c_size_t.from_address(array.value).value)

    def replay(self, recording: Recording, starts: Sequence[Start]) -> None:
        """One launch of the graph; kernels whose numbers changed are told first."""
        for node, start in recording.changes(starts):
            self._tell(recording.ready, node, start)
        self._call(self._hip.hipGraphLaunch(recording.ready, self._stream))
        self.finish()

    def _tell(self, ready: Any, node: int, start: Start) -> None:
        """Other arguments and workgroups for a node of a graph; HIP copies them."""
        arguments = _arguments(start.buffers, start.scalars, start.scalar)
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        shape = self._hip.hipKernelNodeParams()
        shape.func, shape.sharedMemBytes = start.kernel
        shape.gridDim.x, shape.gridDim.y, shape.gridDim.z = start.groups, 1, 1
        shape.blockDim.x, shape.blockDim.y, shape.blockDim.z = start.threads, 1, 1
        shape.kernelParams = ctypes.addressof(places)
        self._call(self._hip.hipGraphExecKernelNodeSetParams(ready, node, shape))

    def forget(self, recording: Recording) -> None:
        """Destroys a graph."""
        self._recordings.remove(recording)
        self._call(self._hip.hipGraphExecDestroy(recording.ready))
        self._call(self._hip.hipGraphDestroy(recording.graph))

    def finish(self) -> None:
        """Waits for the stream; a kernel that failed is reported here."""
        self._call(self._hip.hipStreamSynchronize(self._stream))

    def close(self) -> None:
        """Frees all that was made here; may be called again."""
        if self._closed:
            return
        self._closed = True
        for recording in list(self._recordings):
            self.forget(recording)
        while self._staged:
            self._call(self._hip.hipHostFree(self._staged.pop()))
        while self._modules:
            self._call(self._hip.hipModuleUnload(self._modules.pop()))
        while self._memory:
            self._call(self._hip.hipFree(self._memory.pop()))
        self._call(self._hip.hipStreamDestroy(self._stream))

    def _call(self, answer: Any) -> Any:
        """What a call of HIP returned; DeviceError with HIP's words for a failure."""
        status, *values = answer if isinstance(answer, tuple) else (answer,)
        if int(status) != 0:
            *_, words = self._hip.hipGetErrorString(status)
            raise DeviceError(f"error {int(status)}: {_text(words)}", where="rocm")
        return values[0] if values else None


def _arguments(buffers: Sequence[Part], scalars: Sequence[int], scalar: str) -> tuple[Any, ...]:
    """Values of their C types; kernels have Triton's pointers after ours."""
    return (
        *(ctypes.c_void_p(p.memory + p.offset) for p in buffers),
        *(SCALARS[scalar](n) for n in scalars),
        *(ctypes.c_void_p(p) for p in HIDDEN),
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
