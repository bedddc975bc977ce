"""Intel GPUs, and any other SYCL device, through `dpctl`."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Strided, copy_through_host
from speccc.runtime.devices.recorded_steps import Move
from speccc.runtime.devices.sycl_graph import find_graphs
from speccc.runtime.devices.sycl_recorder import SyclRecorder

Array = npt.NDArray[Any]

MEND = (
    "pip install 'speccc[sycl]' and the vendor's OpenCL or Level Zero driver; "
    "--target sycl:cpu needs no GPU"
)
# Quotients and roots are part of the bits.
PRECISE = "-cl-fp32-correctly-rounded-divide-sqrt"
WAVES = 4
"""Work-groups for each compute unit."""
SCALARS = {"i32": np.int32, "i64": np.int64}
MOST_PROGRAMS = 64
"""Built programs that are kept for the next session: a driver takes a second for each."""
_PROGRAMS: dict[tuple[Any, Any, bytes], Any] = {}
MOST_WAITING = 1024
"""Launches that are submitted before somebody waits for them."""

CPU_DEVICE, CPU_WHEEL, CPU_LIBRARY = "opencl:cpu", "intel-opencl-rt", "libintelocl.so"
"""SYCL's filter for the processor itself, and the wheel that brings a driver for it."""
CPU_MEND = f"pip install 'speccc[sycl]' {CPU_WHEEL} (Linux on x86-64)"
VFORK = "_USE_VFORK"  # of Python's subprocess
OPENCL_DRIVERS = "OCL_ICD_FILENAMES"
"""Where OpenCL's loader looks for drivers, beside the system's; read when it is first loaded."""


@cache
def find_cpu_driver() -> Path | None:
    """Intel's OpenCL driver for CPUs, as its wheel installs it."""
    try:
        found = importlib.metadata.distribution(CPU_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(f.locate())) for f in found.files or () if f.name == CPU_LIBRARY)
    return next((p.resolve() for p in paths if p.exists()), None)


def _bindings() -> Any:
    """The module; UnsupportedError when it is not installed.

    Importing it sets a switch for the whole process that has each program started by a fork, a
    copy of all page tables, as it might be watched by a debugger: it is set back.
    """
    vfork = getattr(subprocess, VFORK, True)
    try:
        import dpctl
        import dpctl.memory
        import dpctl.program
    except ImportError as error:
        raise UnsupportedError(f"sycl: {error}: {MEND}") from None
    finally:
        setattr(subprocess, VFORK, vfork)
    return dpctl


class _Span:
    """Bytes of a buffer as `dpctl.memory` takes them; keeps the buffer alive."""

    def __init__(self, memory: Any, offset: int, nbytes: int) -> None:
        self.memory = memory
        self.__sycl_usm_array_interface__ = {
            "data": (memory._pointer, False),
            "shape": (nbytes,),
            "strides": None,
            "offset": offset,
            "typestr": "|u1",
            "version": 1,
            "syclobj": memory.sycl_queue,
        }


