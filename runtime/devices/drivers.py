"""Backend names -> drivers, each loaded with its vendor's bindings when it is asked for."""

from __future__ import annotations

import importlib

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Driver

DRIVERS = {
    "cuda": ("speccc.runtime.devices.cuda", "CudaDriver", "cubin"),
    "rocm": ("speccc.runtime.devices.rocm", "RocmDriver", "hsaco"),
    "sycl": ("speccc.runtime.devices.sycl", "SyclDriver", "spv"),
    "metal": ("speccc.runtime.devices.metal", "MetalDriver", "metal"),
}
"""Module, class, and the ending of the files it loads."""


def open_driver(backend: str) -> Driver:
    """The driver of a backend's first device.

    UnsupportedError says what to install, or that the backend has no driver of this kind.
    """
    if backend not in DRIVERS:
        raise UnsupportedError(f"no driver for it; there are {', '.join(DRIVERS)}", where=backend)
    module, name, _ = DRIVERS[backend]
    driver: Driver = getattr(importlib.import_module(module), name)()
    return driver


def binary_ending(backend: str) -> str:
    """The ending of the built files that a backend's driver loads."""
    return DRIVERS[backend][2]
