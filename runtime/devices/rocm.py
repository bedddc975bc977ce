"""AMD GPUs through the HIP API of `hip-python`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Strided

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
    """One GPU and one stream: launches run in order."""

    def __init__(self, device: int = 0) -> None:
        """UnsupportedError when there is no such GPU."""
        self._hip = _bindings()
        self._memory: list[int] = []
        self._modules: list[Any] = []
        self._closed = False
        try:
            self._call(self._hip.hipInit(0))
            self._call(self._hip.hipSetDevice(device))
        except (DeviceError, RuntimeError) as error:
            # The bindings raise when they cannot load the driver's library.
            raise UnsupportedError(f"{error}: {MEND}") from None
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

    def load(self, code: Code) -> tuple[Any, int]:
        """The function of a code object, and the shared memory to ask for."""
        try:
            module = self._call(self._hip.hipModuleLoadData(code.binary))
        except DeviceError as error:
            raise DeviceError(
                f"{error}: is it compiled for this device, {self.arch}? (--target)"
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
        source = part.memory + part.offset
        self._call(self._hip.hipMemcpyDtoHAsync(into, source, into.nbytes, self._stream))
        self.finish()

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
        pointers = [p.memory + p.offset for p in buffers]
        arguments = (
            *(ctypes.c_void_p(p) for p in pointers),
            *(SCALARS[scalar](n) for n in scalars),
            *(ctypes.c_void_p(p) for p in HIDDEN),
        )
        self._call(
            self._hip.hipModuleLaunchKernel(
                function, groups, 1, 1, threads, 1, 1, shared, self._stream, None, arguments
            )
        )

    def finish(self) -> None:
        """Waits for the stream; a kernel that failed is reported here."""
        self._call(self._hip.hipStreamSynchronize(self._stream))

    def close(self) -> None:
        """Frees all that was made here; may be called again."""
        if self._closed:
            return
        self._closed = True
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


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
