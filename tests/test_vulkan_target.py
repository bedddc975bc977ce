"""The Vulkan target: every profile builds with its instruction, and programs equal golden."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import Spec, model_file, smollm2_file
from emulation.require import require
from emulation.vulkan_root import VulkanHome, find_vulkan
from emulation.vulkan_worker import VulkanWorker
from fragment_rig import dispatched, golden, interpreted, s8
from golden_text import check_golden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Tiny
from proof_program import inputs, proof_program
from tile_gen import SIZES, Program, dots, elementwise, matmuls, reductions

from speccc.driver import CompileOptions, _bounds, _Times, final_graph
from speccc.errors import InputError, UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Fn, LoadBytes, Var
from speccc.ir.fragment import FragmentKernel, LaneMap, Workgroup, shared_bytes, walk
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.frontends import open_model
from speccc.ir.interp_expr import evaluate
from speccc.ir.interp_tile import run_kernel
from speccc.ir.plan import phases
from speccc.ir.tile import Axis, Buf
from speccc.ir.types import F16, F32, I32, U8
from speccc.passes import scaled_dot_to_lanes
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.lower_graph import Lowered, LowerGraph
from speccc.passes.plan_memory import PlanMemory
from speccc.system_root import vulkan_root
from speccc.targets.base import RenderedPlan, Source, ToolMissingError
from speccc.targets.devices import profile, profile_names
from speccc.targets.glsl_build import find_glsl_tools
from speccc.targets.launch_plan import launches_per_step
from speccc.targets.spirv import opcode_counts
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import render_shader
from speccc.targets.vulkan.target import VulkanTarget

MATRIX_OPCODE, DOT_OPCODE = 4459, 4450  # OpCooperativeMatrixMulAddKHR, OpSDot
FORMATS = ("q4_1", "q4_0", "q8_0", "mxfp4", "nvfp4")
PROFILES = tuple(n for n in profile_names() if n.startswith("vulkan:"))
# No instruction; one, but not for few rows; a workgroup that dots many blocks at once.
WAYS: dict[str, DotToFragment] = {
    "lanes": DotToFragment(None, 8, 2),
    "lanes, many": DotToFragment(None, 8, 16),
    "lanes, shared": DotToFragment(None, 8, 2, split=4),
    "lanes of a wave": DotToFragment(None, 64, 1),
    "few rows": DotToFragment(s8(8, 8, 8), 8, 2, few=2),
    "few rows of 16": DotToFragment(s8(16, 16, 16), 16, 4, few=4),
}


@pytest.fixture(scope="module")
def home() -> VulkanHome:
    require("vulkan")
    found = find_vulkan()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def worker(home: VulkanHome) -> Iterator[VulkanWorker]:
    with VulkanWorker(home) as running:
        yield running


# ------------------------------------------------------------------------------- without a matrix


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_lanes_equal_block_level(way: str, fmt: str) -> None:
    """3 blocks of k: one chunk of them is not full."""
    p = proof_program(96, 32, fmt)
    kernel = WAYS[way].run(p.kernel)
    verify_fragment(kernel)
    for m in (1, 3, 8, 17):
        np.testing.assert_array_equal(interpreted(p, kernel, m, groups=2), golden(p, m))


@pytest.mark.parametrize("way", ["lanes", "lanes, shared", "few rows"])
def test_lanes_on_the_device(home: VulkanHome, worker: VulkanWorker, way: str) -> None:
    """9 rows: a full tile, and one of a single row, which goes by lanes in either way."""
    for fmt in FORMATS:
        p = proof_program(96, 32, fmt)
        shader = render_shader(WAYS[way].run(p.kernel), Fma.PAIRS)
        y = dispatched(home, worker, shader, inputs(p, 9), {p.m: 9}, groups=2)[p.y]
        np.testing.assert_array_equal(y, golden(p, 9))


def test_dot4_is_of_signed_bytes(home: VulkanHome, worker: VulkanWorker) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-128, 128, (64, 4)).astype(np.int8) for _ in range(2))
    a[0] = b[0] = -128
    x, y = Var("x", I32), Var("y", I32)
    env = {x: a.view(np.int32)[:, 0], y: b.view(np.int32)[:, 0]}
    value = evaluate(Apply(Fn.DOT4, (x, y), I32), env, lambda *_: pytest.fail("no buffer"))
    np.testing.assert_array_equal(value, (a.astype(np.int32) * b).sum(axis=1))
    assert value[0] == 4 * 128 * 128


def test_signs_of_codes_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with unsigned codes of 8 bits nothing would be right."""
    p = proof_program(96, 32, "q8_0")
    monkeypatch.setattr(scaled_dot_to_lanes, "TOP_BITS", 0)
    wrong = interpreted(p, WAYS["lanes"].run(p.kernel), 3)
    assert np.mean(wrong != golden(p, 3)) > 0.9


