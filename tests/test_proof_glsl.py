"""The proof program as GLSL cooperative matrices: equal to the golden model to the last bit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from emulation.require import require
from emulation.vulkan_root import VulkanHome, find_vulkan
from emulation.vulkan_worker import VulkanWorker
from fragment_rig import (
    Array,
    dispatched,
    golden,
    interpreted,
    lowered,
    rewritten,
    s8,
    with_body,
    without_barrier,
)
from proof_program import Proof, inputs, proof_program

from speccc.errors import UnsupportedError, VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr
from speccc.ir.fragment import Barrier, FragLoad, FragmentKernel, MmaShape, shared_bytes, walk
from speccc.ir.interp_expr import cast, exp, fma
from speccc.ir.interp_tile import run_kernel
from speccc.ir.packed import PANEL, PackedMatrix
from speccc.ir.tile import Buf, Stmt
from speccc.ir.types import F16, F32
from speccc.passes.reduce_to_fragment import TOGETHER
from speccc.targets.clike.writer import Writer
from speccc.targets.glsl_build import compile_glsl, disassemble_spirv
from speccc.targets.vulkan.glsl import glsl
from speccc.targets.vulkan.glsl_prelude import Fma, prelude
from speccc.targets.vulkan.render import render_shader

K, N = 96, 32
LONG = 32 * (TOGETHER + 1)
"""Columns of rows with more blocks than are reduced side by side."""
FORMATS = ("q4_1", "q4_0", "q8_0")
WIDTHS = (1, 3, 8, 17)
# Tokens as rows of one fragment, of two side by side, of a taller one, and as columns.
SHAPES = (s8(8, 8, 8), s8(8, 16, 32), s8(16, 16, 16), s8(16, 8, 16), s8(8, 32, 16))


@pytest.fixture(scope="module")
def home() -> VulkanHome:
    require("vulkan")
    found = find_vulkan()
    assert found is not None
    return found


@pytest.fixture
def worker(home: VulkanHome) -> Iterator[VulkanWorker]:
    with VulkanWorker(home) as running:
        yield running


# ------------------------------------------------------------------------------------- interpreter


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fragment_level_equals_block_level(fmt: str, shape: MmaShape) -> None:
    p = proof_program(K, N, fmt)
    kernel = lowered(p.kernel, shape)
    for m in WIDTHS if fmt == "q4_1" else (3, 17):
        np.testing.assert_array_equal(interpreted(p, kernel, m, groups=2), golden(p, m))


@pytest.mark.parametrize("subgroups", [1, 2, 4])
def test_workgroups_of_any_size_agree(subgroups: int) -> None:
    p = proof_program(64, N)
    y = interpreted(p, lowered(p.kernel, subgroups=subgroups), 3)
    np.testing.assert_array_equal(y, golden(p, 3))


def test_a_removed_barrier_is_a_race() -> None:
    """Each but the last: that one keeps two row tiles apart in y, which they never share."""
    p = proof_program(LONG, N)
    # With 16 invocations two maps of 16 lanes happen to need no barrier between them.
    kernel = lowered(p.kernel, subgroups=4)
    count = sum(isinstance(s, Barrier) for s in walk(kernel.body))
    assert count > 8
    for number in range(count - 1):
        with pytest.raises(VerifyError, match="race on"):
            interpreted(p, without_barrier(kernel, number), 17)


def test_a_wrong_fragment_layout_is_seen() -> None:
    p = proof_program(K, N)
    kernel = lowered(p.kernel)

    def rule(s: Stmt) -> Stmt:
        return replace(s, transposed=False) if isinstance(s, FragLoad) and s.transposed else s

    # Read row-major, the weights' second and later rows lie outside the tile's first eight.
    wrong = interpreted(p, with_body(kernel, rewritten(kernel.body, rule)), 8)
    assert np.mean(wrong != golden(p, 8)) > 0.9


RIGHT_SCALE = PackedMatrix.scale


def swapped_scales(
    self: PackedMatrix, blob: Buf, base: Expr, lane: Expr, group: ex.Scalar = 0
) -> Expr:
    """Scales read in the reverse order of the panel's rows."""
    return RIGHT_SCALE(self, blob, base, ex.sub(PANEL - 1, lane), group)


