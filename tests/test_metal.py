"""Fragment kernels as MSL: equal to the golden model to the last bit, on the stand-in of Metal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulation.metal_stand_in import MetalStandIn, StandInError, stand_in
from emulation.require import require
from fragment_rig import Array, golden, interpreted, rewritten, with_body, without_barrier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metal_rig import HALVES, SIMDGROUP, launched, lowered, rendered, without_matrices
from proof_program import Proof, inputs, proof_program
from tile_gen import SIZES, Program, dots, elementwise, matmuls, reductions

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Expr, Fn, LoadBytes, Var
from speccc.ir.formats import FORMATS
from speccc.ir.fragment import (
    Barrier,
    FragLoad,
    FragmentKernel,
    FragMma,
    LaneMap,
    MmaShape,
    Workgroup,
    shared_bytes,
    walk,
)
from speccc.ir.interp_expr import cast, evaluate, exp, fma
from speccc.ir.interp_tile import run_kernel
from speccc.ir.packed import BLOCK, PANEL, PackedMatrix
from speccc.ir.tile import Alloc, Axis, Buf, Mem, Stmt
from speccc.ir.types import BF16, F16, F32, I32, INDEX, U8, DType
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.scaled_dot_to_fragment import EXACT, code_shift
from speccc.targets.clike.aligned import multiple
from speccc.targets.clike.writer import Writer
from speccc.targets.metal.msl import HEAD, MSL
from speccc.targets.metal.msl_prelude import prelude
from speccc.targets.report import kernel_facts

K, N = 96, 32
BLOCKS = ("q4_1", "q4_0", "q8_0", "mxfp4", "nvfp4")
WIDTHS = (1, 3, 8, 17)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> MetalStandIn:
    require("metal")
    return stand_in(tmp_path_factory.mktemp("metal"))


def run(machine: MetalStandIn, p: Proof, kernel: FragmentKernel, m: int, **how: int) -> Array:
    return launched(machine, rendered(kernel), inputs(p, m), {p.m: m}, **how)[p.y]


# --------------------------------------------------------------------------------------- numerics


@pytest.mark.parametrize("fmt", BLOCKS)
@pytest.mark.parametrize("m", WIDTHS)
def test_the_stand_in_equals_golden(machine: MetalStandIn, fmt: str, m: int) -> None:
    p = proof_program(K, N, fmt)
    kernel = lowered(p.kernel)
    np.testing.assert_array_equal(interpreted(p, kernel, m, groups=2), golden(p, m))
    np.testing.assert_array_equal(run(machine, p, kernel, m), golden(p, m))


@pytest.mark.parametrize("fmt", BLOCKS)
def test_dots_of_threads_equal_golden(machine: MetalStandIn, fmt: str) -> None:
    """The path of few rows: integers, so no bit differs from the matrices'."""
    p = proof_program(K, N, fmt)
    kernel = without_matrices(p.kernel)
    assert "dot4_ir(" in rendered(kernel).text.partition("kernel void")[2]
    for m in (1, 9):
        np.testing.assert_array_equal(run(machine, p, kernel, m), golden(p, m))


@pytest.mark.parametrize("few", [1, 4])
def test_few_rows_and_many_have_the_same_bits(machine: MetalStandIn, few: int) -> None:
    """Tiles of at most `few` rows take one path, others the other, in one kernel."""
    p = proof_program(K, N)
    text = rendered(DotToFragment(HALVES, SIMDGROUP, 2, few).run(p.kernel))
    for m in (1, 4, 5, 12):
        y = launched(machine, text, inputs(p, m), {p.m: m})[p.y]
        np.testing.assert_array_equal(y, golden(p, m))


@pytest.mark.parametrize("simdgroups", [1, 4])
@pytest.mark.parametrize(("groups", "order"), [(1, 1), (3, 7)])
def test_threads_do_not_matter(
    machine: MetalStandIn, simdgroups: int, groups: int, order: int
) -> None:
    """How many there are, and who comes first."""
    p = proof_program(K, N)
    y = run(machine, p, lowered(p.kernel, simdgroups), 9, groups=groups, order=order)
    np.testing.assert_array_equal(y, golden(p, 9))


def test_rows_do_not_depend_on_their_number(machine: MetalStandIn) -> None:
    """Lossless: a row's bits are the same alone and among 17."""
    p = proof_program(K, N)
    text = rendered(lowered(p.kernel))
    bufs = inputs(p, 17)
    many = launched(machine, text, bufs, {p.m: 17})[p.y]
    last = {**bufs, p.x: bufs[p.x][16:], p.y: np.zeros((1, N), np.float32)}
    np.testing.assert_array_equal(launched(machine, text, last, {p.m: 1})[p.y][0], many[16])


