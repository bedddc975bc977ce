"""Generated tile programs: machine code of every instruction set here equals the golden machine."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_rig import HERE, build, golden, random_schedules, same_bits, single
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tile_gen import SIZES, Program, dots, elementwise, matmuls, reductions

from speccc.ir.formats import FORMATS
from speccc.ir.tile_text import print_kernel
from speccc.ir.tile_verify import verify_kernel

FEW = settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],  # shrinking would compile for minutes
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.integers(0, 1 << 30)


def check(programs: list[Program], seed: int) -> None:
    """One plan, one compilation an instruction set; every size with one worker and with three.

    `seed` draws each kernel's schedule: none of them may change a bit.
    """
    for p in programs:
        verify_kernel(p.kernel)
    plan = single([p.kernel for p in programs])
    bounds = {p.m: max(SIZES) for p in programs}
    schedules = {isa.name: random_schedules(plan, isa, seed) for isa in HERE}
    built = {isa.name: build(plan, bounds, isa, schedules[isa.name]) for isa in HERE}
    for m in SIZES:
        sizes = {p.m: m for p in programs}
        arrays = {b: a for n, p in enumerate(programs) for b, a in p.arrays(m, m + n).items()}
        expected = golden(plan, arrays, sizes, workers=2)
        for name, code in built.items():
            for workers in (1, 3):
                got = code.run(arrays, sizes, workers)
                for p in programs:
                    a, b = got[p.out], expected[p.out]
                    how = schedules[name][p.kernel.name]
                    where = f"{name}, m = {m}, {workers} workers, {how}\n{print_kernel(p.kernel)}"
                    assert np.isfinite(b).all(), where
                    assert same_bits(a, b), f"{where}{a[a != b][:4]} is not {b[a != b][:4]}"


@given(st.lists(elementwise(), min_size=6, max_size=6), SEEDS)
@FEW
def test_maps(programs: list[Program], seed: int) -> None:
    check(programs, seed)


@given(st.lists(reductions(), min_size=4, max_size=4), SEEDS)
@FEW
def test_reductions(programs: list[Program], seed: int) -> None:
    check(programs, seed)


@pytest.mark.parametrize("fmt", FORMATS)
@given(st.data())
@settings(FEW, max_examples=2)
def test_matmuls(fmt: str, data: st.DataObject) -> None:
    check([data.draw(matmuls(fmt)) for _ in range(2)], data.draw(SEEDS))


@given(st.lists(dots(), min_size=2, max_size=2), SEEDS)
@FEW
def test_dots(programs: list[Program], seed: int) -> None:
    check(programs, seed)
