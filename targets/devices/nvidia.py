"""NVIDIA: CUDA architectures, the same chips seen through Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

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
SM_120 = (
    Matrix("e2m1", "e2m1", "f32", 16, 8, 64, scale=16),
    Matrix("e2m1", "e2m1", "f32", 16, 8, 64, scale=32),
    Matrix("e4m3", "e4m3", "f32", 16, 8, 32, scale=32),
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
    _cuda("sm_120", 99, AMPERE + FP8 + SM_120, PTX_MMA),
)
DEVICES: tuple[Device, ...] = (
    Device("rtx3090", "GeForce RTX 3090", ("cuda:sm_86",)),
    Device("rtx4090", "GeForce RTX 4090", ("cuda:sm_89",)),
    Device("rtx5090", "GeForce RTX 5090", ("cuda:sm_120",)),
    Device("rtxpro6000", "RTX PRO 6000 Blackwell Workstation Edition", ("cuda:sm_120",)),
    Device("h100", "H100 SXM", ("cuda:sm_90",)),
    Device("h200", "H200 SXM", ("cuda:sm_90",)),
    Device("b200", "B200", ("cuda:sm_100",)),
)