@pytest.mark.parametrize("fmt", [n for n, f in FORMATS.items() if f.block == BLOCK])
def test_a_block_of_codes_is_exact_in_halves(fmt: str) -> None:
    """Operands are integers up to 2^11 and sums up to 2^24: both types hold all of these."""
    w = PackedMatrix(FORMATS[fmt], PANEL, BLOCK)
    codes = np.arange(2**w.bits) - code_shift(w)
    rows = np.arange(-127, 128)
    assert max(np.abs(codes).max(), np.abs(rows).max()) <= 2**11
    assert BLOCK * np.abs(codes).max() * np.abs(rows).max() < 2**24
    for values in (codes, rows):
        np.testing.assert_array_equal(values.astype(np.float16).astype(np.int64), values)
    assert EXACT[F16, F16] == F32


def test_the_largest_codes_are_exact(machine: MetalStandIn) -> None:
    """All codes at an end of their range: sums of 32 * 127 * 128 that a half could not hold."""
    p = proof_program(64, 32, "q8_0")
    bufs = inputs(p, 3)
    bufs[p.x][...] = np.where(np.arange(3)[:, None] == 1, -1, 1)
    bufs[p.norm][...] = 1
    codes = bufs[p.blob].reshape(-1, p.w.block_bytes)[:, : p.w.code_bytes]
    codes[...] = np.where(np.arange(len(codes))[:, None] % 2 == 0, 128, 127)  # -128 and 127
    text = rendered(lowered(p.kernel))
    y = launched(machine, text, bufs, {p.m: 3})[p.y]
    small = text.text.replace("simdgroup_matrix<float", "simdgroup_matrix<half")
    small = small.replace("threadgroup float dots", "threadgroup half dots").replace(
        "(float(0))", "(half(0))"
    )
    lost = launched(machine, replace(text, text=small), bufs, {p.m: 3})[p.y]
    run_kernel(p.kernel, bufs, {p.m: 3})
    np.testing.assert_array_equal(y, bufs[p.y])
    assert np.mean(lost != y) > 0.9


def test_the_smallest_halves_are_not_lost(machine: MetalStandIn) -> None:
    """Scales below 2^-14 are subnormal halves, which a device may flush to zero."""
    p = proof_program(K, N)
    weights = np.random.default_rng(9).standard_normal((2, N, K)).astype(np.float32) * 1e-4
    raw = [p.w.format.encode(w).reshape(-1) for w in weights]
    bufs = inputs(p, 3) | {p.blob: np.concatenate([p.w.pack(r) for r in raw])}
    y = launched(machine, rendered(lowered(p.kernel)), bufs, {p.m: 3})[p.y]
    run_kernel(p.kernel, bufs, {p.m: 3})
    np.testing.assert_array_equal(y, bufs[p.y])
    assert np.count_nonzero(y) > 3 * N // 2


PROBE = """{head}
struct Sizes {{ int n; }};
{prelude}
kernel void probe(
    device const float* x [[buffer(0)]],
    device const uchar* bytes [[buffer(1)]],
    device float* y [[buffer(2)]],
    uint thread_number [[thread_index_in_threadgroup]]) {{
    for (int i = int(thread_number); i < 256; i += 32) {{
        y[5 * i] = fma_ir(x[3 * i], x[3 * i + 1], x[3 * i + 2]);
        y[5 * i + 1] = exp_ir(x[3 * i + 2]);
        y[5 * i + 2] = half_round(x[3 * i]);
        y[5 * i + 3] = f16_at(bytes, 2 * i);
        y[5 * i + 4] = bf16_at(bytes, 2 * i);
    }}
}}
"""


