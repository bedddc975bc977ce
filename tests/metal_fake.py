"""`Metal` of pyobjc reduced to host memory; recorded commands run as loosely as a GPU may."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from gpu_fakes import Host, view


@dataclass
class _Buffer:
    address: int
    nbytes: int

    def contents(self) -> _Buffer:
        return self

    def as_buffer(self, nbytes: int) -> memoryview:
        assert nbytes == self.nbytes
        return memoryview((ctypes.c_uint8 * nbytes).from_address(self.address)).cast("B")

    def length(self) -> int:
        return self.nbytes


class _Pipeline(str):
    """A function's name; `indirect` says that recorded commands may have it."""

    indirect = False


class MTLSize(tuple[int, ...]):
    """Three numbers, as pyobjc has a structure of them."""

    __typestr__ = b"{_MTLSize=QQQ}"


@dataclass
class _Command:
    """One of an indirect buffer."""

    types: Mapping[bytes, Any]
    pipeline: str = ""
    groups: int = 0
    threads: int = 0
    barrier: bool = False
    bound: dict[int, Any] = field(default_factory=dict)

    def setComputePipelineState_(self, pipeline: _Pipeline) -> None:
        assert pipeline.indirect, "a pipeline that no recorded command may name"
        self.pipeline = pipeline

    def setKernelBuffer_offset_atIndex_(self, buffer: _Buffer, offset: int, n: int) -> None:
        assert 0 <= n < 31
        self.bound[n] = (buffer.address, offset)

    def concurrentDispatchThreadgroups_threadsPerThreadgroup_(self, *sizes: MTLSize) -> None:
        name = b"concurrentDispatchThreadgroups:threadsPerThreadgroup:"
        kinds = self.types.get(name, {"arguments": {2: {"type": b"q"}, 3: {"type": b"q"}}})
        if [kinds["arguments"][n]["type"] for n in (2, 3)] != [MTLSize.__typestr__] * 2:
            raise ValueError("depythonifying 'long long', got 'MTLSize'")
        self.groups, self.threads = (s[0] for s in sizes)

    def setBarrier(self) -> None:
        self.barrier = True

    def check(self, used: set[int], resident: set[str]) -> None:
        assert {address for address, _ in self.bound.values()} <= used, "memory that is not used"
        assert self.pipeline in resident, "a pipeline that is not there"

    def dispatch(self) -> tuple[str, int, int, dict[int, int]]:
        bound = {n: address + offset for n, (address, offset) in self.bound.items()}
        return self.pipeline, self.groups, self.threads, bound


@dataclass
class _Commanded:
    """An indirect command buffer."""

    all: list[_Command]

    def indirectComputeCommandAtIndex_(self, n: int) -> _Command:
        return self.all[n]


