"""SYCL texts in the form for GPUs, with a matrix engine, on a stand-in that watches memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_numerics
from cpu_rig import same_bits
from emulation.metal_stand_in import StandInError
from emulation.require import require
from emulation.sycl_stand_in import SyclStandIn, sycl_stand_in
from fragment_rig import golden, rewritten, s8, with_body, without_barrier
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from metal_rig import launched
from proof_program import inputs, proof_program
from test_fragment_plan import SPECS, Bufs, Compared, Sizes
from test_numerics import PlanSession, tokens_of
from test_sycl import lowered, product
from tile_gen import SIZES, Program, elementwise, matmuls, reductions

from speccc.ir.fragment import Barrier, FragLoad, FragmentKernel, MmaShape, walk
from speccc.ir.interp_expr import cast
from speccc.ir.interp_tile import run_kernel
from speccc.ir.tile import Stmt
from speccc.ir.tile_text import print_kernel
from speccc.ir.types import BF16, F16, F32, DType
from speccc.passes.reduce_to_fragment import TOGETHER
from speccc.targets.clike.render import KernelText
from speccc.targets.registry import target
from speccc.targets.sycl.render import render_sycl
from speccc.targets.sycl.target import SyclTarget
from speccc.targets.sycl_build import Form

K, N, LANES = 96, 32, 16
LONG = 32 * (TOGETHER + 1)
"""Columns of rows with more blocks than are reduced side by side."""
ORDERS = (0, 1, 5)
LANE = "lanes().get_local_linear_id()"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> SyclStandIn:
    require("metal")
    return sycl_stand_in(tmp_path_factory.mktemp("sycl"), LANES)


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> SyclStandIn:
    require("metal")
    return sycl_stand_in(tmp_path_factory.mktemp("sycl"), LANES, Form.PORTABLE)


# --------------------------------------------------------------------------------------- numerics


@pytest.mark.parametrize("fmt", ["q4_1", "q8_0", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("m", [1, 17])
def test_the_engine_equals_golden(machine: SyclStandIn, fmt: str, m: int) -> None:
    p = proof_program(K, N, fmt)
    text = render_sycl(lowered(p.kernel))
    for order in ORDERS:
        out = launched(machine, text, inputs(p, m), {p.m: m}, order=order)
        np.testing.assert_array_equal(out[p.y], golden(p, m))


@pytest.mark.parametrize("shape", [s8(1, 16, 32), s8(8, 8, 32), s8(16, 8, 32)], ids=str)
def test_other_shapes_agree(machine: SyclStandIn, shape: MmaShape) -> None:
    """One row at once; fewer columns than lanes; tokens as columns."""
    p = proof_program(K, N)
    out = launched(machine, render_sycl(lowered(p.kernel, shape)), inputs(p, 5), {p.m: 5})
    np.testing.assert_array_equal(out[p.y], golden(p, 5))


@pytest.mark.parametrize("shape", [s8(8, 16, 32), s8(8, 8, 32)], ids=str)
def test_the_portable_form_has_no_race(portable: SyclStandIn, shape: MmaShape) -> None:
    """Nothing of it is ordered by what a sub-group does together; lanes may have no column."""
    p = proof_program(K, N)
    text = render_sycl(lowered(p.kernel, shape))
    for order in ORDERS:
        out = launched(portable, text, inputs(p, 9), {p.m: 9}, order=order)
        np.testing.assert_array_equal(out[p.y], golden(p, 9))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_matrices_multiply_small_integers_exactly(machine: SyclStandIn, dtype: DType) -> None:
    kernel, x, y, z = product(dtype)
    rng = np.random.default_rng(3)
    left, right = (rng.integers(-9, 10, s).astype(np.float32) for s in ((8, 16), (16, 16)))
    arrays = {x: cast(left, F32, dtype), y: cast(right, F32, dtype)}
    arrays[z] = np.zeros((8, 16), np.float32)
    out = launched(machine, render_sycl(kernel), arrays, {}, groups=1)[z]
    np.testing.assert_array_equal(out, left @ right.T)


@given(st.one_of(elementwise(), reductions(), *map(matmuls, ("q4_0", "nvfp4_rows", "f16", "fp8"))))
@settings(
    max_examples=8,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_generated_programs(machine: SyclStandIn, program: Program) -> None:
    text = render_sycl(lowered(program.kernel))
    for m in SIZES:
        want = program.arrays(m, 1)
        got = launched(machine, text, want, {program.m: m}, groups=1 + m % 2, order=m)
        run_kernel(program.kernel, want, {program.m: m})
        assert same_bits(got[program.out], want[program.out]), print_kernel(program.kernel)


@pytest.mark.parametrize("which", ["q4_1, kv f16", "mxfp4, kv f16"])
def test_every_phase_as_an_arc_gets_it(
    which: str, machine: SyclStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine tokens, one more, then a tree: packed dots and the matrix engine, no byte changed."""
    bmg = target("sycl:bmg")
    assert isinstance(bmg, SyclTarget)
    texts: dict[FragmentKernel, KernelText] = {}

    def on_engine(kernel: FragmentKernel, bufs: Bufs, scalars: Sizes) -> Bufs:
        if kernel not in texts:
            texts[kernel] = render_sycl(kernel)
        return launched(machine, texts[kernel], bufs, scalars)

    compared = Compared(on_engine, bmg.lowering.run)
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    session, tokens = PlanSession(SPECS[which], tmp_path), tokens_of(SPECS[which].tiny, 14)
    session.forward(tokens[:9])
    session.forward(tokens[9:10])
    session.forward(tokens[10:], [-1, 0, 0, 1])
    assert compared.phases == 3 * len(compared.lowered) > 12
    assert any("joint" in t.text and "matrix_mad(frag" in t.text for t in texts.values())


