"""A whole model at fragment level: every phase of its plan equals the block level bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import test_numerics
from cpu_rig import Spec, same_bits
from emulation.require import require
from emulation.vulkan_root import VulkanHome, find_vulkan
from emulation.vulkan_worker import VulkanWorker
from fragment_rig import Array, dispatched, lowered
from models import Tiny
from test_numerics import PlanSession, tokens_of

from speccc.ir.expr import Var
from speccc.ir.fragment import FragmentKernel
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.plan import Loop, Plan, Step
from speccc.ir.tile import Buf, Kernel
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import render_shader

Bufs = Mapping[Buf, Array]
Sizes = Mapping[Var, int]
Machine = Callable[[FragmentKernel, Bufs, Sizes], Bufs]
Lower = Callable[[Kernel], FragmentKernel]

# Between them: 4-bit, 8-bit and float weights, levels and groups of 16 columns, a half and an int8
# cache, a tied and an untied head.
SPECS = {
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160, layers=1), "q4_1"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
    "mxfp4, kv f16": Spec(Tiny(seed=6, layers=1), "mxfp4"),
    "nvfp4, kv f16": Spec(Tiny(seed=7, tied=False, layers=1), "nvfp4_rows"),
    "fp8, kv f16": Spec(Tiny(seed=9, layers=1), "fp8", kind="llama"),
}


class Compared:
    """A plan machine that runs each phase at both levels and insists on equal buffers."""

    def __init__(self, machine: Machine, lower: Lower = lowered) -> None:
        self.machine, self.lower = machine, lower
        self.lowered: dict[Kernel, FragmentKernel] = {}
        self.phases = 0

    def run_plan(self, plan: Plan, bufs: Bufs, sizes: Sizes, *, workers: int) -> None:
        self._run(plan.body, bufs, dict(sizes))

    def _run(self, body: tuple[Step, ...], bufs: Bufs, env: dict[Var, int]) -> None:
        for step in body:
            if isinstance(step, Loop):
                for n in range(step.extent):
                    self._run(step.body, bufs, {**env, step.var: n})
            else:
                self._phase(step, bufs, {v: env[v] for v in step.scalars})

    def _phase(self, kernel: Kernel, bufs: Bufs, scalars: Sizes) -> None:
        if kernel not in self.lowered:
            self.lowered[kernel] = self.lower(kernel)
            verify_fragment(self.lowered[kernel])
        before = {b: bufs[b].copy() for b in kernel.bufs}
        run_kernel(kernel, {b: bufs[b] for b in kernel.bufs}, scalars)
        after = self.machine(self.lowered[kernel], before, scalars)
        for b in kernel.bufs:
            assert same_bits(after[b], bufs[b]), f"{kernel.name}: {b.name} differs"
        self.phases += 1


def in_numpy(kernel: FragmentKernel, bufs: Bufs, scalars: Sizes) -> Bufs:
    run_fragment_kernel(kernel, bufs, scalars, groups=2)
    return bufs


@pytest.mark.parametrize("which", SPECS)
def test_every_phase_equals_block_level(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain that fills one tile of rows and begins another, then a tree."""
    compared = Compared(in_numpy)
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    session = PlanSession(SPECS[which], tmp_path)
    tokens = tokens_of(SPECS[which].tiny, 14)
    session.forward(tokens[:9])
    session.forward(tokens[9:], [-1, 0, 0, 1, -1])
    assert compared.phases == 2 * len(compared.lowered) > 12


@pytest.fixture(scope="module")
def home() -> VulkanHome:
    require("vulkan")
    found = find_vulkan()
    assert found is not None
    return found


@pytest.fixture
def worker(home: VulkanHome) -> Iterator[VulkanWorker]:
    with VulkanWorker(home, timeout_s=60) as running:
        yield running


def test_a_step_on_the_device(
    home: VulkanHome, worker: VulkanWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens through all phases of a model on Vulkan, without a bit of difference."""

    def on_device(kernel: FragmentKernel, bufs: Bufs, scalars: Sizes) -> Bufs:
        shader = render_shader(kernel, Fma.PAIRS)
        return dispatched(home, worker, shader, bufs, scalars, groups=2)

    compared = Compared(on_device)
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    spec = SPECS["q4_1, kv f16"]
    PlanSession(spec, tmp_path).forward(tokens_of(spec.tiny, 3))
    assert compared.phases == 10
