"""A whole model in SYCL: every phase on the CPU device equals the golden machine bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import test_numerics
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.sycl_kernel import launched
from test_fragment_plan import SPECS, Bufs, Compared, Sizes
from test_numerics import PlanSession, tokens_of

from speccc.ir.fragment import FragmentKernel
from speccc.targets.registry import target
from speccc.targets.sycl.target import SyclTarget

BMG = target("sycl:bmg")
assert isinstance(BMG, SyclTarget)


@pytest.fixture(scope="module")
def device() -> Iterator[SyclCpu]:
    require("sycl")
    with SyclCpu() as running:
        yield running


@pytest.mark.parametrize("which", SPECS)
def test_every_phase_on_the_device(
    which: str, device: SyclCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tokens and one more, then a tree, lowered as for a Battlemage; not a bit differs."""

    def on_device(kernel: FragmentKernel, bufs: Bufs, scalars: Sizes) -> Bufs:
        return launched(device, kernel, bufs, scalars)

    compared = Compared(on_device, BMG.lowering.run)
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    session = PlanSession(SPECS[which], tmp_path)
    tokens = tokens_of(SPECS[which].tiny, 9)
    session.forward(tokens[:5])
    session.forward(tokens[5:6])
    session.forward(tokens[6:], [-1, 0, 0])
    assert compared.phases == 3 * len(compared.lowered) >= 30