def test_the_preludes_functions_are_the_irs_own(machine: MetalStandIn) -> None:
    rng = np.random.default_rng(11)
    a, b, c = (rng.standard_normal(256).astype(np.float32) * 8 for _ in range(3))
    c[:64] = -a[:64] * b[:64]
    a[64:66], b[64:66] = 1 + 2.0**-13, 2.0**-24 * (1 - 2.0**-13)
    c[64:66] = 1 + 2.0**-23, -(1 + 2.0**-23)
    c[66:72] = -100, 100, -87, 88, np.inf, -np.inf
    a[80:100] *= 2.0 ** -np.arange(10, 30)  # halves from normal to none
    a[100:104] = 65504, 65519, -65520, 1 + 2.0**-11
    bits = rng.integers(0, 1 << 16, 256).astype(np.uint16)
    bits = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).astype(np.uint16)
    out = Writer()
    prelude(out, MSL, {"f16", "bf16"})
    x, y = np.stack([a, b, c], axis=1), np.zeros((256, 5), np.float32)
    text = PROBE.format(head=HEAD, prelude=out.text())
    _, _, y = machine.run(text, "probe", [x, bits.view(np.uint8), y], groups=1, simdgroups=1)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(y[:, 0], fma(a, b, c))
    np.testing.assert_array_equal(y[:, 1], exp(c))
    np.testing.assert_array_equal(y[:, 2], cast(a, F32, F16).astype(np.float32))
    np.testing.assert_array_equal(y[:, 3], bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(y[:, 4], cast(bits, BF16, F32))


MATMULS = (matmuls(fmt) for fmt in (*BLOCKS, "f32", "f16", "bf16", "fp8", "nvfp4_rows"))
PROGRAMS = st.one_of(elementwise(), reductions(), dots(), *MATMULS)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, st.sampled_from(SIZES), st.integers(1, 3), st.integers(0, 9))
def test_any_program_equals_golden(
    machine: MetalStandIn, program: Program, m: int, groups: int, order: int
) -> None:
    want, got = program.arrays(m, 1), program.arrays(m, 1)
    run_kernel(program.kernel, want, {program.m: m})
    text = rendered(lowered(program.kernel))
    got = launched(machine, text, got, {program.m: m}, groups=groups, order=order)
    np.testing.assert_array_equal(got[program.out], want[program.out])


# ------------------------------------------------------------------------------ negative controls


def test_a_removed_barrier_is_a_race(machine: MetalStandIn) -> None:
    """Each but the last: that one keeps two row tiles apart in y, which they never share.

    It is one compilation each, so only some are tried.
    """
    p = proof_program(K, N)
    kernel = lowered(p.kernel, simdgroups=4)
    count = sum(isinstance(s, Barrier) for s in walk(kernel.body))
    assert count > 8
    for number in range(0, count - 1, 3):
        with pytest.raises(StandInError, match=r"race on|nothing was written"):
            run(machine, p, without_barrier(kernel, number), 17)


def test_a_wrong_fragment_layout_is_seen(machine: MetalStandIn) -> None:
    p = proof_program(K, N)
    kernel = lowered(p.kernel)

    def rule(s: Stmt) -> Stmt:
        return replace(s, transposed=False) if isinstance(s, FragLoad) and s.transposed else s

    wrong = run(machine, p, with_body(kernel, rewritten(kernel.body, rule)), 8)
    assert np.mean(wrong != golden(p, 8)) > 0.9


RIGHT_SCALE = PackedMatrix.scale


def swapped_scales(
    self: PackedMatrix, blob: Buf, base: Expr, lane: Expr, group: ex.Scalar = 0
) -> Expr:
    """Scales read in the reverse order of the panel's rows."""
    return RIGHT_SCALE(self, blob, base, ex.sub(PANEL - 1, lane), group)


