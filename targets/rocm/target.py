"""ROCm devices as targets, by chip."""

from __future__ import annotations

from speccc.targets.devices.profile import Profile
from speccc.targets.triton.engine import fp8_of
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.target import TritonTarget
from speccc.targets.triton_build import ROCM_WAVES, Built, TritonKernel, build_rocm

TOKENS = 16
"""Columns of an MFMA's or a WMMA's accumulator."""

UNROLL = {64: 2, 32: 1}
"""Trips written out, by lanes of a wave. RDNA's 256 registers hold two: the one at hand and, as
Triton loads a trip ahead, the next one."""


def make(profile: Profile) -> TritonTarget:
    """The target of a profile such as "rocm:gfx1100"."""
    chip = profile.arch.name

    def build(kernel: TritonKernel) -> Built:
        return build_rocm(kernel, chip)

    waves = ROCM_WAVES[chip]
    shape = Shape(
        tokens=TOKENS, unroll=UNROLL[waves], registers=None, fp8=fp8_of(profile), amd=True
    )
    return TritonTarget(profile, build, ("amdgcn", "hsaco"), waves, shape)
