"""Intel GPUs, and any other SYCL device, through `dpctl`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Strided, copy_through_host

Array = npt.NDArray[Any]

MEND = "pip install 'speccc[sycl]' and the vendor's OpenCL or Level Zero driver"
# Quotients and roots are part of the bits.
PRECISE = "-cl-fp32-correctly-rounded-divide-sqrt"
WAVES = 4
"""Work-groups for each compute unit."""
SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


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
        self._dpctl = _bindings()
        try:
            self._queue = self._dpctl.SyclQueue(device, property="in_order")
        except Exception as error:
            # dpctl has an exception of its own for every step of making a queue.
            raise UnsupportedError(f"sycl: no device {device}: {error}: {MEND}") from None
        # What a launch reads must live until it has run.
        self._running: list[Any] = []

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

    def _argument(self, part: Part) -> Any:
        return (
            part.memory if part.offset == 0 else self._span(part, part.memory.nbytes - part.offset)
        )

    def _span(self, part: Part, nbytes: int) -> Any:
        span = _Span(part.memory, part.offset, nbytes)
        return self._dpctl.memory.MemoryUSMDevice(span)
