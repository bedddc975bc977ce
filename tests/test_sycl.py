"""SYCL kernels: built in both forms, and run on Intel's CPU device to the last bit."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import same_bits
from emulation.require import require
from emulation.sycl_cpu import SyclCpu, SyclError
from emulation.sycl_kernel import launched
from fragment_rig import Array, golden, rewritten, s8, with_body, without_barrier
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from proof_program import Proof, inputs, proof_program
from tile_gen import SIZES, Program, dots, elementwise, matmuls, reductions

from speccc.errors import InputError, UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Fn, Load, Var
from speccc.ir.fragment import (
    FragLoad,
    Fragment,
    FragmentKernel,
    FragMma,
    FragStore,
    FragZero,
    LaneMap,
    MmaShape,
    Role,
    Subgroups,
    Workgroup,
)
from speccc.ir.interp_expr import cast
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.packed import PANEL, PackedMatrix
from speccc.ir.tile import Axis, Buf, For, Kernel, Stmt
from speccc.ir.tile_text import print_kernel
from speccc.ir.types import BF16, F16, F32, I32, INDEX, DType
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.targets.build_error import BuildError
from speccc.targets.registry import target
from speccc.targets.spirv import instructions, opcode_counts
from speccc.targets.sycl.render import render_sycl
from speccc.targets.sycl.target import SyclTarget
from speccc.targets.sycl_build import (
    Form,
    SyclCompiler,
    XeCode,
    compile_sycl,
    compile_xe,
    find_ocloc,
    find_sycl_compiler,
    icpx_compiler,
    ocloc_version,
)

K, N = 96, 32
XMX = s8(8, 16, 32)
SUBGROUP = 16
MULTIPLY_ADD = 4459
"""OpCooperativeMatrixMulAddKHR."""
OP_NAME, OP_VARIABLE, OP_DECORATE, WORKGROUP, ALIGNMENT = 5, 59, 71, 4, 44


@pytest.fixture(scope="module")
def device() -> Iterator[SyclCpu]:
    require("sycl")
    with SyclCpu() as running:
        yield running


@pytest.fixture(scope="module")
def compiler() -> SyclCompiler:
    require("sycl")
    found = find_sycl_compiler()
    assert found is not None
    return found


def lowered(kernel: Kernel, shape: MmaShape = XMX, subgroups: int = 2) -> FragmentKernel:
    return DotToFragment(shape, SUBGROUP, subgroups).run(kernel)


def run(device: SyclCpu, p: Proof, kernel: FragmentKernel, m: int) -> Array:
    return launched(device, kernel, inputs(p, m), {p.m: m})[p.y]


# ------------------------------------------------------------------------------------------ builds


@pytest.mark.parametrize("m", [1, 8])
def test_the_matrix_engine_is_asked_for(m: int, compiler: SyclCompiler) -> None:
    """XMX takes one to eight rows of a."""
    text = render_sycl(lowered(proof_program(K, N).kernel, s8(m, 16, 32)))
    joint = compile_sycl(text.text, compiler, Form.JOINT, name=text.name)
    assert opcode_counts(joint)[MULTIPLY_ADD] == 2  # gate and up


def test_both_forms_of_a_text(compiler: SyclCompiler) -> None:
    """One asks for matrices; both forbid the device's compiler to fuse, and fix the sizes."""
    text = render_sycl(lowered(proof_program(K, N).kernel))
    for form in Form:
        spirv = compile_sycl(text.text, compiler, form, name=text.name)
        assert opcode_counts(spirv)[MULTIPLY_ADD] == 2 * form.value
        modes = {words[1:] for opcode, words in instructions(spirv) if opcode == 16}
        contraction_off, subgroup_size, local_size = (31,), (35, SUBGROUP), (17, 2 * SUBGROUP, 1, 1)
        assert {contraction_off, subgroup_size, local_size} <= modes


