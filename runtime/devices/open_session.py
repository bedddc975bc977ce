"""A built step -> a session on the device here, by its backend."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from speccc.runtime.devices.built_kernels import Files, read_codes, read_plan
from speccc.runtime.devices.drivers import open_driver
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import Driver
from speccc.runtime.devices.vulkan_session import VulkanSession
from speccc.runtime.rows import Splits
from speccc.runtime.session import StepSpec

Array = npt.NDArray[Any]
DeviceSession = GpuSession | VulkanSession


def open_session(
    backend: str,
    spec: StepSpec,
    files: Files,
    weights: Array,
    vectors: Array,
    *,
    context: int,
    threads: int | None = None,
    splits: Splits | None = None,
    where: str = "",
    driver: Driver | None = None,
) -> DeviceSession:
    """A session on the first device of a backend that the launch plan takes, or on `driver`'s.

    `threads` is the most workgroups of a launch. InputError when the files are damaged;
    UnsupportedError when the device or its bindings are not here, or a kernel was not built.
    """
    plan = read_plan(files, where)
    codes = read_codes(files, plan, backend, where)
    if backend == "vulkan":
        return VulkanSession(
            spec, plan, codes, weights, vectors, context=context, threads=threads, splits=splits
        )
    device = driver or open_driver(backend, plan.needs.device)
    try:
        return GpuSession(
            spec, device, plan, codes, weights, vectors,
            context=context, threads=threads, splits=splits,
        )  # fmt: skip
    except BaseException:
        device.close()
        raise