def test_a_wrong_scale_layout_is_seen(
    home: VulkanHome, worker: VulkanWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = proof_program(K, N)
    right = golden(p, 3)
    monkeypatch.setattr(PackedMatrix, "scale", swapped_scales)
    kernel = lowered(p.kernel)
    wrong = run(home, worker, p, kernel, 3)
    np.testing.assert_array_equal(wrong, interpreted(p, kernel, 3))
    assert np.mean(wrong != right) > 0.9


# ------------------------------------------------------------------------------------------ device


def run(home: VulkanHome, worker: VulkanWorker, p: Proof, kernel: FragmentKernel, m: int) -> Array:
    shader = render_shader(kernel, Fma.PAIRS)
    return dispatched(home, worker, shader, inputs(p, m), {p.m: m}, groups=2)[p.y]


@pytest.mark.parametrize(("fmt", "m"), [*(("q4_1", m) for m in WIDTHS), ("q4_0", 3), ("q8_0", 17)])
def test_device_equals_golden(home: VulkanHome, worker: VulkanWorker, fmt: str, m: int) -> None:
    """No tolerance: sums, products, quotients and roots of f32 round correctly on lavapipe."""
    p = proof_program(K, N, fmt)
    y = run(home, worker, p, lowered(p.kernel), m)
    np.testing.assert_array_equal(y, golden(p, m))


def test_rows_do_not_depend_on_their_number(home: VulkanHome, worker: VulkanWorker) -> None:
    """Lossless: a row's bits are the same alone and among 17, on the device as in the model."""
    p = proof_program(K, N)
    many = run(home, worker, p, lowered(p.kernel), 17)
    bufs = inputs(p, 17)
    shader = render_shader(lowered(p.kernel), Fma.PAIRS)
    last = {**bufs, p.x: bufs[p.x][16:], p.y: np.zeros((1, N), np.float32)}
    alone = dispatched(home, worker, shader, last, {p.m: 1}, groups=1)[p.y]
    np.testing.assert_array_equal(alone[0], many[16])


def test_device_fma_rounds_twice_here(home: VulkanHome, worker: VulkanWorker) -> None:
    """Why lavapipe needs `Fma.PAIRS`: its own fma is close, and no more than that.

    No activation's code changes for these inputs, so what differs is the rounding of products, at
    most 2^-24 of values below 8: the norm's factor in the scales, two in each of 3 blocks of gate
    and of up, and a few in swiglu: about 20.
    """
    p = proof_program(K, N)
    shader = render_shader(lowered(p.kernel))
    y = dispatched(home, worker, shader, inputs(p, 8), {p.m: 8}, groups=2)[p.y]
    assert not np.array_equal(y, golden(p, 8))
    np.testing.assert_allclose(y, golden(p, 8), rtol=0, atol=20 * 8 * 2.0**-24)


def test_the_smallest_halves_are_not_lost(home: VulkanHome, worker: VulkanWorker) -> None:
    """Scales below 2^-14 are subnormal halves, which a device may flush to zero."""
    p = proof_program(K, N)
    weights = np.random.default_rng(9).standard_normal((2, N, K)).astype(np.float32) * 1e-4
    raw = [p.w.format.encode(w).reshape(-1) for w in weights]
    assert p.w.format.codes(raw[0], (N, K))[1].max() < 2.0**-14
    bufs = inputs(p, 3) | {p.blob: np.concatenate([p.w.pack(r) for r in raw])}
    shader = render_shader(lowered(p.kernel), Fma.PAIRS)
    y = dispatched(home, worker, shader, bufs, {p.m: 3}, groups=1)[p.y]
    run_kernel(p.kernel, bufs, {p.m: 3})
    np.testing.assert_array_equal(y, bufs[p.y])
    assert np.count_nonzero(y) > 3 * N // 2


PROBE = """#version 450
layout(local_size_x = 8) in;
layout(set = 0, binding = 0) buffer X {{ float x[]; }};
layout(set = 0, binding = 1) buffer Y {{ float y[]; }};
{prelude}
void main() {{
    uint i = gl_GlobalInvocationID.x;
    y[3 * i] = fma_ir(x[3 * i], x[3 * i + 1], x[3 * i + 2]);
    y[3 * i + 1] = exp_ir(x[3 * i + 2]);
    y[3 * i + 2] = half_round(x[3 * i]);
}}
"""


def test_the_preludes_functions_are_the_irs_own(home: VulkanHome, worker: VulkanWorker) -> None:
    """Random values, sums that cancel, halfway sums, and what is too large for split products."""
    rng = np.random.default_rng(11)
    a, b, c = (rng.standard_normal(256).astype(np.float32) * 8 for _ in range(3))
    c[:64] = -a[:64] * b[:64]
    # a * b = 2^-24 - 2^-50: just below half a unit of c, so the sum must not go up (nor down).
    a[64:66], b[64:66] = 1 + 2.0**-13, 2.0**-24 * (1 - 2.0**-13)
    a[65] *= -1
    c[64:66] = 1 + 2.0**-23, -(1 + 2.0**-23)
    c[66:72] = -100, 100, -87, 88, np.inf, -np.inf
    a[72:74], b[72:74] = 2.0**119, 10  # a product without error, as beyond 1e30 it rounds by itself
    a[80:100] *= 2.0 ** -np.arange(10, 30)  # halves from normal to none
    a[100:104] = 65504, 65519, -65520, 1 + 2.0**-11
    x = np.stack([a, b, c], axis=1)
    out = Writer()
    prelude(out, Fma.PAIRS, glsl(Fma.PAIRS))
    spirv = compile_glsl(PROBE.format(prelude=out.text()), home.tools)
    _, y = worker.run(spirv, [x, np.zeros((256, 3), np.float32)], (256 // 8, 1, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(y[:, 0], fma(a, b, c))
    np.testing.assert_array_equal(y[:, 1], exp(c))
    np.testing.assert_array_equal(y[:, 2], cast(a, F32, F16).astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way", list(Fma))
def test_every_shape_builds(home: VulkanHome, shape: MmaShape, way: Fma) -> None:
    """glslang and spirv-val accept it (shapes are the device's affair), with the instruction."""
    shader = render_shader(lowered(proof_program(K, N).kernel, shape), way)
    assert f"M = {shape.m}, N = {shape.n}, K = {shape.k};" in shader.text
    text = disassemble_spirv(compile_glsl(shader.text, home.tools), home.tools)
    assert text.count("OpCooperativeMatrixMulAddKHR") == 2 * 32 // shape.k
    assert "NoContraction" in text


# ------------------------------------------------------------------------------------------- text


def test_text_is_deterministic_and_readable() -> None:
    one, two = (render_shader(lowered(proof_program(K, N).kernel)) for _ in range(2))
    assert one.text == two.text
    assert one.text != render_shader(lowered(proof_program(64, N).kernel)).text
    first = one.text.splitlines()[:3]
    assert first[1] == "// ffn_gate_up for Vulkan, i8*i8->i32 8x8x8, 2 subgroups of 8."
    assert first[2].startswith("// sha256 of what follows: ")
    names = "x norm w y xq xs xi xm amax inverse line"
    assert " ".join(b.name for b in one.buffers) == names
    for name in ("gate", "up", "w_tile", "x_tile", "row_tile", "panel"):
        assert f" {name}" in one.text
    assert "xq[workgroup * (m * 96) + " in one.text  # each workgroup has a part of SCRATCH


def test_no_float_may_be_contracted() -> None:
    """lavapipe would not do it, others might."""
    text = render_shader(lowered(proof_program(K, N).kernel), Fma.PAIRS).text
    assigned = [line for line in text.splitlines() if re.match(r" *(precise )?float \w+ = ", line)]
    loose = [line.split()[1] for line in assigned if "precise" not in line]
    # Exact whatever is done to them: powers of two times small integers, and comparisons.
    assert loose == ["largest", "small", "large", "magnitude", "size", "nearest"]
    assert len(assigned) > 20


def test_shared_memory_fits_the_smallest_device() -> None:
    """Vulkan promises 16384 bytes of it."""
    assert shared_bytes(lowered(proof_program(K, N).kernel)) <= 16384


@pytest.mark.parametrize(
    "shape", [MmaShape(F16, F16, F16, 8, 8, 8), s8(8, 8, 24), s8(12, 12, 8)], ids=str
)
def test_unfit_instructions_are_refused(shape: MmaShape) -> None:
    with pytest.raises(UnsupportedError, match=r"8x8x8|8x8x24|12x12x8"):
        lowered(proof_program(K, N).kernel, shape)
