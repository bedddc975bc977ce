"""Any Vulkan 1.3 device: what the specification promises, and no matrix instruction."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact

LIMITS = "https://registry.khronos.org/vulkan/specs/latest/html/vkspec.html#limits-minmax"
FEATURES = "https://registry.khronos.org/vulkan/specs/latest/html/vkspec.html#features-requirements"

ARCHS = (
    Arch(
        "vulkan",
        "any",
        shared_bytes=Fact(16384, LIMITS),
        matrix=Fact((), FEATURES),
    ),
)

DEVICES: tuple[Device, ...] = ()
