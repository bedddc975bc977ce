"""Calls a packed function of a library that TVM made, through TVM's C interface alone.

The Python package `tvm_ffi` would do the same, but takes 10 MB and imports PyTorch where that is
installed. Layouts and values are those of `tvm/ffi/c_api.h` and `dlpack/dlpack.h`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

from speccc.errors import SpecccError
from speccc.scratch import Scratch

LIBRARIES = (("tvm_ffi", "libtvm_ffi.so"), ("tvm", "libtvm_runtime.so"))
"""In the order they need each other. `libtvm_runtime` has the thread pool; the compiler, a
quarter of a gigabyte, stays out."""
CONTEXT = ("TVMBackendParallelLaunch", "TVMBackendParallelBarrier")
"""Functions of the runtime that kernels call through variables of their library."""
INT, TENSOR = 1, 7  # TVMFFITypeIndex
CPU = 1  # DLDeviceType
CODES = {"i": 0, "u": 1, "f": 2}  # DLDataTypeCode by NumPy's kind
ERROR_MESSAGE = 24 + 16
"""Bytes from an error object to the text: its header, then `kind`, which is {data, size} too."""


class _Any(ctypes.Structure):
    """TVMFFIAny."""

    _fields_ = (("type", ctypes.c_int32), ("zero", ctypes.c_uint32), ("value", ctypes.c_int64))


class _Tensor(ctypes.Structure):
    """DLTensor, one-dimensional and dense."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Text(ctypes.Structure):
    """TVMFFIByteArray."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class TvmFunction:
    """A packed function with its arrays bound; the integers that follow them are given by call."""

    def __init__(self, library: bytes, symbol: str, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Takes one-dimensional arrays. SpecccError when the library does not load."""
        try:
            self._call = _loaded(library)[f"__tvm_ffi_{symbol}"]
        except (OSError, ValueError, AttributeError) as e:
            raise SpecccError(f"the kernel library does not load: {e}") from e
        self._arrays = list(arrays)
        self._shapes = [(ctypes.c_int64 * 1)(a.size) for a in self._arrays]
        self._tensors = [_tensor(a, s) for a, s in zip(self._arrays, self._shapes, strict=True)]
        self._bound = [_Any(TENSOR, 0, ctypes.addressof(t)) for t in self._tensors]

    def __call__(self, numbers: Sequence[int]) -> None:
        """Runs the function; SpecccError with TVM's message when it refuses its arguments."""
        args = [*self._bound, *(_Any(INT, 0, n) for n in numbers)]
        packed = (_Any * len(args))(*args)
        result = _Any(0, 0, 0)
        if self._call(None, packed, ctypes.c_int32(len(args)), ctypes.byref(result)):
            raise SpecccError(f"the step failed: {_raised()}")


def _tensor(a: npt.NDArray[Any], shape: ctypes.Array[ctypes.c_int64]) -> _Tensor:
    return _Tensor(
        data=a.ctypes.data,
        device_type=CPU,
        ndim=1,
        code=CODES[a.dtype.kind],
        bits=8 * a.itemsize,
        lanes=1,
        shape=shape,
    )


def _raised() -> str:
    """The message of the error a call left behind."""
    error = ctypes.c_void_p()
    _library(*LIBRARIES[0]).TVMFFIErrorMoveFromRaised(ctypes.byref(error))
    if not error.value:
        return "TVM does not say why"
    text = _Text.from_address(error.value + ERROR_MESSAGE)
    return ctypes.string_at(text.data, text.size).decode(errors="replace")


@functools.lru_cache(maxsize=16)
def _loaded(library: bytes) -> ctypes.CDLL:
    """The library in this process; sessions of one model share it."""
    runtime = [_library(package, name) for package, name in LIBRARIES][-1]
    with Scratch() as folder:
        path = folder / "step.so"
        path.write_bytes(library)
        loaded = ctypes.CDLL(str(path))
    for name in CONTEXT:
        address = ctypes.cast(runtime[name], ctypes.c_void_p)
        with suppress(ValueError):  # a library without barriers has no variable for them
            ctypes.c_void_p.in_dll(loaded, f"__{name}").value = address.value
    return loaded


@functools.cache
def _library(package: str, name: str) -> ctypes.CDLL:
    # Known to the whole process: kernels find their symbols in it.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SpecccError("TVM's runtime is not installed: pip install apache-tvm")
    path = Path(spec.submodule_search_locations[0]) / "lib" / name
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as e:
        raise SpecccError(f"TVM's runtime does not load: {e}") from e
