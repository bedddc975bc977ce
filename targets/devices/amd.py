"""AMD: ROCm architectures, the same chips seen through Vulkan, and products."""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix, rates

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
# Operations of a compute unit in a clock: 512 in f16 and int8 on RDNA 3, 2048 in int8 on RDNA 4.
WMMA_RATES = "https://gpuopen.com/learn/using_matrix_core_amd_rdna4/"
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
    name: str, wave: int, lds_kib: int, vgprs: int, matrix: tuple[Matrix, ...], isa: str
) -> Arch:
    return Arch(
        "rocm",
        name,
        subgroup=Fact(wave, SPECS),
        # Of one workgroup; RDNA has twice as much for two of them.
        shared_bytes=Fact(lds_kib * 1024, isa),
        registers=Fact(vgprs, LLVM),
        matrix=Fact(matrix, isa),
        dot4=Fact(True, isa),
    )


def _vulkan(name: str, wave: int, matrix: tuple[Matrix, ...], isa: str) -> Arch:
    return Arch(
        "vulkan",
        name,
        subgroup=Fact(wave, RADV),
        shared_bytes=Fact(65536, RADV),
        matrix=Fact(matrix, RADV),
        dot4=Fact(True, isa),
    )


ARCHS: tuple[Arch, ...] = (
    _rocm("gfx906", 64, 64, 256, (), VEGA7_ISA),
    _rocm("gfx942", 64, 64, 512, CDNA3, CDNA3_ISA),
    _rocm("gfx950", 64, 160, 512, CDNA4, CDNA4_ISA),
    _rocm("gfx1100", 32, 64, 256, WMMA, RDNA3_ISA),
    _rocm("gfx1151", 32, 64, 256, WMMA, RDNA35_ISA),
    _rocm("gfx1201", 32, 64, 256, RDNA4, RDNA4_ISA),
    _vulkan("vega20", 64, (), VEGA7_ISA),
    _vulkan("rdna3", 32, RADV_RDNA3, RDNA3_ISA),
    _vulkan("rdna3.5", 32, RADV_RDNA3, RDNA35_ISA),
    _vulkan("rdna4", 32, RADV_RDNA4, RDNA4_ISA),
)
MI50 = (
    "https://www.amd.com/en/support/downloads/drivers.html/accelerators/instinct/"
    "instinct-mi-series/instinct-mi50.html"
)
# 26.5 TFLOPS in packed halves, two products a lane; of int8 one instruction has four.
MI50_RATES = "https://en.wikipedia.org/wiki/Radeon_Instinct"
MI300X = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
MI355X = "https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html"
RX_7900_XTX = (
    "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/"
    "amd-radeon-rx-7900xtx.html"
)
RX_9070_XT = (
    "https://www.amd.com/en/products/graphics/desktops/radeon/9000-series/amd-radeon-rx-9070xt.html"
)
STRIX_HALO = (
    "https://www.amd.com/en/products/processors/laptop/ryzen/ai-300-series/"
    "amd-ryzen-ai-max-plus-395.html"
)

DEVICES: tuple[Device, ...] = (
    Device(
        "mi50",
        "Instinct MI50",
        ("rocm:gfx906", "vulkan:vega20"),
        bandwidth=Fact(1024.0, MI50),
        memory=Fact(16 << 30, SPECS),
        units=Fact(60, SPECS),
        cache=Fact(4 << 20, SPECS),
        rates=rates({"f16": 26.5, "i8": 53.0}, f"{MI50_RATES} {VEGA7_ISA}", estimated=True),
    ),
    Device(
        "mi300x",
        "Instinct MI300X",
        ("rocm:gfx942",),
        bandwidth=Fact(5300.0, MI300X),
        memory=Fact(192 << 30, SPECS),
        units=Fact(304, SPECS),
        cache=Fact(256 << 20, SPECS),
        rates=rates({"f16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "i8": 2614.9}, MI300X),
    ),
    Device(
        "mi355x",
        "Instinct MI355X",
        ("rocm:gfx950",),
        bandwidth=Fact(8000.0, MI355X),
        memory=Fact(288 << 30, SPECS),
        units=Fact(256, SPECS),
        cache=Fact(256 << 20, SPECS),
        rates={
            **rates({"f16": 2516.6, "bf16": 2516.6, "fp8": 5033.2, "fp4": 10066.3}, MI355X),
            # Instructions of int8 are as wide and take as long as those of fp8.
            **rates({"i8": 5033.2}, f"{MI355X} {CDNA4_ISA}", estimated=True),
        },
    ),
    Device(
        "rx7900xtx",
        "Radeon RX 7900 XTX",
        ("rocm:gfx1100", "vulkan:rdna3"),
        bandwidth=Fact(960.0, RX_7900_XTX),
        memory=Fact(24 << 30, SPECS),
        units=Fact(96, SPECS),
        cache=Fact(96 << 20, SPECS),
        rates={
            **rates({"f16": 122.8}, RX_7900_XTX),
            **rates({"i8": 122.8}, f"{RX_7900_XTX} {WMMA_RATES}", estimated=True),
        },
    ),
    Device(
        "rx9070xt",
        "Radeon RX 9070 XT",
        ("rocm:gfx1201", "vulkan:rdna4"),
        bandwidth=Fact(640.0, RX_9070_XT),
        memory=Fact(16 << 30, SPECS),
        units=Fact(64, SPECS),
        cache=Fact(64 << 20, SPECS),
        rates=rates({"f16": 195.0, "fp8": 389.0, "i8": 389.0, "i4": 779.0}, RX_9070_XT),
    ),
    Device(
        "strixhalo",
        "Ryzen AI Max+ 395, Radeon 8060S",
        ("rocm:gfx1151", "vulkan:rdna3.5"),
        bandwidth=Fact(256.0, STRIX_HALO),
        units=Fact(40, SPECS),
        cache=Fact(32 << 20, SPECS),
        # 40 units at 2.9 GHz.
        rates=rates({"f16": 59.4, "i8": 59.4}, f"{STRIX_HALO} {WMMA_RATES}", estimated=True),
    ),
)
