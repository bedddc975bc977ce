"""AMD's machine code of Vulkan's shaders, by RADV's compiler for GPUs that are not there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from attention_rig import Heads
from attention_rig import lowered as attention
from cpu_rig import Spec, model_file
from emulation.require import require
from engine_rig import product
from models import Tiny

from speccc.emit import EmitOptions, read_model
from speccc.ir.tile import Kernel
from speccc.targets import radv_build
from speccc.targets.base import RenderedPlan, Source
from speccc.targets.build_error import BuildError
from speccc.targets.devices import profile
from speccc.targets.glsl_build import GlslTools, compile_glsl
from speccc.targets.launch_plan import launches
from speccc.targets.radv_build import FAMILIES, find_radv
from speccc.targets.report import KernelFacts, kernel_facts
from speccc.targets.spirv import interface
from speccc.targets.vulkan import target as vulkan_target
from speccc.targets.vulkan.render import render_shader
from speccc.targets.vulkan.target import VulkanTarget
from speccc.toolchains import TOOLCHAINS

MATRIX, DOT = "OpCooperativeMatrixMulAddKHR", "OpSDot"
WMMA, WMMA_F16 = "v_wmma_i32_16x16x16_iu8", "v_wmma_f32_16x16x16_f16"
ARCHS = {
    "rdna3": {MATRIX: WMMA, DOT: "v_dot4_i32_iu8"},
    "rdna4": {MATRIX: WMMA, DOT: "v_dot4_i32_iu8"},
    "vega20": {DOT: "v_dot4_i32_i8"},
}
"""What an instruction of SPIR-V becomes."""
MANY = 1000
"""More values than an invocation has registers."""
SPILLING = f"""#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) buffer x_block {{ float x[]; }};
layout(set = 0, binding = 1, std140) uniform Sizes {{ int m; }};
void main() {{
    int at = int(gl_GlobalInvocationID.x) * m;
    {"".join(f"float v{n} = x[at + {n} * m];" for n in range(MANY))}
    x[at] = 1.0;
    barrier();
    float sum = 0.0;
    {"".join(f"sum = sum * v{n} + 1.0;" for n in reversed(range(MANY)))}
    x[at] = sum;
}}
"""


@cache
def spirv(text: str, tools: GlslTools, name: str) -> bytes:
    return compile_glsl(text, tools, name=name)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    require("radv")
    # RDNA 3 and RDNA 4 have the same texts.
    monkeypatch.setattr(
        vulkan_target, "compile_glsl", lambda text, tools, name: spirv(text, tools, name)
    )


def target(arch: str) -> VulkanTarget:
    return VulkanTarget(profile(f"vulkan:{arch}"))


@cache
def files(arch: str, text: str) -> Mapping[str, bytes]:
    source = Source("kernel", "comp", "main", text)
    return {ext: step(source) for ext, step in target(arch).stages().items()}


def facts_of(arch: str, kernel: Kernel) -> KernelFacts:
    return kernel_facts(files(arch, render_shader(target(arch).lowering.run(kernel)).text))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160), "q4_1")
    return model_file(spec, tmp_path_factory.mktemp("model"))


def rendered(arch: str, model: Path) -> RenderedPlan:
    front = read_model(model, EmitOptions(), lambda *_: None, f"vulkan:{arch}")
    return target(arch).render(front.plan, front.arena, front.bounds)


@pytest.mark.parametrize("arch", ARCHS)
def test_each_kernel_becomes_the_instructions_it_asks_for(arch: str, model: Path) -> None:
    """None spills or has memory of its own; a step has all kinds of instructions."""
    seen = set()
    for source in rendered(arch, model).sources:
        found = kernel_facts(files(arch, source.text))
        assert (found.spills, found.stack_bytes) == (0, 0), source.name
        assert 0 < (found.registers or 0) <= 256
        for asked, made in ARCHS[arch].items():
            counts = found.instructions
            # A loop of two trips is unrolled.
            assert counts.get(made, 0) >= counts.get(asked, 0), source.name
            seen |= {made} & set(counts)
    assert seen == set(ARCHS[arch].values())


def test_the_pipeline_is_the_one_that_the_runtime_makes(model: Path) -> None:
    """Buffers, then the sizes; a loop's variable is pushed; subgroups of the size asked for."""
    plan = rendered("rdna3", model)
    assert plan.needs.subgroup == target("rdna3").lowering.subgroup
    sizes = {v.name for v in plan.sizes}
    texts = {s.name: s.text for s in plan.sources}
    for launch in set(launches(plan.launches)):
        takes = interface(files("rdna3", texts[launch.source])["spv"])
        assert takes.bindings == len(launch.buffers) + 1
        assert takes.pushed == (not set(launch.scalars) <= sizes)


