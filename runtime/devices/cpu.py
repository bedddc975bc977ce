"""Runs a compiled step on the host CPU in the thread pool of TVM's runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from speccc.runtime.aligned import aligned as aligned
from speccc.runtime.cores import cores
from speccc.runtime.devices.tvm_function import TvmFunction

Array = npt.NDArray[Any]

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