class _Setters:
    """A descriptor: it keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def alloc(self) -> _Setters:
        return _Setters()

    def init(self) -> _Setters:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda value: self.told.__setitem__(name, value)


@dataclass
class _Commands:
    """Launches are run when the buffer is committed, as a GPU may do."""

    host: Host
    pending: list[Any] = field(default_factory=list)
    pipeline: str = ""
    bound: dict[int, Any] = field(default_factory=dict)
    failure: str | None = None
    used: set[int] = field(default_factory=set)
    resident: set[str] = field(default_factory=set)

    def computeCommandEncoder(self) -> _Commands:
        return self

    def setComputePipelineState_(self, pipeline: str) -> None:
        self.pipeline, self.bound = pipeline, {}

    def setBuffer_offset_atIndex_(self, buffer: _Buffer, offset: int, n: int) -> None:
        self.bound[n] = buffer.address + offset

    def setBytes_length_atIndex_(self, data: bytes, length: int, n: int) -> None:
        assert len(data) == length
        self.bound[n] = data

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Any, threads: Any) -> None:
        if groups[0] == 0:
            self.resident.add(self.pipeline)
            return
        self.pending.append((self.pipeline, groups[0], threads[0], self.bound))

    def useResources_count_usage_(self, uses: Sequence[_Buffer], count: int, usage: int) -> None:
        assert count == len(uses)
        assert usage == FakeMetal.MTLResourceUsageRead | FakeMetal.MTLResourceUsageWrite
        self.used |= {buffer.address for buffer in uses}

    def executeCommandsInBuffer_withRange_(self, commands: _Commanded, part: Any) -> None:
        """Runs what no barrier keeps apart in the order that a GPU is free to choose."""
        first, count = part
        assert 0 <= first <= first + count <= len(commands.all), "commands that are not there"
        together: list[_Command] = []
        for command in commands.all[first : first + count]:
            command.check(self.used, self.resident)
            if command.barrier:
                self.pending += [c.dispatch() for c in reversed(together)]
                together = []
            together.append(command)
        self.pending += [c.dispatch() for c in reversed(together)]

    def endEncoding(self) -> None:
        self.host.calls.append("endEncoding")

    def commit(self) -> None:
        for name, groups, threads, bound in self.pending:
            values = [bound[n] for n in range(len(bound))]
            count = self.host.numbers(name)
            record = values.pop() if count else b""
            if not isinstance(record, bytes):
                record = self.host.inside(record, 4 * count).tobytes()
            numbers = np.frombuffer(record, np.int32).tolist()
            self.host.launch(name, groups, threads, values, numbers)

    def waitUntilCompleted(self) -> None:
        self.host.calls.append("waitUntilCompleted")

    def error(self) -> str | None:
        return self.failure


class FakeMetal:
    """`Metal` of pyobjc as far as it is used: module and device in one."""

    MTLResourceStorageModeShared = 0
    MTLResourceUsageRead, MTLResourceUsageWrite = 1, 2
    MTLGPUFamilyApple7 = 1007
    MTLPipelineOptionNone = 0
    MTLIndirectCommandTypeConcurrentDispatch = 32
    MTLSize = MTLSize
    MTLComputePipelineDescriptor = _Setters()
    MTLIndirectCommandBufferDescriptor = _Setters()

    def __init__(self, host: Host, fail: str = "", family: int = 1009) -> None:
        self.host, self.fail, self.family = host, fail, family
        self.fast_math: bool | None = None
        self.types: dict[bytes, Any] = {}
        self.objc = SimpleNamespace(registerMetaDataForSelector=self._register)

    def _register(self, owner: bytes, selector: bytes, what: Any) -> None:
        assert owner == b"NSObject"
        self.types[selector] = what

    def supportsFamily_(self, family: int) -> bool:
        return self.family >= family

    def name(self) -> str:
        return "Apple M4 Pro"

    def MTLCreateSystemDefaultDevice(self) -> Any:
        return None if self.fail == "MTLCreateSystemDefaultDevice" else self

    def MTLSizeMake(self, x: int, y: int, z: int) -> MTLSize:
        assert (y, z) == (1, 1) or (x, y, z) == (0, 0, 0)
        return MTLSize((x, y, z))

    @property
    def MTLCompileOptions(self) -> Any:
        options = SimpleNamespace(setFastMathEnabled_=lambda on: setattr(self, "fast_math", on))
        return SimpleNamespace(alloc=lambda: SimpleNamespace(init=lambda: options))

    def newCommandQueue(self) -> Any:
        return SimpleNamespace(commandBuffer=self._commands)

    def _commands(self) -> _Commands:
        failed = self.fail == "commit"
        return _Commands(self.host, failure="the GPU hung" if failed else None)

    def newLibraryWithSource_options_error_(self, text: str, options: Any, out: None) -> Any:
        assert self.fast_math is False, "contracted products would change the bits"
        if self.fail == "compile":
            return None, "line 1: no"
        found = SimpleNamespace(newFunctionWithName_=lambda n: n if n == text else None)
        return found, None

    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, shape: _Setters, options: int, reflection: None, out: None
    ) -> Any:
        assert options == 0
        made = _Pipeline(shape.told["setComputeFunction_"])
        made.indirect = shape.told["setSupportIndirectCommandBuffers_"]
        return made, None

    def newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, shape: _Setters, count: int, options: int
    ) -> Any:
        """It inherits nothing from the encoder: each command says all by itself."""
        assert shape.told["setCommandTypes_"] == self.MTLIndirectCommandTypeConcurrentDispatch
        assert not shape.told["setInheritBuffers_"]
        assert not shape.told["setInheritPipelineState_"]
        assert shape.told["setMaxKernelBufferBindCount_"] == 31
        if self.fail == "commands":
            return None
        return _Commanded([_Command(self.types) for _ in range(count)])

    def newBufferWithLength_options_(self, nbytes: int, mode: int) -> Any:
        if self.fail == "allocate":
            return None
        address = self.host.allocate(nbytes)
        view(address, nbytes)[:] = 0
        return _Buffer(address, nbytes)
