"""Kernels and plans as text: deterministic, complete, and short enough to read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cpu_rig import single
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny_llama
from proof_program import proof_program
from tile_gen import Program, dots, elementwise, matmuls, reductions

from speccc.driver import CompileOptions, compile_to
from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.plan import Loop, Plan, PlanBuf, Role
from speccc.ir.tile import Axis, Buf, Kernel, Map, Share, walk
from speccc.ir.tile_text import headline, print_kernel, print_plan
from speccc.ir.types import F32
from speccc.targets.cpu.target import CpuTarget

PROGRAMS = st.one_of(elementwise(), reductions(), dots(), matmuls("q4_0"), matmuls("f16"))

PROOF = """\
kernel ffn_gate_up(x: f32[m, 32], norm: f32[32], w: u8[640], y: f32[m, 16])
  scratch xq: i8[m, 32]
  scratch xs: f32[m, 1]
  scratch xi: i32[m, 1]
  scratch xm: f32[m, 1]
  scratch amax: f32[1, 1]
  scratch inverse: f32[1, 1]
  scratch line: f32[1, 32]
  for r in 0..m
    tile square: f32[1]
    tile factor: f32[1]
    square[0] = sum(x[r, c] * x[r, c] for c < 32)
    factor[0] = 1.0 / sqrt(fma(square[0], 0.03125, 1e-05))
    line[0, c.1] = (x[r, c.1] * factor[0]) * norm[c.1] for c.1 < 32
    for b in 0..1
      amax[0, b] = max(abs(line[0, (b * 32) + t]) for t < 32)
    xs[r, b.1] = amax[0, b.1] / 127.0 for b.1 < 1
    inverse[0, b.2] = select(0.0 < amax[0, b.2], 127.0 / amax[0, b.2], 0.0) for b.2 < 1
    for b.3 in 0..1
      xq[r, (b.3 * 32) + t.1] = i8(rint(line[0, (b.3 * 32) + t.1] * inverse[0, b.3])) for t.1 < 32
    for b.4 in 0..1
      xi[r, b.4] = sum(i32(xq[r, (b.4 * 32) + t.2]) for t.2 < 32)
    xm[r, b.5] = xs[r, b.5] * f32(xi[r, b.5]) for b.5 < 1
  share panel < 1
    row_tiles row < m
      width 1
        tile gate: f32[1, 16]
        gate[i, j] = 0.0 for i < 1, j < 16
        gate += scaled_dot(xq from row row, panel panel of q4_1[16, 32] at w + 0)
        tile up: f32[1, 16]
        up[i.1, j.1] = 0.0 for i.1 < 1, j.1 < 16
        up += scaled_dot(xq from row row, panel panel of q4_1[16, 32] at w + 320)
        y[row + i.2, (panel * 16) + j.2] = (gate[i.2, j.2] * up[i.2, j.2]) / (1.0 + \
exp(neg(gate[i.2, j.2]))) for i.2 < 1, j.2 < 16
"""


def test_the_proof_program_reads_as_written() -> None:
    assert print_kernel(proof_program(32, 16, widths=(1,)).kernel) == PROOF


def test_plan_with_a_loop() -> None:
    m, layer, c, u = Var("m"), Var("layer"), Var("c"), Var("u")
    x = Buf("x", (m, 16), F32)
    step = Map(x, (u, c), (Axis(c, 16),), ex.fma(Load(x, (u, c)), 2.0, 1.0))
    kernel = Kernel("grow", (x,), (m, layer), (Share(u, m, (step,)),))
    plan = Plan("step", (m,), (PlanBuf(x, Role.STATE),), (Loop(layer, 3, (kernel,)),))
    assert print_plan(plan) == (
        "plan step(m)\n"
        "  state x: f32[m, 16]\n"
        "  loop layer < 3\n"
        "    kernel grow(x: f32[m, 16])\n"
        "      share u < m\n"
        "        x[u, c] = fma(x[u, c], 2.0, 1.0) for c < 16\n"
    )


@given(PROGRAMS)
@settings(max_examples=30, deadline=None)
def test_one_line_a_statement_and_one_name_a_thing(program: Program) -> None:
    text = print_kernel(program.kernel)
    assert text == print_kernel(program.kernel)
    lines = text.splitlines()
    widths = sum(line.strip().startswith("width ") for line in lines)
    assert len(lines) == 1 + len(walk(program.kernel.body)) + widths
    made = re.findall(r"^ *(?:tile|scratch) ([\w.]+):", text, re.M)
    assert len(made) == len(set(made))
    assert single([program.kernel]).name in print_plan(single([program.kernel]))
    assert all(headline(s) and "\n" not in headline(s) for s in walk(program.kernel.body))


@pytest.mark.parametrize("changed", [0, 1])
def test_different_programs_differ_in_text(changed: int) -> None:
    kernels = [proof_program(64, 32 + 16 * n).kernel for n in (0, changed)]
    one, two = map(print_kernel, kernels)
    assert (one == two) is (changed == 0)


def test_dump_writes_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dump` has the plan between the graph stages and the TensorIR (nothing is built here)."""
    monkeypatch.setattr(CpuTarget, "library", lambda *_: b"")
    path = tiny_llama(tmp_path, layers=2, fmt="f32")
    folder = tmp_path / "dump"
    compile_to(path, tmp_path / "out.speccc", CompileOptions(dump=folder, measure=False))
    text = (folder / "50-plan.tile.txt").read_text()
    assert text.startswith("plan step(m, length, slots")
    assert "loop layer < 2" in text
    assert "kernel attn_scores" in text
    assert (folder / "90-step.tir.txt").is_file()
