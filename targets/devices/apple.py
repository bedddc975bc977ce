"""Apple: Metal GPU families of the M4, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

MSL = "https://developer.apple.com/metal/Metal-Shading-Language-Specification.pdf"
FEATURES = "https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf"

# The specification lists element types; accumulating halves in f32 is in Apple's own headers and
# in use: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-metal/ggml-metal.metal
SIMDGROUP = (
    Matrix("f16", "f16", "f16", 8, 8, 8),
    Matrix("f16", "f16", "f32", 8, 8, 8),
    Matrix("bf16", "bf16", "f32", 8, 8, 8),
    Matrix("f32", "f32", "f32", 8, 8, 8),
)

ARCHS: tuple[Arch, ...] = (
    Arch(
        "metal",
        "m4",
        subgroup=Fact(32, MSL),
        shared_bytes=Fact(32768, FEATURES),
        matrix=Fact(SIMDGROUP, MSL),
        dot4=Fact(False, MSL),
    ),
)
M4_PRO = "https://www.apple.com/newsroom/2024/10/apple-introduces-m4-pro-and-m4-max/"

DEVICES: tuple[Device, ...] = (
    Device(
        "m4pro",
        "M4 Pro, 20 GPU cores",
        ("metal:m4",),
        bandwidth=Fact(273.0, M4_PRO),
        units=Fact(20, M4_PRO),
    ),
    Device(
        "m4max",
        "M4 Max, 40 GPU cores",
        ("metal:m4",),
        bandwidth=Fact(546.0, M4_PRO),
        units=Fact(40, M4_PRO),
    ),
)
