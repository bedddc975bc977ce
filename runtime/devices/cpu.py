"""Runs a compiled step on the host CPU in the thread pool of TVM's runtime."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.runtime.cores import cores as cores
from speccc.runtime.devices.tvm_function import TvmFunction

ALIGN = 64
PAGES_OF_ITS_OWN = 1 << 20
"""Bytes from which an array gets pages from the system: they take memory when first touched, while
the C heap may hand out, and then clear, memory that was freed before."""
Array = npt.NDArray[Any]


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros that start on a cache line, as TVM's calling convention asks."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if count >= PAGES_OF_ITS_OWN:
        pages = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype).reshape(shape)
    raw = np.zeros(count + ALIGN, np.uint8)
    skip = -raw.ctypes.data % ALIGN
    return raw[skip : skip + count].view(dtype).reshape(shape)


POOL = {"TVM_THREAD_POOL_SPIN_COUNT": "2000", "TVM_BIND_THREADS": "0"}
"""How the workers of TVM's pool wait and where they run, unless the environment says otherwise.

They spin for about a millisecond after a step, which covers the work between two steps, then
sleep; TVM's own 300000 turns keep a core busy for 150 ms after each. They are not pinned: two
processes' pools would be pinned to the same cores, and a core that is busy with something else
would hold up every phase.
"""


class CpuStep:
    """One step function with its arrays bound; call it with sizes and a number of workers."""

    def __init__(self, library: Array, symbol: str, arrays: Sequence[Array]) -> None:
        """Loads the library and binds the arrays without copying."""
        _set_up_pool()
        self._function = TvmFunction(bytes(library), symbol, [_flat(a) for a in arrays])

    def __call__(self, sizes: Sequence[int], workers: int) -> None:
        """Runs the step."""
        self._function([*sizes, workers])


def _set_up_pool() -> None:
    """TVM reads these once, when its pool starts; on few cores it would take only one thread."""
    for name, value in {"TVM_NUM_THREADS": str(cores()), **POOL}.items():
        os.environ.setdefault(name, value)


def _flat(a: Array) -> Array:
    flat = a.reshape(-1)
    # An empty dimension has no address; the kernel never touches it.
    return flat if flat.size else aligned((1,), a.dtype)
