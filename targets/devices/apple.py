"""Apple: Metal GPU families of the M4, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

MSL = "https://developer.apple.com/metal/Metal-Shading-Language-Specification.pdf"
FEATURES = "https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf"

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
DEVICES: tuple[Device, ...] = (
    Device("m4pro", "M4 Pro, 20 GPU cores", ("metal:m4",)),
    Device("m4max", "M4 Max, 40 GPU cores", ("metal:m4",)),
)
