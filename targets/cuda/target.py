"""CUDA devices as targets, by compute capability."""

from __future__ import annotations

from speccc.targets.devices.profile import Profile
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.target import TritonTarget
from speccc.targets.triton_build import Built, TritonKernel, build_cuda

WARP = 32
TOKENS = 8
"""Columns of `mma.sync`'s accumulator, and the least of `wgmma`'s."""


def make(profile: Profile) -> TritonTarget:
    """The target of a profile such as "cuda:sm_90"."""
    arch = int(profile.arch.name.removeprefix("sm_"))

    def build(kernel: TritonKernel) -> Built:
        return build_cuda(kernel, arch)

    return TritonTarget(profile, build, ("ptx", "cubin"), WARP, Shape(tokens=TOKENS))
