"""AMD: ROCm architectures, the same chips seen through Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

SPECS = "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
LLVM = "https://llvm.org/docs/AMDGPUUsage.html"
CDNA3_ISA = (
    "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/"
    "instruction-set-architectures/amd-instinct-mi300-cdna3-instruction-set-architecture.pdf"
)
CDNA4_ISA = (
    "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/"
    "instruction-set-architectures/amd-instinct-cdna4-instruction-set-architecture.pdf"
)
RDNA3_ISA = "https://docs.amd.com/v/u/en-US/rdna3-shader-instruction-set-architecture-feb-2023_0"
RDNA35_ISA = "https://docs.amd.com/v/u/en-US/rdna35_instruction_set_architecture"
RDNA4_ISA = "https://docs.amd.com/v/u/en-US/rdna4-instruction-set-architecture"
VEGA7_ISA = "https://docs.amd.com/v/u/en-US/vega-7nm-shader-instruction-set-architecture"
RADV = "https://gitlab.freedesktop.org/mesa/mesa/-/blob/main/src/amd/vulkan/radv_physical_device.c"

CDNA3 = (
    Matrix("i8", "i8", "i32", 16, 16, 32),
    Matrix("i8", "i8", "i32", 32, 32, 16),
    Matrix("f16", "f16", "f32", 16, 16, 16),
    Matrix("f16", "f16", "f32", 32, 32, 8),
    Matrix("bf16", "bf16", "f32", 16, 16, 16),
    Matrix("bf16", "bf16", "f32", 32, 32, 8),
)
CDNA4 = (
    Matrix("i8", "i8", "i32", 16, 16, 64),
    Matrix("i8", "i8", "i32", 32, 32, 32),
    Matrix("f16", "f16", "f32", 16, 16, 32),
    Matrix("f16", "f16", "f32", 32, 32, 16),
    Matrix("bf16", "bf16", "f32", 16, 16, 32),
    Matrix("bf16", "bf16", "f32", 32, 32, 16),
    Matrix("e4m3", "e4m3", "f32", 16, 16, 128, scale=32),
    Matrix("e2m1", "e2m1", "f32", 16, 16, 128, scale=32),
)
WMMA = (
    Matrix("i8", "i8", "i32", 16, 16, 16),
    Matrix("f16", "f16", "f32", 16, 16, 16),
    Matrix("f16", "f16", "f16", 16, 16, 16),
    Matrix("bf16", "bf16", "f32", 16, 16, 16),
    Matrix("i4", "i4", "i32", 16, 16, 16),
)
RDNA4 = (*WMMA, Matrix("e4m3", "e4m3", "f32", 16, 16, 16))
RADV_RDNA3 = (
    Matrix("i8", "i8", "i32", 16, 16, 16),
    Matrix("u8", "i8", "i32", 16, 16, 16),
    Matrix("i8", "u8", "i32", 16, 16, 16),
    Matrix("u8", "u8", "i32", 16, 16, 16),
    Matrix("f16", "f16", "f32", 16, 16, 16),
    Matrix("f16", "f16", "f16", 16, 16, 16),
)
RADV_RDNA4 = (*RADV_RDNA3, Matrix("bf16", "bf16", "f32", 16, 16, 16))


def _rocm(
    name: str, wave: int, lds_kib: int, vgprs: int, matrix: Fact[tuple[Matrix, ...]], dot4: str
) -> Arch:
    return Arch(
        "rocm",
        name,
        subgroup=Fact(wave, SPECS),
        shared_bytes=Fact(lds_kib * 1024, SPECS),
        registers=Fact(vgprs, LLVM),
        matrix=matrix,
        dot4=Fact(True, dot4),
    )


def _vulkan(name: str, wave: int, matrix: Fact[tuple[Matrix, ...]] | None, dot4: str) -> Arch:
    return Arch(
        "vulkan",
        name,
        subgroup=Fact(wave, RADV),
        shared_bytes=Fact(65536, RADV),
        matrix=matrix,
        dot4=Fact(True, dot4),
    )


ARCHS: tuple[Arch, ...] = (
    _rocm("gfx906", 64, 64, 256, Fact((), VEGA7_ISA), VEGA7_ISA),
    _rocm("gfx942", 64, 64, 512, Fact(CDNA3, CDNA3_ISA), CDNA3_ISA),
    _rocm("gfx950", 64, 160, 512, Fact(CDNA4, CDNA4_ISA), CDNA4_ISA),
    _rocm("gfx1100", 32, 64, 256, Fact(WMMA, RDNA3_ISA), RDNA3_ISA),
    _rocm("gfx1151", 32, 64, 256, Fact(WMMA, RDNA35_ISA), RDNA35_ISA),
    _rocm("gfx1201", 32, 64, 256, Fact(RDNA4, RDNA4_ISA), RDNA4_ISA),
    _vulkan("vega20", 64, Fact((), RADV), VEGA7_ISA),
    _vulkan("rdna3", 32, Fact(RADV_RDNA3, RADV), RDNA3_ISA),
    _vulkan("rdna3.5", 32, Fact(RADV_RDNA3, RADV), RDNA35_ISA),
    _vulkan("rdna4", 32, Fact(RADV_RDNA4, RADV), RDNA4_ISA),
)
DEVICES: tuple[Device, ...] = (
    Device("mi50", "Instinct MI50", ("rocm:gfx906", "vulkan:vega20")),
    Device("mi300x", "Instinct MI300X", ("rocm:gfx942",)),
    Device("mi355x", "Instinct MI355X", ("rocm:gfx950",)),
    Device("rx7900xtx", "Radeon RX 7900 XTX", ("rocm:gfx1100", "vulkan:rdna3")),
    Device("rx9070xt", "Radeon RX 9070 XT", ("rocm:gfx1201", "vulkan:rdna4")),
    Device("strixhalo", "Ryzen AI Max+ 395, Radeon 8060S", ("rocm:gfx1151", "vulkan:rdna3.5")),
)
