"""Mesa's software Vulkan device: what it answers when asked, at Mesa 26.1 (LLVM, 256-bit)."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

QUERY = "asked of Mesa 26.1.6: vkGetPhysicalDeviceProperties2"
SHAPES = "asked of Mesa 26.1.6: vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"

ARCHS = (
    Arch(
        "vulkan",
        "lavapipe",
        subgroup=Fact(8, QUERY),
        shared_bytes=Fact(32768, QUERY),
        matrix=Fact(
            (
                Matrix("i8", "i8", "i32", 8, 8, 8),
                Matrix("u8", "u8", "u32", 8, 8, 8),
                Matrix("f16", "f16", "f32", 8, 8, 8),
                Matrix("f16", "f16", "f16", 8, 8, 8),
            ),
            SHAPES,
        ),
        dot4=Fact(False, QUERY),
    ),
)

DEVICES: tuple[Device, ...] = ()
