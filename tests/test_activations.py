"""Activations as NVFP4: what rows become, and the same bits from every way to multiply them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tile_gen
from cpu_rig import HERE, Spec, build, golden, model_file, same_bits, single
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from fragment_rig import lowered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Tiny
from tile_gen import SIZES, Program
from triton_rig import rendered, stepped

from speccc.emit import EmitOptions, read_model
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.formats import E2M1_TWICE, FORMATS
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_expr import evaluate
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.packed import PackedMatrix
from speccc.ir.plan import Plan
from speccc.ir.tile import LANES, Axis, Buf, Kernel, Map, Stmt
from speccc.ir.types import F32, I8, U8
from speccc.passes.quantize_fp4 import TOP, UE4M3_TOP, e2m1_twice, fp4_buffers, quantize_fp4, ue4m3
from speccc.passes.tile_matmul import Operand, accumulate, prepare_rows, units_by_rows
from speccc.targets.cpu.isa import Isa
from speccc.targets.registry import target
from speccc.targets.report import kernel_facts
from speccc.targets.triton.schedule import Fp4, Shape
from speccc.targets.triton.target import TritonTarget
from speccc.targets.triton_build import CUDA_ARCHS, build_cuda

EACH = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SHAPES = {"int8": Shape(units=2, fill=1), "mma": Shape(units=2, fill=1, fp4=Fp4(16, 8))}
TCGEN05 = Shape(fill=1, fp4=Fp4(128, 16, inline=True))
X = Var("x", F32)
Floats = npt.NDArray[np.float32]
# By the definitions of the formats (OCP Microscaling Formats 1.0), in order of their codes.
E2M1 = np.array(E2M1_TWICE[:8], np.float32)
UE4M3 = np.array(
    [m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)],
    np.float32,
)[:-1]


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine() as running:
        yield running


# ----------------------------------------------------------------------------------- rounding


def nearest(table: Floats, x: Floats) -> Floats:
    """The closest of the table; of two the one with the even code."""
    gap = np.abs(table.astype(np.float64)[None] - x.astype(np.float64)[:, None])
    closest = gap == gap.min(axis=1, keepdims=True)
    even = closest & (np.arange(len(table)) % 2 == 0)
    pick = np.where(even.any(axis=1), even.argmax(axis=1), closest.argmax(axis=1))
    return table[pick]


def of(e: Expr, x: Floats) -> Floats:
    return np.asarray(evaluate(e, {X: x}, lambda *_: x))


def middles(table: Floats) -> Floats:
    """The values, what lies half way between two, and what lies next to that."""
    half = (table[1:] + table[:-1]) / 2
    return np.concatenate([table, half, np.nextafter(half, 0), np.nextafter(half, np.float32(1e9))])


@given(st.lists(st.floats(0, 500, width=32), min_size=1))
def test_scales_are_the_nearest(x: list[float]) -> None:
    values = np.concatenate([np.array(x, np.float32), middles(UE4M3)])
    assert same_bits(of(ue4m3(X), values), nearest(UE4M3, values))


@given(st.lists(st.floats(0, 13, width=32), min_size=1))
def test_codes_are_the_nearest(x: list[float]) -> None:
    values = np.concatenate([np.array(x, np.float32), middles(E2M1)])
    assert np.array_equal(of(e2m1_twice(X), values), nearest(E2M1, values))
    assert np.array_equal(of(e2m1_twice(X), -values), -nearest(E2M1, values))


def quantized(x: Floats) -> tuple[npt.NDArray[np.int8], Floats, Floats]:
    """Codes, scales and factors that golden makes of rows."""
    m, (rows, k) = Var("m"), x.shape
    source = Buf("x", (m, k), F32)
    q, factor = fp4_buffers(m, k)
    outs = Buf("codes", (m, k), I8), Buf("scales", (m, k // 16), F32), Buf("factors", (m, 1), F32)
    body = quantize_fp4(lambda r, c: Load(source, (r, c)), None, m, k, q, factor)
    for dst, own in zip(outs, (q.codes, q.scale, factor), strict=True):
        i, j = Var("i"), Var("j")
        body.append(Map(dst, (i, j), (Axis(i, m), Axis(j, dst.shape[1])), Load(own, (i, j))))
    plan = single((Kernel("quantize", (source, *outs), (m,), tuple(body)),))
    arrays = {b: np.zeros((rows, int(b.shape[1])), b.dtype.numpy) for b in outs}
    done = golden(plan, {source: x, **arrays}, {m: rows})
    return done[outs[0]], done[outs[1]], done[outs[2]]


@settings(EACH, max_examples=30)
@given(seed=st.integers(0, 2**16), size=st.floats(-20, 20))
def test_rows_are_near(seed: int, size: float) -> None:
    """Half a step of e2m1 (a quarter of what is near 6) and of ue4m3 (2^-4 of the scale)."""
    draw = np.random.default_rng(seed)
    x = (draw.standard_normal((3, 64)) * 10.0**size).astype(np.float32)
    x[1] *= draw.random(64) < 0.1
    x[2] = 0
    codes, scales, factors = quantized(x)
    assert set(np.unique(codes)) <= set(E2M1_TWICE)
    assert np.isin(scales * 2, UE4M3).all()
    assert np.allclose(factors[:, 0], np.abs(x).max(axis=1) / TOP)
    back = codes * np.repeat(scales, 16, axis=1) * factors
    top = np.abs(x).reshape(3, -1, 16).max(axis=2).repeat(16, axis=1)
    # A scale may be 2^-4 low, which clips the top, or below the least: half a step of 2^-9.
    assert (np.abs(back - x) <= top / 6 * (1 + 2.0**-4) + factors * 6 * 2.0**-10).all()
    assert not back[2].any()


# ---------------------------------------------------------------------------------- products


def matmul(
    rows: int, k: int, activations: str = "nvfp4", fmt: str = "nvfp4"
) -> tuple[Plan, Var, tuple[Buf, Buf, Buf]]:
    """y = x w^T."""
    w, m = PackedMatrix(FORMATS[fmt], rows, k), Var("m")
    x, blob, y = Buf("x", (m, k), F32), Buf("w", (w.nbytes,), U8), Buf("y", (m, rows), F32)
    made, body = prepare_rows(
        lambda r, c: Load(x, (r, c)), None, m, k, [w], activations=activations
    )

    def tile(width: int, row: Expr, unit: Expr) -> list[Stmt]:
        operand = Operand(w, blob, ex.lit(0))
        acc, out = accumulate("acc", width, made, operand, row, unit)
        i, j = Var("i"), Var("j")
        at = (ex.add(row, i), ex.add(ex.mul(unit, LANES), j))
        return [*out, Map(y, at, (Axis(i, width), Axis(j, LANES)), Load(acc, (i, j)))]

    body += [units_by_rows("panel", w.panels, m, tile)]
    return single((Kernel("matmul", (x, blob, y), (m,), tuple(body)),)), m, (x, blob, y)


def inputs(rows: int, k: int, m: int, seed: int = 3) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(seed)
    weights = draw.standard_normal((rows, k)).astype(np.float32)
    return draw.standard_normal((m, k)).astype(np.float32), weights


def filled(bufs: tuple[Buf, Buf, Buf], rows: int, k: int, m: int) -> dict[Buf, npt.NDArray]:
    x, weights = inputs(rows, k, m)
    w = PackedMatrix(FORMATS["nvfp4"], rows, k)
    packed = w.pack(w.format.encode(weights).reshape(-1))
    return dict(zip(bufs, (x, packed, np.zeros((m, rows), np.float32)), strict=True))


def test_golden_is_the_product_of_what_both_stand_for() -> None:
    """Each of the four sums rounds once: 2^-24 of what is summed so far."""
    rows, k, m = 32, 64, 3
    plan, size, bufs = matmul(rows, k)
    arrays = filled(bufs, rows, k, m)
    codes, scales, factors = quantized(arrays[bufs[0]])
    left = codes * np.repeat(scales, 16, axis=1).astype(np.float64) * factors
    stored = FORMATS["nvfp4"]
    right = stored.decode(stored.encode(inputs(rows, k, m)[1]), (rows, k)).astype(np.float64)
    got = golden(plan, arrays, {size: m})[bufs[2]]
    room = 8 * 2.0**-24 * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(got - left @ right.T) <= room).all()


def test_other_weights_take_int8() -> None:
    """The class is asked for; only weights of e2m1 by 16 have it."""
    for name, groups in (("nvfp4", 2), ("mxfp4", 1), ("q4_1", 1)):
        w, m = PackedMatrix(FORMATS[name], 16, 64), Var("m")
        x = Buf("x", (m, 64), F32)
        rows, _ = prepare_rows(
            lambda r, c, x=x: Load(x, (r, c)), None, m, 64, [w], activations="nvfp4"
        )
        assert rows.quant is not None
        assert rows.quant.groups == groups
        assert (rows.factor is None) == (groups == 1)


@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
@EACH
@given(data=st.data(), m=st.sampled_from(SIZES))
def test_cpu_equals_golden(isa: Isa, data: st.DataObject, m: int) -> None:
    p: Program = data.draw(tile_gen.matmuls("nvfp4", "nvfp4"))
    plan, arrays = single((p.kernel,)), p.arrays(m, 1)
    got = build(plan, {p.m: 64}, isa).run(arrays, {p.m: m})
    assert same_bits(got[p.out], golden(plan, arrays, {p.m: m})[p.out])


@EACH
@given(p=tile_gen.matmuls("nvfp4", "nvfp4"), m=st.sampled_from(SIZES))
def test_fragments_equal_golden(p: Program, m: int) -> None:
    """The level of Vulkan, SYCL and Metal, by its own machine."""
    fragment = lowered(p.kernel)
    verify_fragment(fragment)
    arrays = p.arrays(m, 1)
    other = {b: a.copy() for b, a in arrays.items()}
    run_kernel(p.kernel, arrays, {p.m: m})
    run_fragment_kernel(fragment, other, {p.m: m}, groups=2)
    assert same_bits(arrays[p.out], other[p.out])


@pytest.mark.parametrize("which", SHAPES)
@EACH
@given(data=st.data(), m=st.sampled_from(SIZES))
def test_triton_equals_golden(
    machine: TritonMachine, which: str, data: st.DataObject, m: int
) -> None:
    p: Program = data.draw(tile_gen.matmuls("nvfp4", "nvfp4"))
    plan, arrays = single((p.kernel,)), p.arrays(m, 1)
    text = rendered(plan, SHAPES[which])
    assert ("tl.dot_scaled" in text.kernel.source) == (which == "mma")
    got = stepped(machine, text, arrays, {p.m: m})
    assert same_bits(got[p.out], golden(plan, arrays, {p.m: m})[p.out])


@pytest.mark.parametrize("m", [1, 9, 17])
def test_wide_tiles_equal_golden(machine: TritonMachine, m: int) -> None:
    """128 rows of weights at a time, and a last tile that is not full."""
    rows, k = 128 + 64, 128
    plan, size, bufs = matmul(rows, k)
    arrays, text = filled(bufs, rows, k, m), rendered(plan, TCGEN05)
    assert "tl.dot_scaled" in text.kernel.source
    got = stepped(machine, text, arrays, {size: m})
    assert same_bits(got[bufs[2]], golden(plan, arrays, {size: m})[bufs[2]])


def test_a_wrong_scale_shows(machine: TritonMachine) -> None:
    """The scales of the other group, or activations' codes in the other nibble: other bits."""
    plan, size, bufs = matmul(32, 64)
    arrays, text = filled(bufs, 32, 64, 2), rendered(plan, SHAPES["mma"])
    expected = golden(plan, arrays, {size: 2})[bufs[2]]
    for right, wrong in ((" + 272", " + 256"), (" << 4", " << 0")):
        assert right in text.kernel.source
        source = text.kernel.source.replace(right, wrong)
        spoiled = replace(text, kernel=replace(text.kernel, source=source))
        assert not same_bits(stepped(machine, spoiled, arrays, {size: 2})[bufs[2]], expected)


