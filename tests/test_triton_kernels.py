"""Random block-level kernels as Triton texts, under the interpreter: golden bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tile_gen
from cpu_rig import golden, same_bits, single
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tile_gen import SIZES, Program
from triton_rig import rendered, stepped

from speccc.ir.formats import FORMATS
from speccc.targets.triton.schedule import Shape

EACH = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SHAPES = (
    Shape(tokens=8, units=4, fill=1),
    Shape(tokens=16, units=2, fill=1, unroll=1, amd=True),
    Shape(tokens=8, units=1),
)
MATRICES = tuple(FORMATS)


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine() as running:
        yield running


def check(machine: TritonMachine, p: Program, m: int, shape: Shape, seed: int = 0) -> None:
    plan = single((p.kernel,))
    arrays = p.arrays(m, seed)
    expected = golden(plan, arrays, {p.m: m})
    got = stepped(machine, rendered(plan, shape), arrays, {p.m: m})
    assert same_bits(got[p.out], expected[p.out])


@EACH
@given(p=tile_gen.elementwise(), m=st.sampled_from(SIZES), shape=st.sampled_from(SHAPES))
def test_maps(machine: TritonMachine, p: Program, m: int, shape: Shape) -> None:
    """Expressions over tiles of one and two axes, contiguous, strided and gathered."""
    check(machine, p, m, shape)


@EACH
@given(p=tile_gen.reductions(), m=st.sampled_from(SIZES), shape=st.sampled_from(SHAPES))
def test_reductions(machine: TritonMachine, p: Program, m: int, shape: Shape) -> None:
    """Sums in the order the IR fixes, and maxima, of spans whose ends move."""
    check(machine, p, m, shape)


@EACH
@given(p=tile_gen.dots(), m=st.sampled_from(SIZES), shape=st.sampled_from(SHAPES))
def test_dots(machine: TritonMachine, p: Program, m: int, shape: Shape) -> None:
    """Products of floats, k in order, with accumulators carried through a loop."""
    check(machine, p, m, shape)


@pytest.mark.parametrize("fmt", MATRICES)
@settings(EACH, max_examples=4)
@given(data=st.data(), m=st.sampled_from(SIZES), shape=st.sampled_from(SHAPES))
def test_matmuls(
    machine: TritonMachine, fmt: str, data: st.DataObject, m: int, shape: Shape
) -> None:
    """Prologue, product and epilogue, for every format a matrix may have."""
    assert fmt in FORMATS
    check(machine, data.draw(tile_gen.matmuls(fmt)), m, shape)
