"""Vendors' bindings reduced to host memory: calls as the real packages have them, kernels in NumPy.

A kernel's "binary" is its name; a launch runs its tile program on the memory at the addresses that
it is given. So a driver is run up to the vendor's call, and what it passes there decides the bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.ir.interp_tile import run_kernel
from speccc.ir.plan import size_of
from speccc.ir.tile import Kernel

Array = npt.NDArray[Any]
UNITS = 1
RESIDENT = 2
"""Workgroups of a kernel that fit a unit."""


def view(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory at an address."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


@dataclass
class Host:
    """Memory by address, kernels by name, and the calls that came."""

    kernels: Mapping[str, Kernel]
    memory: dict[int, Array] = field(default_factory=dict)
    locked: dict[int, Array] = field(default_factory=dict)
    """Page-locked memory of the host, by address."""
    alive: dict[str, int] = field(default_factory=dict)
    """How many of each kind of object are made and not given back."""
    launched: list[tuple[str, int, int]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    asked_shared: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)

    def allocate(self, nbytes: int) -> int:
        """Garbage, as a device gives it; the address is a multiple of 256."""
        raw = np.full(nbytes + 256, 0x55, np.uint8)
        address = int(raw.ctypes.data) + -int(raw.ctypes.data) % 256
        self.memory[address] = raw
        return address

    def free(self, address: int) -> None:
        """The memory goes; an address that is none is refused."""
        del self.memory[address]

    def inside(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes of an allocation; anything else is a fault."""
        for start, raw in self.memory.items():
            if start <= address and address + nbytes <= raw.ctypes.data + raw.nbytes:
                return view(address, nbytes)
        raise AssertionError(f"{nbytes} bytes at {address:#x} are nobody's")

    def made(self, kind: str, count: int = 1) -> None:
        """An object is made, or with -1 given back; giving back what is not there is a fault."""
        self.alive[kind] = self.alive.get(kind, 0) + count
        assert self.alive[kind] >= 0, f"a {kind} is given back twice"

    def left(self) -> dict[str, int]:
        """What was not given back."""
        kinds = {"memory": len(self.memory), "locked": len(self.locked), **self.alive}
        return {kind: n for kind, n in kinds.items() if n}

    def host(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes of the host; memory of the device is a fault."""
        for start, raw in self.memory.items():
            assert not start <= address < raw.ctypes.data + raw.nbytes, "the device's memory"
        return view(address, nbytes)

    def pinned(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes of page-locked memory; anything else is a fault."""
        for start, raw in self.locked.items():
            if start <= address and address + nbytes <= start + raw.nbytes:
                return view(address, nbytes)
        raise AssertionError(f"{nbytes} bytes at {address:#x} are not page-locked")

    def numbers(self, name: str) -> int:
        """How many numbers a kernel takes."""
        return len(self.kernels[name].scalars)

    def launch(
        self, name: str, groups: int, threads: int, pointers: Sequence[int], numbers: Sequence[int]
    ) -> None:
        """Runs a tile program with a worker for each workgroup."""
        kernel = self.kernels[name]
        assert len(numbers) == len(kernel.scalars), name
        scalars = dict(zip(kernel.scalars, numbers, strict=True))
        bufs = {}
        for buf, address in zip(kernel.bufs, pointers, strict=True):
            shape = tuple(size_of(d, scalars) for d in buf.shape)
            nbytes = int(np.prod(shape, dtype=np.int64)) * buf.dtype.nbytes
            bufs[buf] = self.inside(address, nbytes).view(buf.dtype.numpy).reshape(shape)
        run_kernel(kernel, bufs, scalars, workers=groups)
        self.launched.append((name, groups, threads))


class Strict:
    """A structure of the bindings: only the fields that it has, each 0 until it is set."""

    fields: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.fields:
            object.__setattr__(self, name, 0)

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in self.fields, f"{type(self).__name__} has no {name}"
        object.__setattr__(self, name, value)


SIDE = ("XInBytes", "Y", "MemoryType", "Host", "Device", "Array", "Pitch")
ENDS = ("src", "dst")


class Memcpy2D(Strict):
    fields = (*(e + f for e in ENDS for f in SIDE), "WidthInBytes", "Height")


class Memcpy3D(Strict):
    fields = (
        *(e + f for e in ENDS for f in (*SIDE, "Z", "LOD", "Height")),
        "WidthInBytes", "Height", "Depth",
    )  # fmt: skip


class KernelNode(Strict):
    fields = (
        "func", "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ",
        "sharedMemBytes", "kernelParams", "extra", "kern", "ctx",
    )  # fmt: skip


@dataclass
class Graph:
    """Nodes by number, each after the one before; `ready` ones have been made runnable."""

    nodes: list[Any] = field(default_factory=list)

    def add(self, after: Sequence[int], count: int, node: Any) -> int:
        expected = [len(self.nodes) - 1] if self.nodes else []
        assert list(after) == expected, "a node that does not follow the one before"
        assert count == len(expected)
        self.nodes.append(node)
        return len(self.nodes) - 1


class FakeCuda:
    """`cuda.bindings.driver` as far as it is used; `fail` names a call that reports an error.

    Signatures and structures are those of cuda-bindings 13.5.
    """

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)
    CUDA_MEMCPY2D = Memcpy2D
    CUDA_MEMCPY3D = Memcpy3D
    CUDA_KERNEL_NODE_PARAMS = KernelNode

    def __init__(self, host: Host, fail: str = "") -> None:
        self.host, self.fail = host, fail

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("cu"):
            self.host.calls.append(name)
            if name == self.fail:
                return lambda *args: (700, *([None] if name != "cuInit" else []))
        return found

    def cuInit(self, flags: int) -> Any:
        return (0,)

    def cuDeviceGet(self, ordinal: int) -> Any:
        return (0, ordinal)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        self.host.made("context")
        return (0, "context")

    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        assert self.host.left() == {"context": self.host.alive["context"]}, "left in the context"
        self.host.made("context", -1)
        return (0,)

    def cuCtxSetCurrent(self, context: str) -> Any:
        return (0,)

    def cuStreamCreate(self, flags: int) -> Any:
        self.host.made("stream")
        return (0, "stream")

    def cuStreamDestroy(self, stream: str) -> Any:
        assert stream == "stream"
        self.host.made("stream", -1)
        return (0,)

    def cuStreamSynchronize(self, stream: str) -> Any:
        return (0,)

    def cuDeviceGetAttribute(self, kind: int, device: int) -> Any:
        return (0, {16: UNITS, 75: 8, 76: 9}[kind])

    def cuDeviceGetName(self, size: int, device: int) -> Any:
        return (0, b"NVIDIA GeForce RTX 4090".ljust(size, b"\0"))

    def cuModuleLoadData(self, image: bytes) -> Any:
        assert isinstance(image, bytes)
        self.host.made("module")
        return (0, image)

    def cuModuleUnload(self, module: bytes) -> Any:
        assert isinstance(module, bytes)
        self.host.made("module", -1)
        return (0,)

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> Any:
        assert isinstance(name, bytes)
        return (0, module.decode()) if module == name else (500, None)

    def cuFuncSetAttribute(self, function: str, kind: int, value: int) -> Any:
        assert kind == 8
        self.host.asked_shared.append(value)
        return (0,)

    def cuMemAlloc(self, nbytes: int) -> Any:
        return (0, self.host.allocate(nbytes))

    def cuMemFree(self, address: int) -> Any:
        self.host.free(address)
        return (0,)

    def cuMemsetD8Async(self, to: int, value: int, count: int, stream: str) -> Any:
        self.host.inside(to, count)[:] = value
        return (0,)

    def cuMemAllocHost(self, nbytes: int) -> Any:
        raw = np.full(nbytes, 0x55, np.uint8)
        self.host.locked[int(raw.ctypes.data)] = raw
        return (0, int(raw.ctypes.data))

    def cuMemFreeHost(self, address: int) -> Any:
        del self.host.locked[address]
        return (0,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: str) -> Any:
        assert stream == "stream"
        self.host.inside(to, nbytes)[:] = self.host.host(source, nbytes)
        return (0,)

    def cuMemcpyDtoHAsync(self, to: int, source: int, nbytes: int, stream: str) -> Any:
        assert stream == "stream"
        self.host.host(to, nbytes)[:] = self.host.inside(source, nbytes)
        return (0,)

    def cuMemcpy2DAsync(self, c: Any, stream: str) -> Any:
        assert isinstance(c, Memcpy2D)
        assert c.srcMemoryType == c.dstMemoryType == 2
        assert min(c.srcPitch, c.dstPitch) >= c.WidthInBytes > 0, "a pitch below the width"
        for n in range(c.Height):
            piece = self.host.inside(c.srcDevice + n * c.srcPitch, c.WidthInBytes)
            self.host.inside(c.dstDevice + n * c.dstPitch, c.WidthInBytes)[:] = piece
        return (0,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, f: str, threads: int, n: int) -> Any:
        assert isinstance(f, str)
        assert 1 <= threads <= 1024
        return (0, RESIDENT)

    def cuLaunchKernel(self, f: str, *given: Any) -> Any:
        (gx, gy, gz, tx, ty, tz, _shared, stream, arguments, extra) = given
        assert (gy, gz, ty, tz, extra, stream) == (1, 1, 1, 1, 0, "stream")
        self._run(f, gx, tx, arguments)
        return (0,)

    def _run(self, f: str, groups: int, threads: int, arguments: Any) -> None:
        values, kinds = arguments
        assert len(values) == len(kinds)
        assert groups >= 1
        pointers = [v for v, k in zip(values, kinds, strict=True) if k is ctypes.c_void_p]
        numbers = [v for v, k in zip(values, kinds, strict=True) if k is not ctypes.c_void_p]
        assert all(isinstance(v, int) for v in values)
        for number, kind in zip(numbers, kinds[len(pointers) - 2 :], strict=False):
            assert kind(number).value == number, "a number that its type does not hold"
        self.host.hidden += pointers[-2:]
        self.host.launch(f, groups, threads, pointers[:-2], numbers)

    # -- graphs

    def cuGraphCreate(self, flags: int) -> Any:
        assert flags == 0
        self.host.made("graph")
        return (0, Graph())

    def cuGraphAddMemcpyNode(
        self, graph: Graph, after: Sequence[int], count: int, c: Any, context: str
    ) -> Any:
        assert isinstance(c, Memcpy3D)
        assert context == "context"
        assert (c.Height, c.Depth) == (1, 1)
        assert c.WidthInBytes > 0
        return (0, graph.add(after, count, c))

    def cuGraphAddKernelNode(
        self, graph: Graph, after: Sequence[int], count: int, node: Any
    ) -> Any:
        assert isinstance(node, KernelNode)
        return (0, graph.add(after, count, node))

    def cuGraphInstantiate(self, graph: Graph, flags: int) -> Any:
        assert flags == 0
        self.host.made("ready graph")
        return (0, Graph(list(graph.nodes)))

    def cuGraphExecKernelNodeSetParams(self, ready: Graph, node: int, shape: Any) -> Any:
        assert isinstance(ready.nodes[node], KernelNode)
        assert isinstance(shape, KernelNode)
        assert shape.func == ready.nodes[node].func, "another function than the node's"
        ready.nodes[node] = shape
        return (0,)

    def cuGraphLaunch(self, ready: Graph, stream: str) -> Any:
        assert stream == "stream"
        for node in ready.nodes:
            if isinstance(node, KernelNode):
                ones = (node.gridDimY, node.gridDimZ, node.blockDimY, node.blockDimZ)
                assert ones == (1, 1, 1, 1)
                self._run(node.func, node.gridDimX, node.blockDimX, node.kernelParams)
            elif node.srcMemoryType == 1:
                source = self.host.pinned(node.srcHost, node.WidthInBytes)
                self.host.inside(node.dstDevice, node.WidthInBytes)[:] = source
            else:
                found = self.host.inside(node.srcDevice, node.WidthInBytes)
                self.host.pinned(node.dstHost, node.WidthInBytes)[:] = found
        return (0,)

    def cuGraphExecDestroy(self, ready: Graph) -> Any:
        self.host.made("ready graph", -1)
        return (0,)

    def cuGraphDestroy(self, graph: Graph) -> Any:
        self.host.made("graph", -1)
        return (0,)

    def cuGetErrorName(self, status: int) -> Any:
        return (0, b"CUDA_ERROR_ILLEGAL_ADDRESS")

    def cuGetErrorString(self, status: int) -> Any:
        return (0, b"an illegal memory access was encountered")