INSTRUCTION = {100: "tcgen05.mma", 103: "tcgen05.mma", 120: "mma.sync"}


@pytest.mark.parametrize("arch", CUDA_ARCHS)
def test_ptx(arch: int) -> None:
    """The instruction for NVFP4 where there is one, int8's elsewhere; nothing spills."""
    require("triton")
    made = target(f"cuda:sm_{arch}")
    assert isinstance(made, TritonTarget)
    plan, _, _ = matmul(1024, 512)
    built = build_cuda(rendered(plan, replace(made.shape, fill=1)).kernel, arch)
    facts = kernel_facts({"ptx": built.text.encode(), "cubin": built.binary})
    native = [line for line in built.text.split("\n") if "kind::mxf4nvf4" in line]
    assert bool(native) == (arch in INSTRUCTION)
    assert all(INSTRUCTION[arch] in line for line in native)
    assert not native or facts.instructions == {f"{INSTRUCTION[arch]} mxf4nvf4": len(native)}
    assert facts.spills == 0
    assert all(_sums_from_zero(built.text.split("\n"), line) for line in native)


@pytest.mark.parametrize("arch", INSTRUCTION)
def test_a_whole_step(arch: int, tmp_path: Path) -> None:
    """All phases that are wide enough take it; none spills, two products in a phase either."""
    require("triton")
    spec = Spec(Tiny(seed=8, hidden=256, heads=4, kv_heads=4, ffn=512, layers=2), "nvfp4")
    path, options = model_file(spec, tmp_path), EmitOptions(activations="nvfp4")
    front = read_model(path, options, lambda *_: None)
    made = target(f"cuda:sm_{arch}")
    assert isinstance(made, TritonTarget)
    made = replace(made, shape=replace(made.shape, fill=1))
    (source,) = made.render(front.plan, front.arena, front.bounds).sources
    facts = kernel_facts({ext: step(source) for ext, step in made.stages().items()})
    assert facts.instructions[f"{INSTRUCTION[arch]} mxf4nvf4"] > 8
    assert facts.spills == 0


