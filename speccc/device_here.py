"""Names of targets -> targets, where a bare backend stands for the device of this machine."""

from __future__ import annotations

from speccc.errors import UnsupportedError
from speccc.runtime.devices.drivers import open_driver
from speccc.runtime.devices.gpu_step import DeviceError
from speccc.runtime.devices.vulkan_worker import VulkanWorker, WorkerError
from speccc.runtime.manifest import TARGETS
from speccc.targets.base import Target
from speccc.targets.devices import meant, profile, profile_names
from speccc.targets.registry import MODULES, target
from speccc.targets.sycl.target import CPU_DEVICE
from speccc.vulkan_home import need_vulkan

SOFTWARE = "vulkan:lavapipe"
"""The profile of Mesa's CPU device."""
CPU_TARGET = "sycl:cpu"
ANY = {"vulkan": "vulkan:any"}
"""What a backend's unknown device is compiled for, where there is such a profile."""


def check_target(name: str) -> None:
    """UnsupportedError for a name of no backend; all that compile, `cpu` too, are listed."""
    backend, _, device = name.partition(":")
    where = f"--target {name}"
    if backend not in TARGETS:
        hint = meant(name) or f"this version compiles for {', '.join(TARGETS)}"
        raise UnsupportedError(f"is no target; {hint}", where=where)
    if backend == "cpu" and name != "cpu":
        hint = f"use --target cpu --isa {device or 'auto'}"
        raise UnsupportedError(f"an instruction set is no device; {hint}", where=where)


def device_target(name: str) -> Target:
    """The target of a name; a bare backend's is that of the device here, else its default.

    UnsupportedError names what is close or what there is.
    """
    return target(_device_here(name) if name in MODULES else name)


def need_device(target: str) -> None:
    """UnsupportedError, with what to install, when no device of a target's kind can be opened."""
    backend = target.partition(":")[0]
    if backend == "vulkan":
        need_vulkan()
        return
    open_driver(backend, CPU_DEVICE if target == CPU_TARGET else "").close()


def _device_here(backend: str) -> str:
    """The name of the profile whose product the device is, as both call it."""
    try:
        if backend == "vulkan":
            with VulkanWorker(need_vulkan()) as worker:
                info = worker.query()
            name, arch, is_cpu = info.name, "", info.is_cpu
        else:
            driver = open_driver(backend)
            name, arch, is_cpu = driver.name, driver.arch, False
            driver.close()
    except (UnsupportedError, WorkerError, DeviceError):
        return ANY.get(backend, backend)
    return profile_of_device(backend, name, arch, is_cpu=is_cpu)


def profile_of_device(backend: str, device: str, arch: str = "", *, is_cpu: bool = False) -> str:
    """The target for a device's own name: of its product, else of `arch`, else of any device."""
    if is_cpu:
        return SOFTWARE
    of_backend = [n for n in profile_names() if n.startswith(f"{backend}:")]
    titles = {
        n: title
        for n in of_backend
        if (product := profile(n).device) is not None
        for title in product.title.split(", ")
        if title in device
    }
    if titles:
        # "Radeon RX 9070" is a part of "Radeon RX 9070 XT".
        return max(titles, key=lambda n: len(titles[n]))
    named = f"{backend}:{arch}"
    if named in of_backend:
        return named
    if backend in ANY:
        return ANY[backend]
    raise UnsupportedError(
        f"{device or arch} is a device of no profile: choose one of {', '.join(of_backend)}",
        where=f"--target {backend}",
    )
