"""Compute shaders in a process of their own: a hang or a crash of a driver ends only that."""

from __future__ import annotations

import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from speccc.errors import SpecccError
from speccc.vulkan_home import VulkanHome

Array = npt.NDArray[np.generic]

Dispatch = tuple[int, int, int]
"""Kernel, workgroups, push constant."""
QUERY, RUN, BUFFER, KERNEL, RECORD, STEP, COPY = range(7)
START_S = 30.0
SOURCE = Path(__file__).with_name("worker") / "vulkan_worker.c"
# VkComponentTypeKHR
COMPONENTS = ("f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")


class WorkerError(SpecccError):
    """The worker reported a failure, died, or was killed for being late; it is gone."""


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """One combination the device multiplies: D[m, n] = A[m, k] B[k, n] + C[m, n]."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    saturating: bool


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What the device says of itself; shared memory and largest buffer in bytes."""

    name: str
    driver: str
    min_subgroup: int
    max_subgroup: int
    shared_bytes: int
    is_cpu: bool
    buffer_bytes: int
    shapes: tuple[MatrixShape, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a worker's buffer."""

    buffer: int
    offset: int
    size: int

    def packed(self) -> bytes:
        """As the worker reads it."""
        return struct.pack("<IQQ", self.buffer, self.offset, self.size)


@dataclass(frozen=True, slots=True)
class Copies:
    """`count` parts of `size` bytes, `stride` apart, copied inside a buffer."""

    buffer: int
    source: int
    to: int
    size: int
    stride: int
    count: int

    def packed(self) -> bytes:
        """As the worker reads it."""
        places = (self.source, self.to, self.size, self.stride)
        return struct.pack("<I4QI", self.buffer, *places, self.count)


class VulkanWorker:
    """One worker process: started on entry, ended on exit, useless after a WorkerError."""

    def __init__(self, home: VulkanHome, *, timeout_s: float = START_S, device: str = "") -> None:
        """`timeout_s` bounds each request; `device` is a part of the name of the one to use."""
        self._timeout_s = timeout_s
        program = home.build(SOURCE)
        self._log = tempfile.TemporaryFile(prefix="speccc-")  # noqa: SIM115 (closed in close)
        try:
            self._process = subprocess.Popen(
                (*home.command(program), device),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=home.environment(),
            )
        except BaseException:
            self._log.close()
            raise

    def __enter__(self) -> VulkanWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; may be called again."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def query(self) -> DeviceInfo:
        """The device and its cooperative matrix shapes."""
        with _Deadline(self._process, self._timeout_s) as deadline:
            self._send(struct.pack("<I", QUERY), deadline)
            name, driver = (self._bytes(deadline).decode() for _ in range(2))
            low, high, shared, cpu = (self._u32(deadline) for _ in range(4))
            largest = int.from_bytes(self._read(8, deadline), "little")
            count = self._u32(deadline)
            rows = [struct.unpack("<8I", self._read(32, deadline)) for _ in range(count)]
        shapes = tuple(_shape(row) for row in rows)
        return DeviceInfo(name, driver, low, high, shared, bool(cpu), largest, shapes)

    def run(
        self,
        spirv: bytes,
        buffers: Sequence[Array],
        groups: tuple[int, int, int] = (1, 1, 1),
        *,
        push: bytes = b"",
        constants: Mapping[int, int] | None = None,
        subgroup: int = 0,
    ) -> list[Array]:
        """Dispatch once; the buffers as they are afterwards, same shapes and types.

        Buffer i is set 0, binding i. `constants` maps specialization id to 32-bit value;
        `subgroup` asks for that subgroup size, full subgroups only (0: the driver's choice).
        """
        parts = [struct.pack("<I", RUN), _counted(spirv)]
        pairs = list((constants or {}).items())
        parts += [struct.pack("<I", len(pairs))]
        parts += [struct.pack("<II", key, value & 0xFFFFFFFF) for key, value in pairs]
        parts += [_counted(push), struct.pack("<5I", *groups, subgroup, len(buffers))]
        parts += [_counted(np.ascontiguousarray(b).tobytes()) for b in buffers]
        with _Deadline(self._process, self._timeout_s) as deadline:
            self._send(b"".join(parts), deadline)
            raw = [self._bytes(deadline) for _ in buffers]
        return [
            np.frombuffer(data, b.dtype).reshape(b.shape).copy()
            for data, b in zip(raw, buffers, strict=True)
        ]

    def buffer(self, size: int, *, hidden: bool = False) -> int:
        """The number of a new buffer of zeros; `hidden`: in memory that the host does not see."""
        return self._asked(struct.pack("<IQI", BUFFER, size, hidden))

    def kernel(
        self, spirv: bytes, bindings: Sequence[Span], *, uniforms: int, push: bool, subgroup: int
    ) -> int:
        """The number of a new kernel. The last `uniforms` bindings are uniform buffers.

        `push`: it takes one push constant, an i32.
        """
        head = struct.pack("<4I", 4 * push, subgroup, uniforms, len(bindings))
        places = b"".join(s.packed() for s in bindings)
        return self._asked(struct.pack("<I", KERNEL) + _counted(spirv) + head + places)

    def record(self, launches: Sequence[Dispatch]) -> int:
        """The number, from 1 on, of a new recording: launches in order, each seeing the last."""
        parts = b"".join(struct.pack("<3I", *launch) for launch in launches)
        return self._asked(struct.pack("<II", RECORD, len(launches)) + parts)

    def step(
        self, writes: Sequence[tuple[Span, bytes]], reads: Sequence[Span], *, run: int = 0
    ) -> list[bytes]:
        """Write, run a recording if one is named, and read."""
        parts = [struct.pack("<II", STEP, len(writes))]
        parts += [part for span, data in writes for part in (span.packed(), data)]
        parts += [struct.pack("<II", run, len(reads)), *(s.packed() for s in reads)]
        with _Deadline(self._process, self._timeout_s) as deadline:
            self._send(b"".join(parts), deadline)
            return [self._read(s.size, deadline) for s in reads]

    def copy(self, copies: Sequence[Copies]) -> None:
        """Copy inside buffers; no part that is read may be written by the same call."""
        parts = b"".join(c.packed() for c in copies)
        with _Deadline(self._process, self._timeout_s) as deadline:
            self._send(struct.pack("<II", COPY, len(copies)) + parts, deadline)

    def _asked(self, request: bytes) -> int:
        with _Deadline(self._process, self._timeout_s) as deadline:
            self._send(request, deadline)
            return self._u32(deadline)

    def _send(self, request: bytes, deadline: _Deadline) -> None:
        """Send, and read the status that heads the reply."""
        pipe = cast(IO[bytes], self._process.stdin)
        try:
            pipe.write(request)
            pipe.flush()
        except (OSError, ValueError):  # ValueError: `close` has been called
            raise self._gone(deadline) from None
        if self._u32(deadline) != 0:
            raise WorkerError(self._bytes(deadline).decode(errors="replace"))

    def _read(self, size: int, deadline: _Deadline) -> bytes:
        data = cast(IO[bytes], self._process.stdout).read(size)
        if len(data) != size:
            raise self._gone(deadline)
        return data

    def _u32(self, deadline: _Deadline) -> int:
        return int.from_bytes(self._read(4, deadline), "little")

    def _bytes(self, deadline: _Deadline) -> bytes:
        return self._read(self._u32(deadline), deadline)

    def _gone(self, deadline: _Deadline) -> WorkerError:
        code = self._process.wait()
        if self._log.closed:
            return WorkerError("the session is closed")
        if deadline.passed:
            return WorkerError(f"no answer in {self._timeout_s:g} s; the worker was killed")
        self._log.seek(0)
        tail = self._log.read()[-2000:].decode(errors="replace").strip()
        return WorkerError(f"the worker died with status {code}: {tail}")


class _Deadline:
    """Kills a process when the block takes longer than its time: every pipe then ends."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.passed = False
        self._process = process
        self._timer = threading.Timer(seconds, self._expire)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        self.passed = True
        self._process.kill()


def _counted(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _shape(row: tuple[int, ...]) -> MatrixShape:
    m, n, k = row[:3]
    a, b, c, result = (_component(code) for code in row[3:7])
    return MatrixShape(m, n, k, a, b, c, result, bool(row[7]))


def _component(code: int) -> str:
    return COMPONENTS[code] if code < len(COMPONENTS) else f"type {code}"