def test_few_rows_take_the_lanes() -> None:
    """Both ways are in the kernel, each in a loop of one trip or none; default is the matrix."""
    both = _instructions(WAYS["few rows"].run(proof_program(96, 32).kernel))
    assert both["dot4"]
    assert both["FragMma"]
    assert not _instructions(DotToFragment(s8(8, 8, 8), 8).run(proof_program(96, 32).kernel))[
        "dot4"
    ]
    assert not _instructions(WAYS["lanes"].run(proof_program(96, 32).kernel))["FragMma"]


def _instructions(kernel: FragmentKernel) -> Counter[str]:
    counts = Counter(type(s).__name__ for s in walk(kernel.body))
    counts["dot4"] = counts["FoldRows"]  # there are no others
    return counts


def test_numbers_are_read_whole_where_they_are_aligned(
    home: VulkanHome, worker: VulkanWorker
) -> None:
    """Scales lie at even bytes, four codes at multiples of four; the rest is read by bytes."""
    text = render_shader(WAYS["lanes"].run(proof_program(96, 32).kernel)).text
    assert "half_value(uint(w_by_2[" in text
    assert "int(w_by_4[" in text
    assert "_at(" not in text
    raw, y, i = Buf("raw", (64,), U8), Buf("y", (8, 2), F32), Var("i")
    places = (ex.add(ex.mul(i, 2), 1), ex.mul(i, 2))
    body = tuple(
        LaneMap(y, (i, ex.lit(n)), (Axis(i, 8),), ex.cast(LoadBytes(raw, at, F16), F32))
        for n, at in enumerate(places)
    )
    kernel = FragmentKernel("halves", (raw, y), (), Workgroup(8, 1), body)
    shader = render_shader(kernel, Fma.PAIRS)
    assert "raw_f16_at(" in shader.text
    values = np.random.default_rng(1).integers(0, 120, 64).astype(np.uint8)
    given = {raw: values, y: np.zeros((8, 2), np.float32)}
    out = dispatched(home, worker, shader, given, {}, groups=1)[y]
    odd, even = values[1:17].view(np.float16), values[:16].view(np.float16)
    np.testing.assert_array_equal(out, np.stack([odd, even], axis=1).astype(np.float32))


# ------------------------------------------------------------------------------ generated programs

MATMULS = (matmuls(fmt) for fmt in (*FORMATS, "f32", "f16", "bf16", "fp8", "nvfp4_rows"))
PROGRAMS = st.one_of(elementwise(), reductions(), dots(), *MATMULS)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    PROGRAMS,
    st.sampled_from(SIZES),
    st.integers(1, 3),
    st.sampled_from(["lanes", "lanes, shared", "few rows"]),
)
def test_any_program_equals_golden(
    home: VulkanHome, worker: VulkanWorker, program: Program, m: int, groups: int, way: str
) -> None:
    want, got = program.arrays(m, 1), program.arrays(m, 1)
    run_kernel(program.kernel, want, {program.m: m})
    shader = render_shader(WAYS[way].run(program.kernel), Fma.PAIRS)
    out = dispatched(home, worker, shader, got, {program.m: m}, groups)
    np.testing.assert_array_equal(out[program.out], want[program.out])


# ------------------------------------------------------------------------------------ whole models


@functools.cache
def plan_of(which: str) -> Lowered:
    file, kv = _MODELS[which] if which in _MODELS else (smollm2_file(), "f16")
    options, source = CompileOptions(kv=kv), open_model(file)
    return LowerGraph(options.kv).run(final_graph(source, options, _Times()))


_MODELS: dict[str, tuple[Path, str]] = {}
TINY = {
    "tiny q4_1": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160), "q4_1"),
    "tiny q8_0, kv i8": Spec(Tiny(seed=3, head_dim=64, kv_heads=1), "q8_0", "i8"),
    "tiny f16": Spec(Tiny(seed=4, tied=False, layers=1), "f16"),
}


@pytest.fixture(scope="module", autouse=True)
def _models(tmp_path_factory: pytest.TempPathFactory) -> None:
    for which, spec in TINY.items():
        _MODELS[which] = (model_file(spec, tmp_path_factory.mktemp("model")), spec.kv)


def rendered(name: str, which: str) -> RenderedPlan:
    lowered = plan_of(which)
    bounds = _bounds(lowered)
    arena = PlanMemory(bounds).run(lowered.plan)
    return VulkanTarget(profile(name)).render(lowered.plan, arena, bounds)