def test_reads_do_not_wait_for_one_another(model: Path) -> None:
    """In a kernel with matrices too: 16 loads from shared memory for the largest of 16 partial
    results; and two words of weights at once in each of the four bodies for few rows."""
    (text,) = (s.text for s in rendered("rdna3", model).sources if s.name == "ffn_down")
    lines = files("rdna3", text)["amd.asm"].decode().splitlines()
    found = Counter(a.split()[0] for a, b in pairwise(lines) if a.split()[0] == b.split()[0])
    assert found["ds_load_b32"] >= 15
    assert found["buffer_load_b32"] >= 4


@pytest.mark.parametrize("fmt", ["f16", "fp8"])
def test_products_of_halves_are_matrices(fmt: str) -> None:
    found = facts_of("rdna3", product(fmt, 20, 100).kernel)
    assert found.instructions[WMMA_F16] >= found.instructions[MATRIX] > 0
    assert found.spills == 0


def test_attention_in_halves_is_matrices() -> None:
    kernels = attention(Heads(4, 2, 64, attention="f16", split=True)).kernels
    found = [facts_of("rdna3", k) for k in kernels]
    made, asked = ([f.instructions.get(i, 0) > 0 for f in found] for i in (WMMA_F16, MATRIX))
    assert made == asked
    assert sum(made) >= 2
    assert {f.spills for f in found} == {0}


@pytest.mark.parametrize("arch", ["rdna3", "vega20"])
def test_more_values_than_registers_are_spills(arch: str) -> None:
    found = kernel_facts(files(arch, SPILLING))
    assert found.registers == 256
    assert (found.spills or 0) > 4 * (MANY - 256) / 2
    assert (found.stack_bytes or 0) > 0


def test_a_refused_shader_is_named() -> None:
    radv = find_radv("rdna3")
    assert radv is not None
    nothing = bytes.fromhex("03022307 00060100 00000000 01000000 00000000")
    with pytest.raises(BuildError, match="ffn_down: RADV"):
        radv_build.compile_amd(nothing, radv, 32, name="ffn_down")


def test_each_architecture_has_its_own_device() -> None:
    found = {arch: find_radv(arch) for arch in FAMILIES}
    assert {a: r is not None and r.device.split()[-1][:-1] for a, r in found.items()} == {
        arch: names[0] for arch, names in FAMILIES.items()
    }
    assert find_radv("ada") is None
    assert {f"vulkan:{arch}" for arch in FAMILIES} <= {
        profile(f"vulkan:{arch}").name for arch in FAMILIES
    }


def test_without_radv_there_is_spirv_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = target("rdna3").fingerprint()
    monkeypatch.setattr(vulkan_target, "find_radv", lambda arch: None)
    assert list(target("rdna3").stages()) == ["spv"]
    assert target("rdna3").fingerprint() != with_it
    (row,) = (t for t in TOOLCHAINS if t.gives == "builds AMD code")
    assert "Mesa 25" in str(row.find())
    monkeypatch.setattr(radv_build, "find_radv", lambda arch: None)
    assert row.find() is None
    assert ".ci/vulkan-root" in row.mend


def test_a_report_tells_what_the_compiler_counted() -> None:
    made = files("rdna3", SPILLING)
    assert list(made) == ["spv", "amd.asm", "json"]
    told = json.loads(made["json"])
    assert told["statistics"]["Spilled VGPRs"] * 4 == told["spills"]
    assert told["stack_bytes"] * 32 == told["statistics"]["Scratch size"]
    assert "Driver pipeline hash" not in told["statistics"]
    assert "\ts_endpgm\t; " in made["amd.asm"].decode()
