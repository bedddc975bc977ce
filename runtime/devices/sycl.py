"""Intel GPUs, and any other SYCL device, through `dpctl`."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Strided, copy_through_host

Array = npt.NDArray[Any]

MEND = (
    "pip install 'speccc[sycl]' and the vendor's OpenCL or Level Zero driver; "
    "--target sycl:cpu needs no GPU"
)
# Quotients and roots are part of the bits.
PRECISE = "-cl-fp32-correctly-rounded-divide-sqrt"
WAVES = 4
"""Work-groups for each compute unit."""
SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


CPU_DEVICE, CPU_WHEEL, CPU_LIBRARY = "opencl:cpu", "intel-opencl-rt", "libintelocl.so"
"""SYCL's filter for the processor itself, and the wheel that brings a driver for it."""
CPU_MEND = f"pip install 'speccc[sycl]' {CPU_WHEEL} (Linux on x86-64)"
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
    """The module; UnsupportedError when it is not installed."""
    try:
        import dpctl
        import dpctl.memory
        import dpctl.program
    except ImportError as error:
        raise UnsupportedError(f"sycl: {error}: {MEND}") from None
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
        if device == CPU_DEVICE and driver is not None:
            os.environ.setdefault(OPENCL_DRIVERS, str(driver))
        self._dpctl = _bindings()
        try:
            self._queue = self._dpctl.SyclQueue(device, property="in_order")
        except Exception as error:
            # dpctl has an exception of its own for every step of making a queue.
            said = str(error).rstrip(".")
            raise UnsupportedError(f"sycl: no device {device}: {said}: {mend}") from None
        # What a launch reads must live until it has run.
        self._running: list[Any] = []
        self._spans: dict[tuple[int, int], Any] = {}

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

    def load(self, code: Code) -> Any:
        """The kernel of a SPIR-V module."""
        try:
            program = self._dpctl.program.create_program_from_spirv(
                self._queue, code.binary, PRECISE
            )
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
        self._span(part, raw.nbytes).copy_from_host(raw)

    def download(self, part: Part, into: Array) -> None:
        """Waits for what was launched, then copies."""
        self.finish()
        self._span(part, into.nbytes).copy_to_host(into.reshape(-1).view(np.uint8))

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
        """One launch in the queue."""
        memories = [self._argument(p) for p in buffers]
        arguments = [*memories, *(SCALARS[scalar](n) for n in scalars)]
        self._running.append(arguments)
        self._queue.submit_async(kernel, arguments, [groups * threads], [threads])

    def finish(self) -> None:
        """Waits for the queue."""
        if self._running:
            self._queue.wait()
            self._running.clear()

    def close(self) -> None:
        """Waits; memory goes with the last reference to it."""
        self.finish()
        self._spans.clear()

    def _argument(self, part: Part) -> Any:
        if part.offset == 0:
            return part.memory
        key = (part.memory._pointer, part.offset)
        if key not in self._spans:
            self._spans[key] = self._span(part, part.memory.nbytes - part.offset)
        return self._spans[key]

    def _span(self, part: Part, nbytes: int) -> Any:
        span = _Span(part.memory, part.offset, nbytes)
        return self._dpctl.memory.MemoryUSMDevice(span)