@functools.cache
def built(text: str) -> Counter[int]:
    """Opcodes of a text's SPIR-V: products of one architecture have the same texts."""
    build = VulkanTarget(profile("vulkan:lavapipe")).stages()["spv"]
    return opcode_counts(build(Source("kernel", "comp", "main", text)))


@pytest.mark.parametrize("name", PROFILES)
def test_every_kernel_builds_for_every_profile(home: VulkanHome, name: str) -> None:
    """With the matrix instruction of the profile, and packed dots for few rows in any case."""
    target = VulkanTarget(profile(name))
    for which in ("SmolLM2", "tiny q8_0, kv i8"):
        assert target.unsupported(plan_of(which).plan) is None
        for source in rendered(name, which).sources:
            counts = built(source.text)
            quantized = source.name in ("attn_q_k_v", "attn_output", "ffn_gate_up", "ffn_down")
            assert (counts[DOT_OPCODE] > 0) >= quantized, source.name
            assert (counts[MATRIX_OPCODE] > 0) >= (quantized and target.shape is not None)


def test_a_root_that_is_not_whole_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when it was asked for: without a tree in the usual place the system's own serves."""
    monkeypatch.setenv("SPECCC_VULKAN_ROOT", str(tmp_path))
    with pytest.raises(InputError, match=r"is no whole Vulkan tree; unset SPECCC_VULKAN_ROOT"):
        find_glsl_tools()
    monkeypatch.delenv("SPECCC_VULKAN_ROOT")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert vulkan_root() is None
    (tmp_path / "speccc/vulkan-root").mkdir(parents=True)
    (tmp_path / "speccc/vulkan-root/.speccc-complete").touch()
    root = vulkan_root()
    assert root is not None
    assert root.command(Path("x"))[-1] == "x"


def test_without_glslang_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speccc.targets.vulkan.target.find_glsl_tools", lambda: None)
    build = VulkanTarget(profile("vulkan:lavapipe")).stages()["spv"]
    with pytest.raises(ToolMissingError, match="apt install glslang-tools spirv-tools"):
        build(Source("kernel", "comp", "main", ""))


def test_profiles_differ_in_their_instruction() -> None:
    shapes = {n: VulkanTarget(profile(n)).shape for n in PROFILES}
    assert str(shapes["vulkan:lavapipe"]) == "i8*i8->i32 8x8x8"
    assert str(shapes["vulkan:rdna3"]) == "i8*i8->i32 16x16x16"
    # Eight tokens at once: on the narrow side, whichever that is.
    assert {str(shapes[f"vulkan:{n}"]) for n in ("turing", "ampere", "ada", "rtx5090")} == {
        "i8*i8->i32 16x8x32"
    }
    assert str(shapes["vulkan:alchemist"]) == "i8*i8->i32 8x8x32"
    assert str(shapes["vulkan:b580"]) == "i8*i8->i32 8x16x32"
    assert shapes["vulkan:mi50"] is None
    assert VulkanTarget(profile("vulkan:rdna3"), matrix=False).shape is None


LAUNCHES = {n: 3 + 7 * spec.tiny.layers for n, spec in TINY.items()} | {"SmolLM2": 3 + 7 * 30}


@pytest.mark.parametrize("which", LAUNCHES)
def test_renderings_are_equal_and_readable(which: str) -> None:
    one, two = (rendered("vulkan:lavapipe", which) for _ in range(2))
    assert [s.text for s in one.sources] == [s.text for s in two.sources]
    assert launches_per_step(one) == LAUNCHES[which]
    text = next(s.text for s in one.sources if s.name == "ffn_down")
    assert text.splitlines()[1].startswith("// ffn_down for Vulkan, ")
    assert "uniform Sizes { layout(offset = 0) int m; layout(offset = 4) int length_2;" in text
    assert ("layout(push_constant) uniform Pushed { int layer; };" in text) == ("(layer * " in text)


@pytest.mark.parametrize("name", ["ffn_down", "attn_values"])
def test_golden_texts(name: str, request: pytest.FixtureRequest) -> None:
    """A quantized product in both its ways, and a float one, to be read."""
    sources = rendered("vulkan:rdna3", "tiny q4_1").sources
    (text,) = (s.text for s in sources if s.name == name)
    check_golden(f"vulkan/{name}.comp", text, request)


def test_shared_memory_that_does_not_suffice_is_said() -> None:
    target = VulkanTarget(profile("vulkan:lavapipe"))
    need = max(shared_bytes(target.lowering.run(k)) for k in phases(plan_of("SmolLM2").plan.body))
    assert need <= 16384  # what Vulkan promises
    with pytest.raises(UnsupportedError, match=r"8x8x24"):
        DotToFragment(s8(8, 8, 24), 8).run(proof_program(96, 32).kernel)