@pytest.mark.parametrize("arch", CUDA_ARCHS)
def test_ptx_of_int8(arch: int) -> None:
    """Tiles as wide as they get: `wgmma` on sm_90, `mma.sync` elsewhere; nothing spills."""
    require("triton")
    made = target(f"cuda:sm_{arch}")
    assert isinstance(made, TritonTarget)
    plan, _, _ = matmul(1024, 512, "int8")
    built = build_cuda(rendered(plan, replace(made.shape, fill=1)).kernel, arch)
    facts = kernel_facts({"ptx": built.text.encode(), "cubin": built.binary})
    assert set(facts.instructions) == {"wgmma.mma_async" if arch == 90 else "mma.sync"}
    assert facts.spills == 0


def _sums_from_zero(lines: list[str], native: str) -> bool:
    """Whether the instruction adds to nothing: with a sum in it, it would round as it likes.

    It is given a false predicate, or four accumulators that are copies of one register.
    """
    before = "\n".join(lines[: lines.index(native)])
    if native.lstrip().startswith("@"):
        flag = re.findall(r"(%p\d+);", native)[-1]
        return re.findall(rf"mov\.pred\s+{flag}, (\d);", before)[-1] == "0"
    added = re.findall(r"\{([^}]*)\}", native)[3].split(",")
    sources = [re.findall(rf"mov\.b32\s+{r.strip()}, (%r\d+);", before)[-1] for r in added]
    return len(sources) == 4 and len(set(sources)) == 1


def test_the_top_of_a_row_is_the_top_of_the_format() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 5], x[0, 20] = 3.0, -1.5
    codes, scales, factors = quantized(x)
    assert codes[0, 5] == 12
    assert scales[0, 0] * 2 == UE4M3_TOP
    assert codes[0, 20] == -12
    assert factors[0, 0] == np.float32(3.0) / np.float32(TOP)
