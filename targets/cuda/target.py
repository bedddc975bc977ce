"""CUDA devices as targets, by compute capability."""

from __future__ import annotations

from dataclasses import replace

from speccc.targets.devices.profile import Profile
from speccc.targets.triton.engine import fp8_of
from speccc.targets.triton.schedule import Fp4, Fp8, Shape
from speccc.targets.triton.target import TritonTarget
from speccc.targets.triton_build import Built, TritonKernel, build_cuda

WARP = 32
FP4 = {arch: Fp4(128, 16, inline=True) for arch in (100, 103)} | {120: Fp4(16, 8)}
"""`tcgen05.mma` and `mma.sync` of kind mxf4nvf4, as Triton 3.9 makes them of `tl.dot_scaled`."""
UNITS = {100: 2, 103: 2}
"""Most panels of an int8 tile. From 64 rows on Triton 3.9 takes `tcgen05.mma` on sm_100, and then
fails: it has none of 8 columns, and none in a function that a kernel calls; sm_103 has none of int8
at all. On sm_90 tiles of 64 rows become `wgmma`."""
FLOAT_UNITS = {90: 2, 100: 2, 103: 2}
"""Most panels of a tile of floats: below 64 rows all heights of it are `mma.sync`."""
FP8 = {90: Fp8(tokens=16)} | dict.fromkeys((100, 103), Fp8(units=2, halves=True))
"""sm_90 has e4m3 in `wgmma` alone, which is one instruction where all tiles are 64x16; of narrower
ones Triton makes f16. On sm_100 it is `tcgen05.mma`, as unfit as for int8, and each step of 32
columns would wait for its sums to come out of tensor memory. Of `mma.sync` of e4m3
ptxas itself makes two `F2FP.F16.E4M3.UNPACK_B` a register and `HMMA` there (as on sm_90; on sm_89
and sm_120 a `QMMA`): no unit of `mma.sync` takes e4m3. So we ask for the same, with `cvt`."""
TOKENS = 8
"""Columns of `mma.sync`'s accumulator, and the least of `wgmma`'s."""


def make(profile: Profile) -> TritonTarget:
    """The target of a profile such as "cuda:sm_90"."""
    arch = int(profile.arch.name.removeprefix("sm_"))

    def build(kernel: TritonKernel) -> Built:
        return build_cuda(kernel, arch)

    plain = Shape(tokens=TOKENS, fp4=FP4.get(arch))
    shape = replace(
        plain,
        units=UNITS.get(arch, plain.units),
        float_units=FLOAT_UNITS.get(arch, plain.float_units),
        fp8=FP8[arch] if arch in FP8 else fp8_of(profile),
    )
    return TritonTarget(profile, build, ("ptx", "cubin"), WARP, shape)