class SyclDriver:
    """One device and one queue: launches run in order. `device` is SYCL's filter string."""

    def __init__(self, device: str = "gpu") -> None:
        """UnsupportedError when there is no such device."""
        mend = CPU_MEND if device == CPU_DEVICE else MEND
        driver = find_cpu_driver()
        if driver is not None:  # for whoever asks for the CPU later: the loader looks once
            os.environ.setdefault(OPENCL_DRIVERS, str(driver))
        self._dpctl = _bindings()
        try:
            self._queue = self._dpctl.SyclQueue(device, property="in_order")
        except Exception as error:
            # dpctl has an exception of its own for every step of making a queue.
            said = str(error).rstrip(".")
            raise UnsupportedError(f"sycl: no device {device}: {said}: {mend}") from None
        self._submitted = 0
        self._numbers: list[tuple[Any, Array]] = []
        self._spans: dict[tuple[int, int], Any] = {}
        graphs = find_graphs(self._queue, Path(self._dpctl.__file__).parent)
        self._recorder = None if graphs is None else SyclRecorder(self, graphs)

    @property
    def name(self) -> str:
        """As its driver calls it: "Intel(R) Arc(TM) B580 Graphics"."""
        return str(self._queue.sycl_device.name).replace("(R)", "").replace("(TM)", "")

    @property
    def arch(self) -> str:
        """SYCL filters by no name of targets'."""
        return ""

    @property
    def groups(self) -> int:
        """Work-groups that keep the device busy."""
        return WAVES * int(self._queue.sycl_device.max_compute_units)

    @property
    def recorder(self) -> SyclRecorder | None:
        """Command graphs, where the device and the runtime have them."""
        return self._recorder

    def load(self, code: Code) -> Any:
        """The kernel of a SPIR-V module, which sessions on one device build once."""
        key = (self._queue.sycl_context, self._queue.sycl_device, code.binary)
        try:
            program = _PROGRAMS.pop(key, None)
            if program is None:
                program = self._dpctl.program.create_program_from_spirv(
                    self._queue, code.binary, PRECISE
                )
            _PROGRAMS[key] = program  # the latest last
            while len(_PROGRAMS) > MOST_PROGRAMS:
                del _PROGRAMS[next(iter(_PROGRAMS))]
            return program.get_sycl_kernel(code.entry)
        except Exception as error:
            raise DeviceError(f"{code.entry}: {error}", where="sycl") from None

    def allocate(self, nbytes: int) -> Any:
        """A buffer of zeros in the device's memory; DeviceError when it is not there."""
        try:
            memory = self._dpctl.memory.MemoryUSMDevice(nbytes, queue=self._queue)
        except Exception as error:
            raise DeviceError(f"{nbytes} bytes: {error}", where="sycl") from None
        memory.memset()
        return memory

    def upload(self, part: Part, data: Array) -> None:
        """Waits for what was launched, then copies."""
        self.finish()
        raw = data.reshape(-1).view(np.uint8)
        self.span(part, raw.nbytes).copy_from_host(raw)

    def download(self, part: Part, into: Array) -> None:
        """Waits for what was launched, then copies."""
        self.finish()
        self.span(part, into.nbytes).copy_to_host(into.reshape(-1).view(np.uint8))

    def copy(self, memory: Any, moved: Strided) -> None:
        """Through the host: dpctl copies runs of bytes alone."""
        copy_through_host(self, memory, moved)

    def resident(self, kernel: Any, threads: int) -> int:
        """One: SYCL does not promise that any two run at once."""
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
        """One launch in the queue; its scalars lie in memory of the host until it has run."""
        parts = list(buffers)
        if scalars:
            parts.append(Part(self._told(np.asarray(scalars, SCALARS[scalar]))))
        self.submit(kernel, groups, threads, parts)

    def submit(self, kernel: Any, groups: int, threads: int, parts: Sequence[Part]) -> None:
        """One launch that takes pointers alone; DeviceError for a kernel that takes others."""
        # A graph of a launch that does not fit would end the process.
        if kernel.get_num_args() != len(parts):
            raise DeviceError(
                f"a kernel takes {kernel.get_num_args()} arguments, not {len(parts)}: "
                "compile the model again",
                where="sycl",
            )
        arguments = [self._argument(p) for p in parts]
        try:
            self._queue.submit_async(kernel, arguments, [groups * threads], [threads])
        except Exception as error:
            raise DeviceError(str(error), where="sycl") from None

    def copy_in(self, move: Move) -> None:
        """A copy to the device in the queue."""
        n = move.array.nbytes
        self._queue.memcpy_async(self.span(move.part, n), move.array, n)

    def copy_out(self, move: Move) -> None:
        """A copy from the device in the queue."""
        n = move.array.nbytes
        self._queue.memcpy_async(move.array, self.span(move.part, n), n)

    def host_memory(self, nbytes: int) -> Any:
        """Memory of the host that the device reads and writes by itself."""
        try:
            return self._dpctl.memory.MemoryUSMHost(nbytes, queue=self._queue)
        except Exception as error:
            raise DeviceError(f"{nbytes} bytes of the host: {error}", where="sycl") from None

    def _told(self, numbers: Array) -> Any:
        """A place that no launch under way reads, with these numbers in it."""
        if self._submitted == MOST_WAITING:
            self.finish()
        n, self._submitted = self._submitted, self._submitted + 1
        if n == len(self._numbers) or self._numbers[n][1].nbytes < numbers.nbytes:
            memory = self.host_memory(numbers.nbytes)
            self._numbers[n : n + 1] = [(memory, np.frombuffer(memory, np.uint8))]
        memory, held = self._numbers[n]
        held[: numbers.nbytes] = numbers.view(np.uint8)
        return memory

    def finish(self) -> None:
        """Waits for launches that were made."""
        if self._submitted:
            self.wait()

    def wait(self) -> None:
        """Waits for the queue."""
        self._queue.wait()
        self._submitted = 0

    def close(self) -> None:
        """Waits; memory goes with the last reference to it."""
        self.wait()
        if self._recorder is not None:
            self._recorder.close()
        self._numbers.clear()
        self._spans.clear()

    def _argument(self, part: Part) -> Any:
        if part.offset == 0:
            return part.memory
        key = (part.memory._pointer, part.offset)
        if key not in self._spans:
            self._spans[key] = self.span(part, part.memory.nbytes - part.offset)
        return self._spans[key]

    def span(self, part: Part, nbytes: int) -> Any:
        """Bytes of the device as a buffer of their own."""
        span = _Span(part.memory, part.offset, nbytes)
        return self._dpctl.memory.MemoryUSMDevice(span)
