"""NVIDIA GPUs through the driver API of `cuda-bindings`."""

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

MEND = "install NVIDIA's driver, then pip install 'speccc[cuda]'"
HIDDEN = (0, 0)
"""Triton's kernels take two more pointers, to scratch and to profiles, which ours do not use."""
NAME_BYTES = 256
WAVES = 4
"""Workgroups for each multiprocessor where nothing else limits them."""
STATIC_SHARED = 48 << 10
"""Bytes of shared memory that are given without asking."""
SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


def _bindings() -> Any:
    """The module; UnsupportedError when it or the driver library is not installed."""
    try:
        from cuda.bindings import driver
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(f"cuda: {error}: {MEND}") from None
    return driver


class CudaDriver:
    """One GPU's primary context and one stream: launches run in order, and steps are graphs."""

    def __init__(self, device: int = 0) -> None:
        """UnsupportedError when there is no such GPU."""
        self._cuda = _bindings()
        self._memory: list[int] = []
        self._staged: list[int] = []
        self._modules: list[Any] = []
        self._recordings: list[Recording] = []
        self._closed = False
        try:
            self._call(self._cuda.cuInit(0))
            self._device = self._call(self._cuda.cuDeviceGet(device))
        except (DeviceError, RuntimeError) as error:
            # The bindings raise when they cannot load the driver's library.
            said = error if isinstance(error, DeviceError) else f"cuda: {error}"
            raise UnsupportedError(f"{said}: {MEND}") from None
        context = self._call(self._cuda.cuDevicePrimaryCtxRetain(self._device))
        self._context = context
        self._call(self._cuda.cuCtxSetCurrent(context))
        self._stream = self._call(self._cuda.cuStreamCreate(0))
        kind = self._cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._units = int(self._call(self._cuda.cuDeviceGetAttribute(kind, self._device)))

    @property
    def name(self) -> str:
        """As NVIDIA calls it: "NVIDIA GeForce RTX 4090"."""
        return _text(self._call(self._cuda.cuDeviceGetName(NAME_BYTES, self._device))).rstrip("\0")

    @property
    def arch(self) -> str:
        """Its compute capability: "sm_89"."""
        kinds = self._cuda.CUdevice_attribute
        pair = (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
        major, minor = (
            self._call(self._cuda.cuDeviceGetAttribute(kind, self._device)) for kind in pair
        )
        return f"sm_{major}{minor}"

    @property
    def groups(self) -> int:
        """Workgroups that keep the device busy."""
        return WAVES * self._units

    @property
    def recorder(self) -> CudaDriver:
        """Itself: steps are graphs."""
        return self

    def load(self, code: Code) -> tuple[Any, int]:
        """The function of a cubin, and the shared memory to ask for."""
        try:
            module = self._call(self._cuda.cuModuleLoadData(code.binary))
        except DeviceError as error:
            raise DeviceError(
                f"kernel {code.entry}: {error}: is it compiled for this device, {self.arch}? "
                "(--target)"
            ) from None
        self._modules.append(module)
        function = self._call(self._cuda.cuModuleGetFunction(module, code.entry.encode()))
        if code.shared_bytes > STATIC_SHARED:
            kind = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call(self._cuda.cuFuncSetAttribute(function, kind, code.shared_bytes))
        return function, code.shared_bytes

    def allocate(self, nbytes: int) -> int:
        """A buffer of zeros; DeviceError when the memory is not there."""
        address = int(self._call(self._cuda.cuMemAlloc(nbytes)))
        self._memory.append(address)
        self._call(self._cuda.cuMemsetD8Async(address, 0, nbytes, self._stream))
        return address

    def upload(self, part: Part, data: Array) -> None:
        """From pageable memory the driver copies before it returns."""
        to = part.memory + part.offset
        copied = self._cuda.cuMemcpyHtoDAsync(to, data.ctypes.data, data.nbytes, self._stream)
        self._call(copied)

    def download(self, part: Part, into: Array) -> None:
        """Waits for the stream, then copies."""
        source = part.memory + part.offset
        copied = self._cuda.cuMemcpyDtoHAsync(into.ctypes.data, source, into.nbytes, self._stream)
        self._call(copied)
        self.finish()

    def copy(self, memory: int, moved: Strided) -> None:
        """One two-dimensional copy inside the device."""
        shape = self._cuda.CUDA_MEMCPY2D()
        kind = self._cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        shape.srcMemoryType = shape.dstMemoryType = kind
        shape.srcDevice, shape.dstDevice = memory + moved.source, memory + moved.to
        shape.srcPitch = shape.dstPitch = moved.stride
        shape.WidthInBytes, shape.Height = moved.size, moved.count
        self._call(self._cuda.cuMemcpy2DAsync(shape, self._stream))

    def resident(self, kernel: tuple[Any, int], threads: int) -> int:
        """As many as fit all multiprocessors at once."""
        function, shared = kernel
        each = self._call(
            self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
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
        """One launch on the stream."""
        function, shared = kernel
        arguments = _arguments(buffers, scalars, scalar)
        self._call(
            self._cuda.cuLaunchKernel(
                function, groups, 1, 1, threads, 1, 1, shared, self._stream, arguments, 0
            )
        )

    def stage(self, nbytes: int) -> Array:
        """Page-locked memory: copies of a graph go straight from and to it."""
        address = int(self._call(self._cuda.cuMemAllocHost(nbytes)))
        self._staged.append(address)
        held: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(held, np.uint8)

    def record(
        self, uploads: Sequence[Move], starts: Sequence[Start], downloads: Sequence[Move]
    ) -> Recording:
        """A graph whose nodes follow one another."""
        graph = self._call(self._cuda.cuGraphCreate(0))
        try:
            nodes = self._fill(graph, uploads, starts, downloads)
            ready = self._call(self._cuda.cuGraphInstantiate(graph, 0))
        except BaseException:
            self._call(self._cuda.cuGraphDestroy(graph))
            raise
        made = Recording(graph, ready, nodes, list(starts))
        self._recordings.append(made)
        return made

    def _fill(
        self,
        graph: Any,
        uploads: Sequence[Move],
        starts: Sequence[Start],
        downloads: Sequence[Move],
    ) -> list[Any]:
        """Adds the nodes; those of kernels, in order."""
        last: list[Any] = []
        nodes: list[Any] = []
        for move in uploads:
            last = [self._add_copy(graph, last, move, to_device=True)]
        for start in starts:
            shape = self._node(start)
            last = [self._call(self._cuda.cuGraphAddKernelNode(graph, last, len(last), shape))]
            nodes += last
        for move in downloads:
            last = [self._add_copy(graph, last, move, to_device=False)]
        return nodes

    def replay(self, recording: Recording, starts: Sequence[Start]) -> None:
        """One launch of the graph; kernels whose numbers changed are told first."""
        for node, start in recording.changes(starts):
            shape = self._node(start)
            self._call(self._cuda.cuGraphExecKernelNodeSetParams(recording.ready, node, shape))
        self._call(self._cuda.cuGraphLaunch(recording.ready, self._stream))
        self.finish()

    def forget(self, recording: Recording) -> None:
        """Destroys a graph."""
        self._recordings.remove(recording)
        self._call(self._cuda.cuGraphExecDestroy(recording.ready))
        self._call(self._cuda.cuGraphDestroy(recording.graph))

    def _node(self, start: Start) -> Any:
        shape = self._cuda.CUDA_KERNEL_NODE_PARAMS()
        shape.func, shape.sharedMemBytes = start.kernel
        shape.gridDimX, shape.gridDimY, shape.gridDimZ = start.groups, 1, 1
        shape.blockDimX, shape.blockDimY, shape.blockDimZ = start.threads, 1, 1
        shape.kernelParams = _arguments(start.buffers, start.scalars, start.scalar)
        return shape

    def _add_copy(self, graph: Any, after: list[Any], move: Move, *, to_device: bool) -> Any:
        host, device = move.array.ctypes.data, move.part.memory + move.part.offset
        kinds = self._cuda.CUmemorytype
        shape = self._cuda.CUDA_MEMCPY3D()
        shape.WidthInBytes, shape.Height, shape.Depth = move.array.nbytes, 1, 1
        shape.srcPitch = shape.dstPitch = move.array.nbytes
        shape.srcHeight = shape.dstHeight = 1
        if to_device:
            shape.srcMemoryType, shape.srcHost = kinds.CU_MEMORYTYPE_HOST, host
            shape.dstMemoryType, shape.dstDevice = kinds.CU_MEMORYTYPE_DEVICE, device
        else:
            shape.srcMemoryType, shape.srcDevice = kinds.CU_MEMORYTYPE_DEVICE, device
            shape.dstMemoryType, shape.dstHost = kinds.CU_MEMORYTYPE_HOST, host
        return self._call(
            self._cuda.cuGraphAddMemcpyNode(graph, after, len(after), shape, self._context)
        )

    def finish(self) -> None:
        """Waits for the stream; a kernel that failed is reported here."""
        self._call(self._cuda.cuStreamSynchronize(self._stream))

    def close(self) -> None:
        """Frees all that was made here and leaves the primary context; may be called again."""
        if self._closed:
            return
        self._closed = True
        for recording in list(self._recordings):
            self.forget(recording)
        while self._staged:
            self._call(self._cuda.cuMemFreeHost(self._staged.pop()))
        while self._modules:
            self._call(self._cuda.cuModuleUnload(self._modules.pop()))
        while self._memory:
            self._call(self._cuda.cuMemFree(self._memory.pop()))
        self._call(self._cuda.cuStreamDestroy(self._stream))
        self._call(self._cuda.cuDevicePrimaryCtxRelease(self._device))

    def _call(self, answer: tuple[Any, ...]) -> Any:
        """What a call of the driver returned; DeviceError with the driver's words for a failure."""
        status, *values = answer
        if int(status) != 0:
            _, name = self._cuda.cuGetErrorName(status)
            _, words = self._cuda.cuGetErrorString(status)
            raise DeviceError(f"{_text(name)}: {_text(words)}", where="cuda")
        return values[0] if values else None


def _arguments(buffers: Sequence[Part], scalars: Sequence[int], scalar: str) -> Any:
    """Values and types as the bindings take them; kernels have Triton's pointers after ours."""
    pointers = [p.memory + p.offset for p in buffers]
    values = (*pointers, *scalars, *HIDDEN)
    hidden = (ctypes.c_void_p,) * len(HIDDEN)
    kinds = ((ctypes.c_void_p,) * len(pointers), (SCALARS[scalar],) * len(scalars), hidden)
    return values, tuple(kind for part in kinds for kind in part)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
