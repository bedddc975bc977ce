"""The product's Vulkan worker, as the tests name it."""

from __future__ import annotations

from emulation.vulkan_root import VulkanHome
from speccc.runtime.devices import vulkan_worker
from speccc.runtime.devices.vulkan_worker import MatrixShape as MatrixShape
from speccc.runtime.devices.vulkan_worker import WorkerError as WorkerError


class VulkanWorker(vulkan_worker.VulkanWorker):
    """A worker in the tests' Vulkan."""

    def __init__(self, home: VulkanHome, *, timeout_s: float = 120.0) -> None:
        """As the product's."""
        super().__init__(home.place, timeout_s=timeout_s)
