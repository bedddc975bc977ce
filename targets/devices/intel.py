"""Intel: Xe architectures through SYCL and Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

MATRIX_EXTENSION = (
    "https://github.com/intel/llvm/blob/sycl/sycl/doc/extensions/experimental/"
    "sycl_ext_matrix/sycl_ext_oneapi_matrix.asciidoc"
)

XMX16 = (
    Matrix("i8", "i8", "i32", 8, 16, 32, least_m=1),
    Matrix("u8", "i8", "i32", 8, 16, 32, least_m=1),
    Matrix("i8", "u8", "i32", 8, 16, 32, least_m=1),
    Matrix("u8", "u8", "i32", 8, 16, 32, least_m=1),
    Matrix("f16", "f16", "f32", 8, 16, 16, least_m=1),
    Matrix("bf16", "bf16", "f32", 8, 16, 16, least_m=1),
    Matrix("bf16", "bf16", "f32", 16, 16, 16),
    Matrix("bf16", "bf16", "f32", 1, 64, 16),
    Matrix("bf16", "bf16", "f32", 32, 64, 16),
    Matrix("tf32", "tf32", "f32", 8, 16, 8),
)

ARCHS: tuple[Arch, ...] = (
    Arch("sycl", "bmg", subgroup=Fact(16, MATRIX_EXTENSION), matrix=Fact(XMX16, MATRIX_EXTENSION)),
    Arch("sycl", "pvc", subgroup=Fact(16, MATRIX_EXTENSION), matrix=Fact(XMX16, MATRIX_EXTENSION)),
)
DEVICES: tuple[Device, ...] = (
    Device("b580", "Arc B580", ("sycl:bmg",)),
    Device("b70", "Arc Pro B70", ("sycl:bmg",)),
    Device("max1550", "Data Center GPU Max 1550", ("sycl:pvc",)),
)
