"""The proof program as Triton text: golden bits under Triton's interpreter, and device code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from cpu_rig import golden, same_bits, single
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from proof_program import inputs, proof_program
from triton_rig import rendered, stepped

from speccc.targets.report import kernel_facts
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton_build import CUDA_ARCHS, ROCM_WAVES, TritonKernel, build_cuda, build_rocm

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine() as running:
        yield running


@pytest.mark.parametrize("fmt", ["q4_1", "q8_0", "q4_0", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("m", [3, 17])
def test_equals_golden(machine: TritonMachine, fmt: str, m: int) -> None:
    """The same bits for any number of workers, and however many units make a tile."""
    p = proof_program(64, 48, fmt, widths=(8, 2, 1))
    plan, arrays = single((p.kernel,)), inputs(p, m, seed=m)
    expected = golden(plan, arrays, {p.m: m})[p.y]
    for workers, shape in ((1, Shape(fill=1)), (3, Shape(tokens=16))):
        got = stepped(machine, rendered(plan, shape), arrays, {p.m: m}, workers)[p.y]
        assert same_bits(got, expected)


def kernel(tokens: int, rows: int = 1024) -> TritonKernel:
    """A product as large as a model's, so that tiles are as wide as they get."""
    p = proof_program(64, rows, widths=(8, 1))
    return rendered(single((p.kernel,)), Shape(tokens=tokens)).kernel


@pytest.mark.parametrize("arch", CUDA_ARCHS)
def test_cuda_code(arch: int) -> None:
    """The integer matrix instruction of each machine is in its text, and nothing spills."""
    built = build_cuda(kernel(8), arch)
    facts = kernel_facts({"ptx": built.text.encode(), "cubin": built.binary})
    assert facts.instructions.get("mma.sync", 0) > 0
    assert facts.spills == 0
    assert 0 < (facts.registers or 0) <= 255


ROCM_WORDS = {
    "gfx906": "v_dot4_i32_i8",
    "gfx942": "v_mfma_i32_16x16x32_i8",
    "gfx950": "v_mfma_i32_16x16x32_i8",
    "gfx1100": "v_wmma_i32_16x16x16_iu8",
    "gfx1151": "v_wmma_i32_16x16x16_iu8",
    "gfx1201": "v_wmma_i32_16x16x16_iu8",
}


@pytest.mark.parametrize("arch", ROCM_WAVES)
def test_rocm_code(arch: str) -> None:
    """The integer matrix (or dot) instruction of each machine is in its text."""
    built = build_rocm(kernel(16), arch)
    assert built.binary[:4] == b"\x7fELF"
    facts = kernel_facts({"amdgcn": built.text.encode()})
    assert facts.instructions.get(ROCM_WORDS[arch], 0) > 0
    assert facts.registers


def test_a_wrong_scale_layout_shows(machine: TritonMachine) -> None:
    """Minima read where scales are, and scales where minima are: other bits."""
    p = proof_program(64, 48, widths=(8, 1))
    plan, arrays = single((p.kernel,)), inputs(p, 3)
    text = rendered(plan)
    scales, minima = " + 256)", " + 288)"
    assert scales in text.kernel.source
    assert minima in text.kernel.source
    marked = text.kernel.source.replace(scales, "<scales>").replace(minima, scales)
    swapped = marked.replace("<scales>", minima)
    wrong = replace(text, kernel=replace(text.kernel, source=swapped))
    expected = golden(plan, arrays, {p.m: 3})[p.y]
    assert same_bits(stepped(machine, text, arrays, {p.m: 3})[p.y], expected)
    assert not same_bits(stepped(machine, wrong, arrays, {p.m: 3})[p.y], expected)
