"""HIP's bindings reduced to host memory, as `gpu_fakes` does; its steps are captured streams."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from gpu_fakes import RESIDENT, UNITS, Array, Host, Strict


class Dim3(Strict):
    fields = ("x", "y", "z")


class HipKernelNode(Strict):
    """Its two triples are there from the start and cannot be replaced, as in the bindings."""

    fields = ("func", "sharedMemBytes", "kernelParams", "extra")

    def __init__(self) -> None:
        super().__init__()
        for name in ("gridDim", "blockDim"):
            object.__setattr__(self, name, Dim3())


@dataclass
class Capture:
    """What a stream did while it was captured: copies and launches as calls yet to be made."""

    calls: list[Callable[[], None]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The function of a launch, "" for a copy."""
    last: Any = None
    """Memory with the last node, by its number and 1: no node is null."""


class FakeHip:
    """`hip.hip` as far as it is used; signatures and results are those of hip-python 7.2."""

    hipDeviceAttribute_t = SimpleNamespace(hipDeviceAttributeMultiprocessorCount=63)
    hipMemcpyKind = SimpleNamespace(hipMemcpyDeviceToDevice=3)
    hipStreamCaptureMode = SimpleNamespace(hipStreamCaptureModeThreadLocal=1)
    hipDeviceProp_t = SimpleNamespace
    hipKernelNodeParams = HipKernelNode
    NUMBER = ctypes.c_int32
    """The type of a launch's numbers."""

    def __init__(self, host: Host, fail: str = "") -> None:
        self.host, self.fail = host, fail
        self.capture: Capture | None = None

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("hip") and callable(found):
            self.host.calls.append(name)
            if name == self.fail:
                return lambda *args: (700, None)
        return found

    def hipInit(self, flags: int) -> Any:
        return (0,)

    def hipSetDevice(self, device: int) -> Any:
        return (0,)

    def hipStreamCreate(self) -> Any:
        self.host.made("stream")
        return (0, "stream")

    def hipStreamDestroy(self, stream: str) -> Any:
        assert stream == "stream"
        self.host.made("stream", -1)
        return (0,)

    def hipStreamSynchronize(self, stream: str) -> Any:
        assert self.capture is None, "nothing runs while it is captured"
        return (0,)

    def hipGetDeviceProperties(self, facts: Any, device: int) -> Any:
        facts.name, facts.gcnArchName = b"AMD Radeon RX 7900 XTX", b"gfx1100:xnack-"
        return (0,)

    def hipDeviceGetAttribute(self, kind: int, device: int) -> Any:
        assert kind == 63
        return (0, UNITS)

    def hipModuleLoadData(self, image: bytes) -> Any:
        assert isinstance(image, bytes)
        self.host.made("module")
        return (0, image)

    def hipModuleUnload(self, module: bytes) -> Any:
        assert isinstance(module, bytes)
        self.host.made("module", -1)
        return (0,)

    def hipModuleGetFunction(self, module: bytes, name: bytes) -> Any:
        return (0, module.decode()) if module == name else (500, None)

    def hipMalloc(self, nbytes: int) -> Any:
        assert self.capture is None, "not in a capture"
        return (0, self.host.allocate(nbytes))

    def hipFree(self, address: int) -> Any:
        self.host.free(address)
        return (0,)

    def hipMemsetAsync(self, to: int, value: int, count: int, stream: str) -> Any:
        self.host.inside(to, count)[:] = value
        return (0,)

    def hipMemcpyHtoDAsync(self, to: int, source: Array, nbytes: int, stream: str) -> Any:
        assert source.nbytes == nbytes
        assert stream == "stream"
        raw = source.reshape(-1).view(np.uint8)
        self._do("", raw, lambda: self.host.inside(to, nbytes).__setitem__(..., raw))
        return (0,)

    def hipMemcpyDtoHAsync(self, to: Array, source: int, nbytes: int, stream: str) -> Any:
        assert to.nbytes == nbytes
        assert stream == "stream"
        raw = to.reshape(-1).view(np.uint8)
        self._do("", raw, lambda: raw.__setitem__(..., self.host.inside(source, nbytes)))
        return (0,)

    def hipMemcpy2DAsync(self, to: int, tp: int, source: int, sp: int, *rest: Any) -> Any:
        width, height, kind, stream = rest
        assert (kind, stream) == (3, "stream")
        assert min(tp, sp) >= width > 0, "a pitch below the width"
        for n in range(height):
            self.host.inside(to + n * tp, width)[:] = self.host.inside(source + n * sp, width)
        return (0,)

    def hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(self, *given: Any) -> Any:
        return (0, RESIDENT)

    def hipModuleLaunchKernel(self, f: str, *given: Any) -> Any:
        (gx, gy, gz, tx, ty, tz, _shared, stream, params, extra) = given
        assert (gy, gz, ty, tz, params, stream) == (1, 1, 1, 1, None, "stream")
        pointers = [a.value or 0 for a in extra if isinstance(a, ctypes.c_void_p)]
        numbers = [a.value for a in extra if isinstance(a, self.NUMBER)]
        assert len(pointers) + len(numbers) == len(extra)
        self._do(f, None, lambda: self._run(f, gx, tx, pointers, numbers))
        return (0,)

    def _run(self, f: str, groups: int, threads: int, pointers: list[int], numbers: Any) -> None:
        assert groups >= 1
        self.host.hidden += pointers[-2:]
        self.host.launch(f, groups, threads, pointers[:-2], numbers)

    # -- graphs

    def _do(self, name: str, memory: Array | None, call: Callable[[], None]) -> None:
        """At once, or when a graph of it is launched; a graph copies only page-locked memory."""
        if self.capture is None:
            call()
            return
        if memory is not None:
            self.host.pinned(int(memory.ctypes.data), memory.nbytes)
        self.capture.calls.append(call)
        self.capture.names.append(name)
        self.capture.last = ctypes.c_size_t(len(self.capture.calls))

    def hipHostMalloc(self, nbytes: int, flags: int) -> Any:
        assert (flags, self.capture) == (0, None)
        raw = np.full(nbytes, 0x55, np.uint8)
        self.host.locked[int(raw.ctypes.data)] = raw
        return (0, int(raw.ctypes.data))

    def hipHostFree(self, address: int) -> Any:
        del self.host.locked[address]
        return (0,)

    def hipStreamBeginCapture(self, stream: str, mode: int) -> Any:
        assert (stream, mode, self.capture) == ("stream", 1, None)
        self.capture = Capture()
        return (0,)

    def hipStreamGetCaptureInfo_v2(self, stream: str, dependencies: int) -> Any:
        assert self.capture is not None
        where = ctypes.c_void_p.from_address(dependencies)
        where.value = ctypes.addressof(self.capture.last)
        return (0, 1, 7, self.capture, 1)

    def hipStreamEndCapture(self, stream: str) -> Any:
        assert self.capture is not None
        self.host.made("graph")
        graph, self.capture = self.capture, None
        return (0, graph)

    def hipGraphInstantiate(self, graph: Capture, log: None, size: int) -> Any:
        assert (log, size) == (None, 0)
        self.host.made("ready graph")
        return (0, Capture(list(graph.calls), list(graph.names)), None)

    def hipGraphExecKernelNodeSetParams(self, ready: Capture, node: int, shape: Any) -> Any:
        assert isinstance(shape, HipKernelNode)
        name, grid, block = shape.func, shape.gridDim, shape.blockDim
        assert ready.names[node - 1] == name, "another function than the node's"
        assert (grid.y, grid.z, block.y, block.z, shape.extra) == (1, 1, 1, 1, 0)
        kernel = self.host.kernels[name]
        places = (ctypes.c_void_p * (len(kernel.bufs) + len(kernel.scalars) + 2)).from_address(
            shape.kernelParams
        )
        kinds = [ctypes.c_void_p] * len(kernel.bufs) + [self.NUMBER] * len(kernel.scalars)
        kinds += [ctypes.c_void_p] * 2
        values = [k.from_address(p).value or 0 for k, p in zip(kinds, places, strict=True)]
        pointers = [v for v, k in zip(values, kinds, strict=True) if k is ctypes.c_void_p]
        numbers = [v for v, k in zip(values, kinds, strict=True) if k is not ctypes.c_void_p]
        groups, threads = grid.x, block.x
        ready.calls[node - 1] = lambda: self._run(name, groups, threads, pointers, numbers)
        return (0,)

    def hipGraphLaunch(self, ready: Capture, stream: str) -> Any:
        assert (stream, self.capture) == ("stream", None)
        for call in ready.calls:
            call()
        return (0,)

    def hipGraphExecDestroy(self, ready: Capture) -> Any:
        self.host.made("ready graph", -1)
        return (0,)

    def hipGraphDestroy(self, graph: Capture) -> Any:
        self.host.made("graph", -1)
        return (0,)

    def hipGetErrorString(self, status: int) -> Any:
        return (0, b"an illegal memory access was encountered")