def test_a_wrong_scale_layout_is_seen(
    machine: MetalStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = proof_program(K, N)
    right = golden(p, 3)
    monkeypatch.setattr(PackedMatrix, "scale", swapped_scales)
    assert np.mean(run(machine, p, lowered(p.kernel), 3) != right) > 0.9


# ------------------------------------------------------------------------------------------- text


def test_text_is_deterministic_and_readable() -> None:
    one, two = (rendered(lowered(proof_program(K, N).kernel)) for _ in range(2))
    assert one.text == two.text
    assert one.text != rendered(lowered(proof_program(64, N).kernel)).text
    first = one.text.splitlines()[:2]
    assert first[0] == "// ffn_gate_up for Metal, f16*f16->f32 8x8x8, 2 subgroups of 32."
    assert first[1].startswith("// sha256 of what follows: ")
    assert one.entry == "ffn_gate_up"
    names = "x norm w y xq xs xi xm amax inverse line"
    assert " ".join(b.name for b in one.buffers) == names
    for name in ("gate[512]", "up[512]", "half w_tile", "half x_tile", "row_tile", "panel"):
        assert f" {name}" in one.text
    assert "xq[workgroup * (m * 96) + " in one.text  # each threadgroup has a part of SCRATCH


def test_floats_are_exact_before_any_function() -> None:
    """Metal contracts and reassociates unless told otherwise."""
    text = rendered(lowered(proof_program(K, N).kernel)).text
    for pragma in ("#pragma METAL fp math_mode(safe)\n", "#pragma METAL fp contract(off)\n"):
        assert 0 < text.index(pragma) < text.index("float fma_ir(")


def test_numbers_are_read_whole_where_they_are_aligned() -> None:
    """Scales lie at even bytes and words of codes at multiples of four, whatever the panel."""
    p = proof_program(K, N)
    text = rendered(lowered(p.kernel)).text
    assert "half_value(uint(*(device const ushort*)(w + (" in text
    assert "f16_at(" not in text
    words = rendered(without_matrices(p.kernel)).text
    assert "*(device const int*)(w + (" in words
    raw, i = Buf("raw", (64,), U8), Var("at")
    odd = ex.cast(LoadBytes(raw, ex.add(ex.mul(i, 2), 1), F16), F32)
    y = Buf("y", (8,), F32)
    body = (LaneMap(y, (i,), (Axis(i, 8),), odd),)
    loose = rendered(FragmentKernel("one", (raw, y), (), Workgroup(SIMDGROUP, 1), body)).text
    assert "f16_at(raw, (at * 2) + 1)" in loose


N_VAR, M_VAR = Var("n"), Var("m")
INDICES = st.recursive(
    st.sampled_from([N_VAR, M_VAR]) | st.integers(0, 64).map(ex.lit),
    lambda inner: st.builds(
        lambda fn, a, b: Apply(fn, (a, b), INDEX),
        st.sampled_from([Fn.ADD, Fn.SUB, Fn.MUL, Fn.MIN, Fn.MAX, Fn.MOD, Fn.IDIV]),
        inner,
        inner,
    ),
    max_leaves=6,
)


@given(INDICES, st.integers(0, 40), st.integers(0, 40))
def test_an_index_is_a_multiple_of_what_is_said(index: Expr, n: int, m: int) -> None:
    env = {N_VAR: np.asarray(n, np.int64), M_VAR: np.asarray(m, np.int64)}
    try:
        with np.errstate(divide="raise", over="raise"):
            value = int(evaluate(index, env, lambda *_: np.zeros(1)))
    except FloatingPointError:
        return
    assert value == 0 or value % multiple(index) == 0


def test_the_report_counts_matrix_instructions() -> None:
    """Four of k for 32 codes, for gate and for up."""
    text = rendered(lowered(proof_program(K, N).kernel)).text
    facts = kernel_facts({"metal": text.encode()})
    assert facts.instructions == {"simdgroup_multiply_accumulate": 2 * BLOCK // HALVES.k}


def test_shared_memory_fits() -> None:
    """A threadgroup has 32768 bytes."""
    assert shared_bytes(lowered(proof_program(K, N).kernel)) <= 32768


def one_map(value: Expr, *bufs: Buf, name: str = "one", made: Buf | None = None) -> FragmentKernel:
    """y[i] = value for one i."""
    i, y = Var("i"), Buf("y", (1,), value.dtype)
    made_here = () if made is None else (Alloc(made),)
    body = (*made_here, LaneMap(y, (i,), (Axis(i, 1),), value))
    return FragmentKernel(name, (*bufs, y), (), Workgroup(SIMDGROUP, 1), body)


def test_words_of_the_language_are_no_names() -> None:
    bufs = tuple(Buf(name, (1,), F32) for name in ("kernel", "device", "half", "sizes", "f16_at"))
    total: Expr = ex.Load(bufs[0], (ex.lit(0),))
    for b in bufs[1:]:
        total = ex.maximum(total, ex.Load(b, (ex.lit(0),)))
    text = rendered(one_map(total, *bufs, name="main"))
    assert "kernel void main_2(" in text.text
    assert "max(max(max(max(kernel_2[0], device_2[0]), half_2[0]), sizes_2[0])" in text.text


def test_too_many_buffers_are_refused() -> None:
    bufs = tuple(Buf(f"x{n}", (1,), F32) for n in range(30))
    assert "[[buffer(30)]]" in rendered(one_map(ex.lit(0.0, F32), *bufs)).text
    with pytest.raises(UnsupportedError, match="32 buffers, but Metal binds 31"):
        rendered(one_map(ex.lit(0.0, F32), *bufs, Buf("last", (1,), F32)))


@pytest.mark.parametrize("dtype", [BF16, F16, I32])
def test_bytes_are_read_from_device_memory_only(dtype: DType) -> None:
    raw = Buf("raw", (4,), U8, Mem.SHARED)
    value = ex.cast(LoadBytes(raw, ex.lit(0), dtype), F32)
    with pytest.raises(UnsupportedError, match="from bytes of raw"):
        rendered(one_map(value, made=raw))


def test_fragments_of_another_size_are_refused() -> None:
    shape = MmaShape(F16, F16, F32, 16, 16, 16)
    tall = DotToFragment(shape, SIMDGROUP).run(proof_program(K, N).kernel)
    assert any(isinstance(s, FragMma) for s in walk(tall.body))
    with pytest.raises(UnsupportedError, match="a simdgroup matrix is 8x8"):
        rendered(tall)
