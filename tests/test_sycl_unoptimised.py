"""SYCL kernels as Intel's CPU driver compiles them when it is told not to optimise.

It then runs a work-item to the next barrier before it begins the next one, where optimised code
takes sixteen at once: another order in which a missing barrier would show. But it has no sub-groups
then: each work-item is one of its own, whatever size the kernel fixes, and a broadcast gives zero.
So the kernels here are made for sub-groups of one work-item and ask nothing of the device's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cpu_rig import same_bits
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.sycl_kernel import launched
from fragment_rig import golden, s8, without_barrier
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_program import inputs, proof_program
from test_sycl import FEW
from tile_gen import SIZES, Program, matmuls, reductions

from speccc.ir.fragment import FragmentKernel, MmaShape
from speccc.ir.interp_tile import run_kernel
from speccc.ir.tile import Kernel
from speccc.ir.tile_text import print_kernel
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.targets.clike.render import KernelText
from speccc.targets.sycl.render import render_sycl

K, N, TOGETHER = 96, 32, 8
SHAPES = [s8(8, 16, 32), s8(1, 16, 32), s8(16, 8, 32)]
# What a work-item says of itself where it would ask its sub-group.
ALONE = {
    "SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::sub_group_size<1>)\n": "",
    "int(item.get_sub_group().get_group_linear_id())": "int(item.get_local_linear_id())",
    "int(lanes().get_local_linear_id())": "0",
    "sycl::group_broadcast(lanes(), T(number(a.own[r][k / SUBGROUP])), k % SUBGROUP)": (
        "T(number(a.own[r][k]))"
    ),
}


@pytest.fixture(scope="module")
def device() -> Iterator[SyclCpu]:
    require("sycl")
    with SyclCpu("-cl-opt-disable") as running:
        yield running


def lowered(kernel: Kernel, shape: MmaShape = SHAPES[0]) -> FragmentKernel:
    return DotToFragment(shape, 1, TOGETHER).run(kernel)


def alone(kernel: FragmentKernel) -> KernelText:
    """The kernel's text without a word to the device's sub-groups."""
    text = render_sycl(kernel)
    words = text.text
    for asked, said in ALONE.items():
        words = words.replace(asked, said)
    return replace(text, text=words)


def test_nothing_is_asked_of_sub_groups() -> None:
    text = alone(lowered(proof_program(K, N).kernel)).text
    _, kernel = text.split("template <Use U", 1)
    kernel = kernel.split("#else")[-1]
    for word in ("lanes()", "get_sub_group", "sub_group_size", "group_broadcast"):
        assert word not in kernel


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("m", [1, 17])
def test_products_equal_golden(device: SyclCpu, shape: MmaShape, m: int) -> None:
    p = proof_program(K, N)
    out = launched(device, alone(lowered(p.kernel, shape)), inputs(p, m), {p.m: m})
    np.testing.assert_array_equal(out[p.y], golden(p, m))


@given(st.one_of(reductions(), *(matmuls(fmt) for fmt in ("q4_0", "nvfp4", "f16"))))
@settings(FEW)
def test_generated_programs(device: SyclCpu, program: Program) -> None:
    text = alone(lowered(program.kernel))
    for m in SIZES:
        want = program.arrays(m, 1)
        got = launched(device, text, want, {program.m: m}, groups=1 + m % 2)
        run_kernel(program.kernel, want, {program.m: m})
        assert same_bits(got[program.out], want[program.out]), print_kernel(program.kernel)


@pytest.mark.parametrize("number", [3, 9])
def test_a_missing_barrier_is_seen(device: SyclCpu, number: int) -> None:
    p = proof_program(K, N)
    kernel = without_barrier(lowered(p.kernel), number)
    out = launched(device, alone(kernel), inputs(p, 17), {p.m: 17})[p.y]
    assert np.mean(out != golden(p, 17)) > 0.5
