"""The proof program as Triton text: golden bits under Triton's interpreter, and device code."""

from __future__ import annotations

import numpy as np
import pytest
from emulation.require import require
from emulation.triton_interpret import interpret
from proof_program import inputs, proof_program

from speccc.ir.interp_tile import run_kernel
from speccc.targets.triton.render import render_kernel
from speccc.targets.triton_build import build_cuda, build_rocm

pytest.importorskip("triton")
ELEMENTS = {"scratch_f32": np.float32, "scratch_i8": np.int8, "scratch_i32": np.int32}


@pytest.mark.parametrize("fmt", ["q4_1", "q8_0", "q4_0"])
@pytest.mark.parametrize("m", [1, 3, 8, 17])
def test_equals_golden(fmt: str, m: int) -> None:
    """The same bits for any number of programs."""
    require("triton")
    p = proof_program(64, 32, fmt, widths=(8, 2, 1))
    arrays = inputs(p, m, seed=m)
    expected = {b: a.copy() for b, a in arrays.items()}
    run_kernel(p.kernel, expected, {p.m: m})
    r = render_kernel(p.kernel, "interpreter")
    for workers in (1, 3):
        args = {r.args[b]: a.copy() for b, a in arrays.items()}
        for name, dtype in ELEMENTS.items():
            args[name] = np.zeros(r.scratch_size(name, {p.m: m}, workers), dtype)
        got = interpret(r.kernel.source, r.kernel.name, (workers,), {**args, "m": m})
        assert np.array_equal(got["y"].view(np.uint32), expected[p.y].view(np.uint32))


@pytest.mark.parametrize(
    ("arch", "word"),
    [
        ("80", "mma.sync"),
        ("90", "mma"),
        ("120", "mma.sync"),
        ("gfx942", "v_mfma_i32"),
        ("gfx1100", "v_wmma_i32"),
        ("gfx906", "v_dot4"),
    ],
)
def test_device_code(arch: str, word: str) -> None:
    """The integer matrix (or dot) instruction of each machine is in its text."""
    r = render_kernel(proof_program(64, 32, widths=(8, 1)).kernel, arch)
    built = build_rocm(r.kernel, arch) if arch[0] == "g" else build_cuda(r.kernel, int(arch))
    assert built.binary[:4] == b"\x7fELF"
    assert word in built.text