def test_matrices_lie_where_the_engine_can_read_them(compiler: SyclCompiler) -> None:
    """Of what the engine reads and writes in local memory, each array begins on 64 bytes."""
    text = render_sycl(lowered(proof_program(K, N).kernel))
    spirv = compile_sycl(text.text, compiler, Form.JOINT, name=text.name)
    words = list(instructions(spirv))
    local = {w[1] for opcode, w in words if opcode == OP_VARIABLE and w[2] == WORKGROUP}
    aligned = {w[0]: w[2] for opcode, w in words if opcode == OP_DECORATE and w[1] == ALIGNMENT}
    names = {w[0]: struct.pack(f"<{len(w) - 1}I", *w[1:]) for op, w in words if op == OP_NAME}
    at = {names[v].rstrip(b"\0").decode(): aligned[v] for v in local}
    tiles = [n for name, n in at.items() if name.endswith(("w_tile", "x_tile", "dots"))]
    assert len(tiles) >= 3
    assert set(tiles) == {64}


def test_a_refused_text_is_shown_with_its_line(compiler: SyclCompiler) -> None:
    with pytest.raises(BuildError, match=r"(?s)^bad: bad\.cpp:3:9: error.*3 \| int x = y;"):
        compile_sycl("\n\nint x = y;\n", compiler, Form.PORTABLE, name="bad")


def test_a_text_without_a_kernel_is_refused(compiler: SyclCompiler) -> None:
    with pytest.raises(BuildError, match=r"^empty: the text has no kernel"):
        compile_sycl("int x;\n", compiler, Form.PORTABLE, name="empty")


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_icpx_gets_the_text_and_writes_the_file(tmp_path: Path) -> None:
    """As far as it goes without oneAPI: a stand-in that keeps its words and copies its input."""
    log = tmp_path / "log"
    body = f'[ "$1" = --version ] && echo "stand-in 9" && exit\necho "$@" > {log}\n'
    body += 'for out; do :; done\ncat > "$out"'
    icpx = icpx_compiler(script(tmp_path, "icpx", body))
    assert icpx.version == "stand-in 9"
    assert compile_sycl("the text", icpx, Form.JOINT) == b"the text"
    words = log.read_text().split()
    assert {"-DSPECCC_JOINT_MATRIX=1", "-fp-model=precise", "-ffp-contract=off"} <= set(words)


def test_ocloc_makes_code_and_shows_it(tmp_path: Path) -> None:
    """A stand-in with ocloc's manners: named output, a folder with a section a file."""
    body = """case $1 in
    --version) echo 1.2 ;;
    compile) cd "${10}" && cp "$3" "${12}.bin" ;;
    disasm) mkdir "$7" && echo "dpas.8x8 (16|M0)" > "$7/.text.k.asm" \
      && printf 'kernels:\\n  grf_count: 128\\n  slm_size: 64\\n' > "$7/.ze_info" ;;
    esac"""
    ocloc = script(tmp_path, "ocloc", body)
    code = compile_xe(b"spirv", "bmg", (ocloc,))
    assert (code.binary, code.text) == (b"spirv", "dpas.8x8 (16|M0)\n")
    assert code.facts() == {"registers": 128, "spills": 0, "shared_bytes": 64, "stack_bytes": 0}
    assert ocloc_version((ocloc,)) == "1.2"
    with pytest.raises(BuildError, match="ended with status 3"):
        compile_xe(b"spirv", "bmg", (script(tmp_path, "broken", "exit 3"),))


def test_what_ocloc_notes_of_a_thread_is_told_by_lane() -> None:
    """Notes of ocloc 26.27, of a kernel that spills and of one that indexes its own array."""
    head = "kernels:\n  - name:  k\n    execution_env:\n      grf_count:       128\n"
    rest = "      {}\n      subgroup_independent_forward_progress: true\n      eu_thread_count: 8\n"
    spilling = head + "      simd_size:       16\n" + rest.format("spill_size:      6336")
    own = head + "      simd_size:       16\n" + rest.format("private_size:    12800")
    told = {"registers": 128, "spills": 396, "shared_bytes": 0, "stack_bytes": 396}
    assert XeCode(b"", "", spilling).facts() == told
    assert XeCode(b"", "", own).facts() == {**told, "spills": 0, "stack_bytes": 4 * 200}