# ------------------------------------------------------------------------------- negative controls


def test_a_missing_barrier_is_seen(machine: SyclStandIn) -> None:
    """Each but the last orders something; some are tried, as it is one compilation each."""
    p = proof_program(LONG, N)
    kernel = lowered(p.kernel)
    count = sum(isinstance(s, Barrier) for s in walk(kernel.body))
    assert count > 8
    for number in range(0, count - 1, 2):
        text = render_sycl(without_barrier(kernel, number))
        with pytest.raises(StandInError, match=r"meet with no barrier|nothing was written"):
            launched(machine, text, inputs(p, 17), {p.m: 17})


def test_a_wrong_fragment_layout_is_seen(machine: SyclStandIn) -> None:
    p = proof_program(K, N)
    kernel = lowered(p.kernel, s8(8, 16, 16))

    def rule(s: Stmt) -> Stmt:
        return replace(s, transposed=False) if isinstance(s, FragLoad) and s.transposed else s

    text = render_sycl(with_body(kernel, rewritten(kernel.body, rule)))
    assert np.mean(launched(machine, text, inputs(p, 8), {p.m: 8})[p.y] != golden(p, 8)) > 0.9


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("in_local(&x_tile[", "in_global(&x_tile[", "gives no meaning"),
        ("in_local(&x_tile[", "in_local(&x_tile[1 + ", "gives no meaning"),
        ("mx::joint_matrix_mad(", f"if ({LANE}) mx::joint_matrix_mad(", "divergence"),
    ],
)
def test_what_the_engine_may_not_do_is_seen(
    machine: SyclStandIn, right: str, wrong: str, told: str
) -> None:
    """The other memory, bytes that lie crooked, a sub-group of which one lane stays away."""
    p = proof_program(K, N)
    text = render_sycl(lowered(p.kernel))
    words = text.text.replace(right, wrong)
    assert words != text.text
    with pytest.raises(StandInError, match=told):
        launched(machine, replace(text, text=words), inputs(p, 8), {p.m: 8})
