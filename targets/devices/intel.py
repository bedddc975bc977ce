"""Intel: Xe architectures through SYCL and Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix, rates

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

# Small register files: 128 registers of 64 bytes for the 16 lanes of a thread; 256 on request.
GRF = (
    "https://www.intel.com/content/www/us/en/docs/oneapi/optimization-guide-gpu/2024-0/"
    "small-register-mode-vs-large-register-mode.html"
)
OCCUPANCY = (
    "https://github.com/oneapi-src/oneAPI-samples/tree/master/Tools/GPU-Occupancy-Calculator"
)
B580 = (
    "https://www.intel.com/content/www/us/en/products/sku/241598/"
    "intel-arc-b580-graphics/specifications.html"
)
B70 = "https://zolotukhin.ai/blog/2026-05-18-intel-arc-pro-b70-deep-dive-and-zincs-t-intel-plan/"
MAX1550 = (
    "https://www.intel.com/content/www/us/en/products/sku/232873/"
    "intel-data-center-gpu-max-1550/specifications.html"
)
MAX_OVERVIEW = (
    "https://www.intel.com/content/www/us/en/developer/articles/technical/"
    "intel-data-center-gpu-max-series-overview.html"
)

ARCHS: tuple[Arch, ...] = (
    Arch("sycl", "bmg", subgroup=Fact(16, MATRIX_EXTENSION), matrix=Fact(XMX16, MATRIX_EXTENSION)),
    Arch(
        "sycl",
        "pvc",
        subgroup=Fact(16, MATRIX_EXTENSION),
        shared_bytes=Fact(128 << 10, OCCUPANCY),
        registers=Fact(256, GRF),
        matrix=Fact(XMX16, MATRIX_EXTENSION),
    ),
)
DEVICES: tuple[Device, ...] = (
    Device(
        "b580",
        "Arc B580",
        ("sycl:bmg",),
        bandwidth=Fact(456.0, B580),
        memory=Fact(12 << 30, B580),
        units=Fact(20, B580),
        rates=rates({"i8": 233.0}, B580),
    ),
    Device(
        "b70",
        "Arc Pro B70",
        ("sycl:bmg",),
        bandwidth=Fact(608.0, B70),
        memory=Fact(32 << 30, B70),
        rates=rates({"i8": 367.0}, B70),
    ),
    Device(
        "max1550",
        "Data Center GPU Max 1550",
        ("sycl:pvc",),
        bandwidth=Fact(3276.8, MAX1550),
        memory=Fact(128 << 30, MAX1550),
        units=Fact(128, MAX1550),
        cache=Fact(408 << 20, MAX_OVERVIEW),
    ),
)