def test_ocloc_is_found_on_the_path_or_in_a_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the root the link of alternatives begins at its top, not at this system's."""
    monkeypatch.setenv("SPECCC_XE_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(InputError, match=r"is no whole Xe tree; unset SPECCC_XE_ROOT or run \.ci"):
        find_ocloc()
    (tmp_path / ".speccc-complete").touch()
    assert find_ocloc() is None
    for folder in ("bin", "usr/bin", "etc/alternatives"):
        (tmp_path / folder).mkdir(parents=True)
    for link, to in (("usr/bin/ocloc", "/etc/alternatives/ocloc"),
                     ("etc/alternatives/ocloc", "../../usr/bin/ocloc-2")):  # fmt: skip
        (tmp_path / link).symlink_to(to)
    assert find_ocloc() is None, "the link leads nowhere"
    (tmp_path / "usr/bin/ocloc-2").touch()
    loader, *_, program = find_ocloc() or ()
    assert Path(loader).is_relative_to(tmp_path)
    assert Path(program).resolve() == tmp_path / "usr/bin/ocloc-2"
    own = script(tmp_path / "bin", "ocloc", "")
    assert find_ocloc() == (own,)
    (tmp_path / "bin/ocloc").unlink()
    (tmp_path / "usr/bin/ocloc-2").unlink()
    (tmp_path / "usr/bin/ocloc-2").symlink_to("ocloc")
    assert find_ocloc() is None, "the link leads back"


@pytest.mark.parametrize("name", ["sycl:bmg", "sycl:a770"])
def test_xe_code_multiplies_on_the_matrix_engine(name: str, compiler: SyclCompiler) -> None:
    """As wide as the chip's vectors."""
    require("xe")
    made = target(name)
    assert isinstance(made, SyclTarget)
    text = render_sycl(made.lowering.run(proof_program(K, N).kernel))
    spirv = compile_sycl(text.text, compiler, Form.JOINT, name=text.name)
    code = compile_xe(spirv, made.chip, find_ocloc() or ())
    assert re.search(rf"\bdpas\.8x8 \({made.lowering.subgroup}\|M0\)", code.text)
    assert code.facts()["spills"] == 0


# ------------------------------------------------------------------------------------------ device


@pytest.mark.parametrize(("fmt", "m"), [("q4_1", 1), ("q4_1", 17), ("q4_0", 3), ("q8_0", 9)])
def test_device_equals_golden(device: SyclCpu, fmt: str, m: int) -> None:
    p = proof_program(K, N, fmt)
    np.testing.assert_array_equal(run(device, p, lowered(p.kernel), m), golden(p, m))


@pytest.mark.parametrize("shape", [s8(1, 16, 32), s8(8, 8, 32), s8(16, 8, 32)], ids=str)
def test_other_shapes_agree(device: SyclCpu, shape: MmaShape) -> None:
    """One row at once; fewer columns than lanes; tokens as columns."""
    p = proof_program(K, N)
    np.testing.assert_array_equal(run(device, p, lowered(p.kernel, shape), 5), golden(p, 5))


def test_sub_groups_of_eight_agree(device: SyclCpu) -> None:
    """Alchemist's kernels: 17 rows by matrices of 8 columns, one row by dots."""
    p, a770 = proof_program(K, N), target("sycl:a770")
    assert isinstance(a770, SyclTarget)
    kernel = a770.lowering.run(p.kernel)
    assert kernel.group.subgroup == 8
    for m in (17, 1):
        np.testing.assert_array_equal(run(device, p, kernel, m), golden(p, m))


def test_rows_do_not_depend_on_their_number(device: SyclCpu) -> None:
    p = proof_program(K, N)
    many = run(device, p, lowered(p.kernel), 17)
    bufs = inputs(p, 17)
    last = {**bufs, p.x: bufs[p.x][16:], p.y: np.zeros((1, N), np.float32)}
    alone = launched(device, lowered(p.kernel), last, {p.m: 1}, groups=1)[p.y]
    np.testing.assert_array_equal(alone[0], many[16])


def test_the_smallest_halves_are_not_lost(device: SyclCpu) -> None:
    """Scales below 2^-14 are subnormal halves, which a device may flush to zero."""
    p = proof_program(K, N)
    weights = np.random.default_rng(9).standard_normal((2, N, K)).astype(np.float32) * 1e-4
    raw = [p.w.format.encode(w).reshape(-1) for w in weights]
    assert p.w.format.codes(raw[0], (N, K))[1].max() < 2.0**-14
    bufs = inputs(p, 3) | {p.blob: np.concatenate([p.w.pack(r) for r in raw])}
    y = launched(device, lowered(p.kernel), bufs, {p.m: 3})[p.y]
    run_kernel(p.kernel, bufs, {p.m: 3})
    np.testing.assert_array_equal(y, bufs[p.y])
    assert np.count_nonzero(y) > 3 * N // 2


def scalar_kernel(function: str) -> tuple[FragmentKernel, Buf, Buf]:
    """y = a function of x's columns, one row an invocation."""
    x, y, i = Buf("x", (256, 3), F32), Buf("y", (256,), F32), Var("i")
    a, b, c = (Load(x, (i, ex.lit(n))) for n in range(3))
    value: Expr = {
        "fma": ex.fma(a, b, c),
        "exp": ex.unary(Fn.EXP, c),
        "half": ex.cast(ex.cast(a, F16), F32),
        "max": ex.maximum(a, c),
        "sqrt": ex.unary(Fn.SQRT, ex.unary(Fn.ABS, a)),
        "div": ex.div(a, c),
        "rint": ex.unary(Fn.RINT, a),
    }[function]
    body = (LaneMap(y, (i,), (Axis(i, 256),), value),)
    return FragmentKernel(function, (x, y), (), Workgroup(SUBGROUP, 2), body), x, y


@pytest.mark.parametrize("function", ["fma", "exp", "half", "max", "sqrt", "div", "rint"])
def test_functions_are_the_irs_own(device: SyclCpu, function: str) -> None:
    """Random values, sums that cancel, halfway sums, infinities, halves down to none, a NaN."""
    rng = np.random.default_rng(11)
    a, b, c = (rng.standard_normal(256).astype(np.float32) * 8 for _ in range(3))
    c[:64] = -a[:64] * b[:64]
    # a * b = 2^-24 - 2^-50: just below half a unit of c, so the sum must not go up (nor down).
    a[64:66], b[64:66] = 1 + 2.0**-13, 2.0**-24 * (1 - 2.0**-13)
    a[65] *= -1
    c[64:66] = 1 + 2.0**-23, -(1 + 2.0**-23)
    c[66:72] = -100, 100, -87, 88, np.inf, -np.inf
    a[80:100] *= 2.0 ** -np.arange(10, 30)
    a[100:104] = 65504, 65519, -65520, 1 + 2.0**-11
    a[104:108] = 2.5, -0.5, 2.0**-126, np.inf
    if function == "max":
        a[108], c[109] = np.nan, np.nan
    kernel, x, y = scalar_kernel(function)
    arrays = {x: np.stack([a, b, c], axis=1), y: np.zeros(256, np.float32)}
    out = launched(device, kernel, arrays, {}, groups=1)[y]
    with np.errstate(all="ignore"):
        run_fragment_kernel(kernel, arrays, {})
    assert same_bits(out, arrays[y]), (
        f"{out[out != arrays[y]]} is not {arrays[y][out != arrays[y]]}"
    )


def test_four_bytes_are_dotted(device: SyclCpu) -> None:
    x, y, i = Buf("x", (256, 2), I32), Buf("y", (256,), I32), Var("i")
    value = ex.Apply(Fn.DOT4, (Load(x, (i, ex.lit(0))), Load(x, (i, ex.lit(1)))), I32)
    body = (LaneMap(y, (i,), (Axis(i, 256),), value),)
    kernel = FragmentKernel("dot4", (x, y), (), Workgroup(SUBGROUP, 2), body)
    bits = np.random.default_rng(5).integers(-(2**31), 2**31, (256, 2)).astype(np.int32)
    out = launched(device, kernel, {x: bits, y: np.zeros(256, np.int32)}, {}, groups=1)[y]
    a, b = (bits[:, n].copy().view(np.int8).reshape(256, 4).astype(np.int32) for n in range(2))
    np.testing.assert_array_equal(out, (a * b).sum(axis=1))


def product(dtype: DType) -> tuple[FragmentKernel, Buf, Buf, Buf]:
    """z [8, 16] f32 = x [8, 16] y^T, with y [16, 16] in one sub-group's matrices."""
    shape = MmaShape(dtype, dtype, F32, 8, 16, 16)
    x, y, z = Buf("x", (8, 16), dtype), Buf("y", (16, 16), dtype), Buf("z", (8, 16), F32)
    a, b, acc = (Fragment(f"frag_{r.value}", r, shape) for r in Role)
    origin = (ex.lit(0), ex.lit(0))
    body = (
        FragZero(acc),
        FragLoad(a, x, origin),
        FragLoad(b, y, origin, transposed=True),
        FragMma(acc, a, b),
        FragStore(acc, z, origin),
    )
    group = Workgroup(SUBGROUP, 1)
    kernel = FragmentKernel("product", (x, y, z), (), group, (Subgroups(Var("part"), 1, body),))
    return kernel, x, y, z


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_matrices_multiply_small_integers_exactly(
    dtype: DType, device: SyclCpu, compiler: SyclCompiler
) -> None:
    """Into f32: a sum of 16 products below 2^8 has one value in any order."""
    kernel, x, y, z = product(dtype)
    rng = np.random.default_rng(3)
    left, right = (rng.integers(-9, 10, s).astype(np.float32) for s in ((8, 16), (16, 16)))
    arrays = {x: cast(left, F32, dtype), y: cast(right, F32, dtype)}
    arrays[z] = np.zeros((8, 16), np.float32)
    out = launched(device, kernel, arrays, {}, groups=1)[z]
    np.testing.assert_array_equal(out, left @ right.T)
    joint = compile_sycl(render_sycl(kernel).text, compiler, Form.JOINT)
    assert opcode_counts(joint)[MULTIPLY_ADD] == 1


# ------------------------------------------------------------------------------- generated programs

FEW = settings(
    max_examples=4,
    phases=[Phase.reuse, Phase.generate],  # shrinking would compile for minutes
    suppress_health_check=list(HealthCheck),
)


def check(device: SyclCpu, program: Program) -> None:
    """The program at every size, on one work-group and on two."""
    text = render_sycl(lowered(program.kernel))
    for m in SIZES:
        want = program.arrays(m, 1)
        got = launched(device, text, want, {program.m: m}, groups=1 + m % 2)
        run_kernel(program.kernel, want, {program.m: m})
        assert same_bits(got[program.out], want[program.out]), print_kernel(program.kernel)


@given(elementwise())
@FEW
def test_maps(device: SyclCpu, program: Program) -> None:
    check(device, program)


@given(reductions())
@FEW
def test_reductions(device: SyclCpu, program: Program) -> None:
    check(device, program)


@given(dots())
@FEW
def test_dots(device: SyclCpu, program: Program) -> None:
    check(device, program)


@pytest.mark.parametrize(
    "fmt", ["f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "mxfp4", "nvfp4", "nvfp4_rows", "fp8"]
)
@given(st.data())
@settings(FEW, max_examples=1)
def test_matmuls(device: SyclCpu, fmt: str, data: st.DataObject) -> None:
    check(device, data.draw(matmuls(fmt)))


# ------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize("number", [2, 9])
def test_a_missing_barrier_is_seen(device: SyclCpu, number: int) -> None:
    """Sub-groups run one after the other here: a later one's part is read before it is there."""
    p = proof_program(K, N)
    kernel = without_barrier(lowered(p.kernel), number)
    assert np.mean(run(device, p, kernel, 17) != golden(p, 17)) > 0.5


def test_a_wrong_fragment_layout_is_seen(device: SyclCpu) -> None:
    p = proof_program(K, N)
    kernel = lowered(p.kernel, s8(8, 16, 16))

    def rule(s: Stmt) -> Stmt:
        return replace(s, transposed=False) if isinstance(s, FragLoad) and s.transposed else s

    wrong = with_body(kernel, rewritten(kernel.body, rule))
    assert np.mean(run(device, p, wrong, 8) != golden(p, 8)) > 0.9


RIGHT_SCALE = PackedMatrix.scale


def swapped_scales(
    self: PackedMatrix, blob: Buf, base: Expr, lane: Expr, group: ex.Scalar = 0
) -> Expr:
    """Scales read in the reverse order of the panel's rows."""
    return RIGHT_SCALE(self, blob, base, ex.sub(PANEL - 1, lane), group)


def test_a_wrong_scale_layout_is_seen(device: SyclCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    p = proof_program(K, N)
    right = golden(p, 3)
    monkeypatch.setattr(PackedMatrix, "scale", swapped_scales)
    assert np.mean(run(device, p, lowered(p.kernel), 3) != right) > 0.9


def test_a_wrong_matrix_header_is_seen(device: SyclCpu) -> None:
    """The stand-in for the matrix engine is tested too: columns of the neighbouring lane."""
    p = proof_program(K, N)
    text = render_sycl(lowered(p.kernel))
    shifted = replace(text, text=text.text.replace("lane_id(); c <", "(lane_id() ^ 1); c <"))
    assert shifted.text != text.text
    # Loads and stores shift alike, so only the shared operand a sees it.
    assert np.mean(launched(device, shifted, inputs(p, 8), {p.m: 8})[p.y] != golden(p, 8)) > 0.9


# ------------------------------------------------------------------------------------------ worker


def test_a_hang_is_killed() -> None:
    require("sycl")
    spin, (x, y) = Var("n"), (Buf("x", (1,), I32), Buf("y", (1,), I32))
    forever = For(spin, 0, ex.cast(Load(x, (ex.lit(0),)), INDEX), ())
    kernel = FragmentKernel("spin", (x, y), (), Workgroup(SUBGROUP, 1), (forever,))
    text = render_sycl(kernel)
    endless = replace(text, text=text.text.replace("++n", "n += x[0] & *(volatile const int*)y"))
    arrays = {x: np.ones(1, np.int32), y: np.ones(1, np.int32)}
    with SyclCpu() as device:
        launched(device, endless, arrays, {}, groups=1)  # it ends
    arrays[y][:] = 0
    with SyclCpu(timeout_s=5) as device, pytest.raises(SyclError, match="ended with status -9"):
        launched(device, endless, arrays, {}, groups=1)


def test_a_bad_request_is_reported(device: SyclCpu) -> None:
    with pytest.raises(SyclError, match="SyclProgramCompilationError"):
        device.run(b"no module", "x", [], [], groups=1, local=1)
    with pytest.raises(SyclError, match="KeyError: 'nothing'"):
        device.get("nothing", np.zeros(1))


# -------------------------------------------------------------------------------------------- text


def test_text_is_deterministic_and_readable() -> None:
    one, two = (render_sycl(lowered(proof_program(K, N).kernel)) for _ in range(2))
    assert one == replace(two, buffers=one.buffers, scalars=one.scalars)
    lines = one.text.splitlines()
    assert lines[0] == "// ffn_gate_up for SYCL, i8*i8->i32 8x16x32, 2 subgroups of 16."
    assert lines[1].startswith("// sha256 of what follows: ")
    assert one.entry == "__sycl_kernel_ffn_gate_up"
    names = "x norm w y xq xs xi xm amax inverse line"
    assert " ".join(b.name for b in one.buffers) == names
    for name in ("gate", "up", "w_tile", "x_tile", "row_tile", "panel"):
        assert f" {name}" in one.text


def test_what_cannot_be_said_is_refused_by_name() -> None:
    kernel, *_ = product(F16)

    def both(s: Stmt) -> Stmt:
        return replace(s, transposed=False) if isinstance(s, FragLoad) else s

    (part,) = kernel.body
    assert isinstance(part, Subgroups)
    twice = replace(part, body=(*part.body[:3], both(part.body[2]), *part.body[3:]))
    with pytest.raises(UnsupportedError, match="frag_b is loaded in both orders"):
        render_sycl(with_body(kernel, (twice,)))
