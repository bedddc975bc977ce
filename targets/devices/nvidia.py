"""NVIDIA: CUDA architectures, the same chips seen through Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix, rates

LIMITS = (
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications"
)
PTX_MMA = (
    "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma"
)
PTX_WGMMA = (
    "https://docs.nvidia.com/cuda/parallel-thread-execution/"
    "#asynchronous-warpgroup-level-matrix-instructions"
)
PTX_TCGEN05 = "https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-instructions"
PTX_DP4A = (
    "https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-dp4a"
)

AMPERE = (
    Matrix("i8", "i8", "i32", 16, 8, 32),
    Matrix("i8", "i8", "i32", 16, 8, 16),
    Matrix("f16", "f16", "f32", 16, 8, 16),
    Matrix("f16", "f16", "f32", 16, 8, 8),
    Matrix("f16", "f16", "f16", 16, 8, 16),
    Matrix("bf16", "bf16", "f32", 16, 8, 16),
    Matrix("bf16", "bf16", "f32", 16, 8, 8),
    Matrix("tf32", "tf32", "f32", 16, 8, 8),
    Matrix("i4", "i4", "i32", 16, 8, 64),
)
FP8 = (Matrix("e4m3", "e4m3", "f32", 16, 8, 32), Matrix("e5m2", "e5m2", "f32", 16, 8, 32))
# Of wgmma and tcgen05 the largest n: any multiple of 8 up to it is an instruction.
WGMMA = (
    Matrix("i8", "i8", "i32", 64, 256, 32),
    Matrix("f16", "f16", "f32", 64, 256, 16),
    Matrix("bf16", "bf16", "f32", 64, 256, 16),
    Matrix("e4m3", "e4m3", "f32", 64, 256, 32),
)
TCGEN05 = (
    Matrix("i8", "i8", "i32", 128, 256, 32),
    Matrix("f16", "f16", "f32", 128, 256, 16),
    Matrix("bf16", "bf16", "f32", 128, 256, 16),
    Matrix("e4m3", "e4m3", "f32", 128, 256, 32),
    Matrix("e2m1", "e2m1", "f32", 128, 256, 64, scale=16),
    Matrix("e2m1", "e2m1", "f32", 128, 256, 64, scale=32),
)
# Of kind::i8 an assembler for sm_103a says that it is not supported there: only mma.sync has int8.
PTXAS_103 = "asked of ptxas 12.9: -arch=sm_103a"
TCGEN05_103 = tuple(m for m in TCGEN05 if m.a != "i8")
SM_120 = (
    Matrix("e2m1", "e2m1", "f32", 16, 8, 64, scale=16),
    Matrix("e2m1", "e2m1", "f32", 16, 8, 64, scale=32),
    Matrix("e4m3", "e4m3", "f32", 16, 8, 32, scale=32),
)
# What the open driver of these chips answers; NVIDIA's own lists the same shapes (and fp8 and
# bfloat16 by further extensions). Eight tokens are what a verification needs: the narrow one first.
NVK = (
    "https://gitlab.freedesktop.org/mesa/mesa/-/blob/main/src/nouveau/vulkan/nvk_physical_device.c"
)
COOPMAT_TURING = (
    Matrix("i8", "i8", "i32", 16, 8, 32),
    Matrix("i8", "i8", "i32", 16, 16, 32),
    Matrix("u8", "u8", "u32", 16, 8, 32),
    Matrix("u8", "u8", "u32", 16, 16, 32),
    Matrix("f16", "f16", "f32", 16, 16, 16),
    Matrix("f16", "f16", "f32", 16, 8, 16),
    Matrix("f16", "f16", "f32", 16, 8, 8),
    Matrix("f16", "f16", "f16", 16, 16, 16),
    Matrix("f16", "f16", "f16", 16, 8, 16),
    Matrix("f16", "f16", "f16", 16, 8, 8),
)
COOPMAT_SMALL = (Matrix("i8", "i8", "i32", 8, 8, 16), Matrix("u8", "u8", "u32", 8, 8, 16))
COOPMAT_AMPERE = (Matrix("i8", "i8", "i32", 16, 8, 16), Matrix("u8", "u8", "u32", 16, 8, 16))
# Less than a thread block of CUDA may ask for: what Vulkan lets a workgroup have (either driver).
VULKAN_SHARED = (
    "https://gitlab.freedesktop.org/mesa/mesa/-/blob/main/src/nouveau/vulkan/nvk_private.h "
    "https://github.com/kryptic-sh/infr/pull/2"
)


def _vulkan(name: str, matrix: tuple[Matrix, ...]) -> Arch:
    return Arch(
        "vulkan",
        name,
        subgroup=Fact(32, LIMITS),
        shared_bytes=Fact(49152, VULKAN_SHARED),
        matrix=Fact(matrix, NVK),
        dot4=Fact(True, PTX_DP4A),
    )


def _cuda(name: str, shared_kib: int, matrix: tuple[Matrix, ...], source: str) -> Arch:
    return Arch(
        "cuda",
        name,
        subgroup=Fact(32, LIMITS),
        shared_bytes=Fact(shared_kib * 1024, LIMITS),
        registers=Fact(255, LIMITS),
        matrix=Fact(matrix, source),
        dot4=Fact(True, PTX_DP4A),
    )


ARCHS: tuple[Arch, ...] = (
    _cuda("sm_80", 163, AMPERE, PTX_MMA),
    _cuda("sm_86", 99, AMPERE, PTX_MMA),
    _cuda("sm_89", 99, AMPERE + FP8, PTX_MMA),
    _cuda("sm_90", 227, AMPERE + FP8 + WGMMA, f"{PTX_MMA} {PTX_WGMMA}"),
    _cuda("sm_100", 227, AMPERE + FP8 + TCGEN05, f"{PTX_MMA} {PTX_TCGEN05}"),
    _cuda("sm_103", 227, AMPERE + FP8 + TCGEN05_103, f"{PTX_MMA} {PTX_TCGEN05} {PTXAS_103}"),
    _cuda("sm_120", 99, AMPERE + FP8 + SM_120, PTX_MMA),
    _vulkan("turing", COOPMAT_TURING + COOPMAT_SMALL),
    _vulkan("ampere", COOPMAT_TURING + COOPMAT_AMPERE + COOPMAT_SMALL),
    _vulkan("ada", COOPMAT_TURING + COOPMAT_AMPERE + COOPMAT_SMALL),
    _vulkan("blackwell", COOPMAT_TURING + COOPMAT_AMPERE),
)
GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
ADA = (
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/"
    "nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
RTX_BLACKWELL = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf"
)
RTX_PRO = (
    "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/"
)
RTX_PRO_MEASURED = "https://github.com/zzc0721/torch-performance-test-data/issues/162"
H100 = "https://www.nvidia.com/en-us/data-center/h100/"
HOPPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
H200 = "https://www.nvidia.com/en-us/data-center/h200/"
HGX = "https://www.nvidia.com/en-us/data-center/hgx/"
# NVIDIA's table of both boards in an article: of eight GPUs, and sparse.
HGX_COPY = "https://fibermall.com/blog/?p=17161"
# NVIDIA's correction by its datasheet: 7680 lines of memory at 3996 MHz, not 8192.
BLACKWELL_BANDWIDTH = "https://github.com/ai-dynamo/aiconfigurator/pull/1246"
# What the driver of a B200 answers.
B200_QUERY = "https://github.com/pytorch/ao/pull/4002"
# A table of NVIDIA's brief in an article: of one GPU of HGX B300, and dense.
B300_COPY = "https://verda.com/blog/gb300-nvl72-architecture"

# GB of memory are of 2^30 bytes: drivers answer 81559 MiB for the 80 of H100, 143771 for the 141 of
# H200, 183359 for B200's 180, 275040 for B300's 270.
# Of tables that give sparse rates, half is written here. "f16" and "fp8" accumulate in f32.
HOPPER_RATES = {"f16": 989.5, "bf16": 989.5, "fp8": 1979.0, "i8": 1979.0}

DEVICES: tuple[Device, ...] = (
    Device(
        "rtx3090",
        "GeForce RTX 3090",
        ("cuda:sm_86", "vulkan:ampere"),
        bandwidth=Fact(936.0, GA102),
        memory=Fact(24 << 30, GA102),
        units=Fact(82, GA102),
        cache=Fact(6 << 20, GA102),
        rates=rates({"f16": 71.0, "bf16": 71.0, "i8": 284.0, "i4": 568.0}, GA102),
    ),
    Device(
        "rtx4090",
        "GeForce RTX 4090",
        ("cuda:sm_89", "vulkan:ada"),
        bandwidth=Fact(1008.0, ADA),
        memory=Fact(24 << 30, ADA),
        units=Fact(128, ADA),
        cache=Fact(72 << 20, ADA),
        rates=rates(
            {"f16": 165.2, "bf16": 165.2, "fp8": 330.3, "i8": 660.6, "i4": 1321.2},
            ADA,
        ),
    ),
    Device(
        "rtx5090",
        "GeForce RTX 5090",
        ("cuda:sm_120", "vulkan:blackwell"),
        bandwidth=Fact(1792.0, RTX_BLACKWELL),
        memory=Fact(32 << 30, RTX_BLACKWELL),
        units=Fact(170, RTX_BLACKWELL),
        cache=Fact(96 << 20, RTX_BLACKWELL),
        rates=rates(
            {"f16": 209.5, "bf16": 209.5, "fp8": 419.0, "i8": 838.0, "fp4": 1676.0},
            RTX_BLACKWELL,
        ),
    ),
    Device(
        "rtxpro6000",
        "RTX PRO 6000 Blackwell Workstation Edition",
        ("cuda:sm_120", "vulkan:blackwell"),
        bandwidth=Fact(1792.0, RTX_PRO),
        memory=Fact(96 << 30, RTX_PRO),
        units=Fact(188, RTX_PRO),
        # Of "4000 AI TOPS", sparse fp4, this architecture has a quarter in dense int8; and, unlike
        # GeForce, an eighth in halves that accumulate in f32: 407 TFLOPS have been measured.
        rates=rates(
            {"f16": 500.0, "bf16": 500.0, "fp8": 1000.0, "i8": 1000.0, "fp4": 2000.0},
            f"{RTX_PRO} {RTX_BLACKWELL} {RTX_PRO_MEASURED}",
            estimated=True,
        ),
    ),
    Device(
        "h100",
        "H100 SXM",
        ("cuda:sm_90",),
        bandwidth=Fact(3350.0, H100),
        memory=Fact(80 << 30, H100),
        units=Fact(132, HOPPER),
        cache=Fact(50 << 20, HOPPER),
        rates=rates(HOPPER_RATES, H100),
    ),
    Device(
        "h200",
        "H200 SXM",
        ("cuda:sm_90",),
        bandwidth=Fact(4800.0, H200),
        memory=Fact(141 << 30, H200),
        rates=rates(HOPPER_RATES, H200),
    ),
    Device(
        "b200",
        "B200",
        ("cuda:sm_100",),
        bandwidth=Fact(7700.0, BLACKWELL_BANDWIDTH),
        memory=Fact(180 << 30, HGX),
        units=Fact(148, B200_QUERY),
        cache=Fact(253 << 19, B200_QUERY),
        rates={
            **rates({"f16": 2250.0, "bf16": 2250.0, "fp8": 4500.0, "fp4": 9000.0}, HGX),
            **rates({"i8": 4500.0}, HGX_COPY, estimated=True),
        },
    ),
    Device(
        "b300",
        "B300",
        ("cuda:sm_103",),
        bandwidth=Fact(7750.0, BLACKWELL_BANDWIDTH),
        memory=Fact(270 << 30, B300_COPY, estimated=True),
        rates=rates(
            {"f16": 2250.0, "bf16": 2250.0, "fp8": 4500.0, "fp4": 14000.0, "i8": 150.0},
            f"{B300_COPY} {HGX_COPY}",
            estimated=True,
        ),
    ),
)
