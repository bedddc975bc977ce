"""The Vulkan of the tests: one with cooperative matrices on the CPU, and its compilers.

Usually a whole Debian tree made by `.ci/vulkan-root`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from speccc import vulkan_home
from speccc.targets.glsl_build import GlslTools, find_glsl_tools

SCRIPT = ".ci/vulkan-root"
LAYERS, VALIDATION = "usr/share/vulkan/explicit_layer.d", "VkLayer_khronos_validation.json"


@dataclass(frozen=True, slots=True)
class VulkanHome:
    """The tools, and where the device is."""

    tools: GlslTools
    place: vulkan_home.VulkanHome


@cache
def find_vulkan() -> VulkanHome | None:
    """The tree when it is complete, else the machine's own Vulkan, else None."""
    tools, place = find_glsl_tools(), vulkan_home.find_vulkan()
    if tools is None or place is None:
        return None
    if place.root is None and not Path("/", vulkan_home.CPU_DRIVER).exists():
        return None
    return VulkanHome(tools, place)


def validation_layers() -> Path | None:
    """The folder of Vulkan's layers when Khronos' validation is among them."""
    home = find_vulkan()
    if home is None:
        return None
    root = Path("/") if home.place.root is None else home.place.root.path
    return root / LAYERS if (root / LAYERS / VALIDATION).exists() else None
