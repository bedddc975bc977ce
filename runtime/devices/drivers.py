"""Backend names -> drivers, each loaded with its vendor's bindings when it is asked for."""

from __future__ import annotations

import importlib

from speccc.errors import UnsupportedError
from speccc.runtime.devices.gpu_step import Driver

DRIVERS = {
    "cuda": ("speccc.runtime.devices.cuda", "CudaDriver"),
    "rocm": ("speccc.runtime.devices.rocm", "RocmDriver"),
    "sycl": ("speccc.runtime.devices.sycl", "SyclDriver"),
    "metal": ("speccc.runtime.devices.metal", "MetalDriver"),
}
"""Module and class. Vulkan's launches are recorded in a worker process: it has no driver here."""
ENDINGS = {"cuda": "cubin", "rocm": "hsaco", "sycl": "spv", "metal": "metal", "vulkan": "spv"}
"""The ending of the files that a backend's device loads."""


def open_driver(backend: str, device: str = "") -> Driver:
    """The driver of a backend's device: of that name, or the first there is.

    UnsupportedError says what to install, or that the backend has no driver of this kind.
    """
    if backend not in DRIVERS:
        raise UnsupportedError(f"no driver for it; there are {', '.join(DRIVERS)}", where=backend)
    module, name = DRIVERS[backend]
    made = getattr(importlib.import_module(module), name)
    driver: Driver = made(device) if device else made()
    return driver


def binary_ending(backend: str) -> str:
    """The ending of the built files that a backend's device loads. UnsupportedError for others."""
    if backend not in ENDINGS:
        raise UnsupportedError(f"no driver for {backend}; there are {', '.join(ENDINGS)}")
    return ENDINGS[backend]
