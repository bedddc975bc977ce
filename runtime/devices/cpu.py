"""Runs a compiled step on the host CPU through TVM's runtime and its thread pool.

Only the runtime library is loaded (3 MB): importing `tvm` itself would map the compiler, which
takes a third of a gigabyte and a second.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from speccc.errors import SpecccError

ALIGN = 64
RUNTIME_LIBRARY = "libtvm_runtime.so"
Array = npt.NDArray[Any]


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros that start on a cache line, as TVM's calling convention asks."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + ALIGN, np.uint8)
    skip = -raw.ctypes.data % ALIGN
    return raw[skip : skip + count].view(dtype).reshape(shape)


class CpuStep:
    """One step function with its arrays bound; call it with sizes and a number of workers."""

    def __init__(self, library: Array, symbol: str, arrays: Sequence[Array]) -> None:
        """Loads the library and views the arrays as TVM tensors without copying."""
        # TVM reads this once, when its pool starts; on few cores it would take only one thread.
        os.environ.setdefault("TVM_NUM_THREADS", str(cores()))
        _load_runtime()
        self._function = _load(library)[symbol]
        self._arrays = list(arrays)
        self._tensors = [tvm_ffi.from_dlpack(_flat(a)) for a in arrays]

    def __call__(self, sizes: Sequence[int], workers: int) -> None:
        """Runs the step."""
        self._function(*self._tensors, *sizes, workers)


def _flat(a: Array) -> Array:
    flat = a.reshape(-1)
    # An empty dimension has no address; the kernel never touches it.
    return flat if flat.size else aligned((1,), a.dtype)


@functools.cache
def _load_runtime() -> None:
    """Makes TVM's runtime library known to the process; kernels find their thread pool in it."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise SpecccError("TVM's runtime is not installed: pip install apache-tvm")
    library = Path(spec.submodule_search_locations[0]) / "lib" / RUNTIME_LIBRARY
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as e:
        raise SpecccError(f"TVM's runtime does not load: {e}") from e


def _load(library: Array) -> tvm_ffi.Module:
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        path = Path(folder) / "step.so"
        path.write_bytes(bytes(library))
        try:
            return tvm_ffi.load_module(str(path))
        except Exception as e:
            raise SpecccError(f"the kernel library does not load: {e}") from e
