"""Intel: Xe architectures through SYCL and Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix, rates

MATRIX_EXTENSION = (
    "https://github.com/intel/llvm/blob/sycl/sycl/doc/extensions/experimental/"
    "sycl_ext_matrix/sycl_ext_oneapi_matrix.asciidoc"
)


def _xmx16_halves(t: str) -> tuple[Matrix, ...]:
    large = tuple(Matrix(t, t, "f32", m, 64, k) for m in (1, 32) for k in (16, 32))
    return (Matrix(t, t, "f32", 8, 16, 16, least_m=1), Matrix(t, t, "f32", 16, 16, 16), *large)


# Both chips of Battlemage, G21 and G31, and PVC have these; halves accumulate in themselves, too.
XMX16 = (
    Matrix("i8", "i8", "i32", 8, 16, 32, least_m=1),
    Matrix("u8", "i8", "i32", 8, 16, 32, least_m=1),
    Matrix("i8", "u8", "i32", 8, 16, 32, least_m=1),
    Matrix("u8", "u8", "i32", 8, 16, 32, least_m=1),
    *(m for t in ("f16", "bf16") for m in _xmx16_halves(t)),
    Matrix("tf32", "tf32", "f32", 8, 16, 8, least_m=1),
)

# Alchemist's engine is half as wide.
_HALVES8 = tuple(Matrix(t, t, "f32", 8, 8, 16, least_m=1) for t in ("f16", "bf16"))
_BYTES = ("i8", "u8")
XMX8 = (*(Matrix(a, b, "i32", 8, 8, 32, least_m=1) for a in _BYTES for b in _BYTES), *_HALVES8)

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
# A table of Intel's product pages by another project: the pages themselves were not at hand.
B70 = "https://zolotukhin.ai/zinc/docs/intel-gpu-reference/"
A770 = (
    "https://www.svethardware.cz/intel-zverejnil-oficialni-specifikace-grafickych-karet-arc/58344"
)
# A matrix of the driver's has the lanes of one vector of the engine: 8 before Xe2, 16 since.
MESA_SHAPES = (
    "https://gitlab.freedesktop.org/mesa/mesa/-/blob/main/src/intel/dev/intel_device_info.c"
)
# f16 as a B570 answers; the bytes' shape follows from the instruction, which is SYCL's as well.
XE2_SHAPES = f"https://github.com/kvark/blade/pull/399 {MATRIX_EXTENSION}"
# Of Alchemist, Intel's calculator of occupancy has the same 64 KB of a workgroup.
ANV_SHARED = "https://github.com/kryptic-sh/infr/pull/2"
DP4A = "https://github.com/ggml-org/llama.cpp/pull/12135"
OCLOC_DP4A = "asked of ocloc 26.27: dot_4x8packed_ss_int becomes dp4a"
OCLOC_DG2 = "asked of ocloc 26.27: dpas.8x8 (8|M0) of sub-groups of 8 on acm-g10"
COOPMAT_DG2 = (
    Matrix("i8", "i8", "i32", 8, 8, 32),
    Matrix("u8", "u8", "u32", 8, 8, 32),
    Matrix("f16", "f16", "f32", 8, 8, 16),
    Matrix("f16", "f16", "f16", 8, 8, 16),
)
COOPMAT_XE2 = (
    Matrix("i8", "i8", "i32", 8, 16, 32),
    Matrix("u8", "u8", "u32", 8, 16, 32),
    Matrix("f16", "f16", "f32", 8, 16, 16),
    Matrix("f16", "f16", "f16", 8, 16, 16),
)
MAX1550 = (
    "https://www.intel.com/content/www/us/en/products/sku/232873/"
    "intel-data-center-gpu-max-1550/specifications.html"
)
# Operations of a core in a clock: 8192 in int8, 4096 in halves; Alchemist's 16 engines of 1024 bits
# do half as many as these 8 of 4096.
XE_HPC_RATES = (
    "https://www.techpowerup.com/285769/"
    "intel-xe-hpc-architecture-detailed-has-dual-use-as-compute-and-cloud-gaming-accelerator"
)
# Of a core of Xe2: 4096 in int8, 2048 in halves.
XE2_RATES = "https://architosh.com/2025/09/product-review-intel-arc-pro-b50-gpu"
MAX_OVERVIEW = (
    "https://www.intel.com/content/www/us/en/developer/articles/technical/"
    "intel-data-center-gpu-max-series-overview.html"
)

ARCHS: tuple[Arch, ...] = (
    Arch(
        "sycl",
        "bmg",
        subgroup=Fact(16, MATRIX_EXTENSION),
        matrix=Fact(XMX16, MATRIX_EXTENSION),
        dot4=Fact(True, OCLOC_DP4A),
    ),
    Arch(
        "sycl",
        "pvc",
        subgroup=Fact(16, MATRIX_EXTENSION),
        shared_bytes=Fact(128 << 10, OCCUPANCY),
        registers=Fact(256, GRF),
        matrix=Fact(XMX16, MATRIX_EXTENSION),
        dot4=Fact(True, OCLOC_DP4A),
    ),
    Arch(
        "sycl",
        "alchemist",
        subgroup=Fact(8, OCLOC_DG2),
        shared_bytes=Fact(65536, OCCUPANCY),
        matrix=Fact(XMX8, MATRIX_EXTENSION),
        dot4=Fact(True, OCLOC_DP4A),
    ),
    Arch(
        "vulkan",
        "alchemist",
        # Its threads have 8, 16 or 32 lanes; a matrix of the driver's has those of one vector.
        subgroup=Fact(8, OCCUPANCY, estimated=True),
        shared_bytes=Fact(65536, f"{OCCUPANCY} {ANV_SHARED}"),
        matrix=Fact(COOPMAT_DG2, MESA_SHAPES),
        dot4=Fact(True, DP4A),
    ),
    Arch(
        "vulkan",
        "xe2",
        subgroup=Fact(16, MATRIX_EXTENSION, estimated=True),
        shared_bytes=Fact(65536, ANV_SHARED),
        matrix=Fact(COOPMAT_XE2, XE2_SHAPES, estimated=True),
        dot4=Fact(True, DP4A),
    ),
)
DEVICES: tuple[Device, ...] = (
    Device(
        "b580",
        "Arc B580",
        ("sycl:bmg", "vulkan:xe2"),
        bandwidth=Fact(456.0, B580),
        memory=Fact(12 << 30, B580),
        units=Fact(20, B580),
        rates={
            **rates({"i8": 233.0}, B580),
            **rates({"f16": 116.5, "bf16": 116.5}, f"{B580} {XE2_RATES}", estimated=True),
        },
    ),
    Device(
        "b70",
        "Arc Pro B70",
        ("sycl:bmg", "vulkan:xe2"),
        bandwidth=Fact(608.0, B70, estimated=True),
        memory=Fact(32 << 30, B70, estimated=True),
        units=Fact(32, B70, estimated=True),
        rates=rates(
            {"i8": 367.0, "f16": 183.5, "bf16": 183.5}, f"{B70} {XE2_RATES}", estimated=True
        ),
    ),
    Device(
        "a770",
        "Arc A770, 16 GB",
        ("sycl:alchemist", "vulkan:alchemist"),
        bandwidth=Fact(560.0, A770, estimated=True),
        memory=Fact(16 << 30, A770, estimated=True),
        units=Fact(32, A770, estimated=True),
        # 32 cores at 2.1 GHz.
        rates=rates(
            {"i8": 275.2, "f16": 137.6, "bf16": 137.6}, f"{A770} {XE_HPC_RATES}", estimated=True
        ),
    ),
    Device(
        "max1550",
        "Data Center GPU Max 1550",
        ("sycl:pvc",),
        bandwidth=Fact(3276.8, MAX1550),
        memory=Fact(128 << 30, MAX1550),
        units=Fact(128, MAX1550),
        cache=Fact(408 << 20, MAX_OVERVIEW),
        # 128 cores at 1.6 GHz.
        rates=rates(
            {"i8": 1677.7, "f16": 838.9, "bf16": 838.9}, f"{MAX1550} {XE_HPC_RATES}", estimated=True
        ),
    ),
)
