"""Accesses of shaders under Vulkan's memory model: barriers order them, nothing waits for one."""

from __future__ import annotations

import re

import pytest
from emulation.require import require
from fragment_rig import s8
from proof_program import proof_program

from speccc.ir.fragment import MmaShape
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.targets import glsl_build
from speccc.targets.glsl_build import GlslTools, compile_glsl, disassemble_spirv, find_glsl_tools
from speccc.targets.spirv_memory import ordered_by_barriers
from speccc.targets.vulkan.render import render_shader

SHAPE = s8(16, 16, 16)
ACCESS = re.compile(
    r"(?m)^.*Op(?:Load|Store|CooperativeMatrix(?:Load|Store)KHR) (?:%\w+ )?(%\w+)(.*)$"
)


@pytest.fixture(scope="module")
def tools() -> GlslTools:
    require("vulkan")
    found = find_glsl_tools()
    assert found is not None
    return found


def text(shape: MmaShape | None) -> str:
    return render_shader(DotToFragment(shape, 32, 2, few=8).run(proof_program(96, 32).kernel)).text


def shared_pointers(shown: str) -> set[str]:
    kinds = "|".join(re.findall(r"(%\w+) = OpTypePointer (?:Workgroup|StorageBuffer) ", shown))
    made = rf"(%\w+) = Op(?:Variable|AccessChain) (?:{kinds}) "
    return set(re.findall(made, shown))


def test_barriers_alone_order_what_matrices_share(
    tools: GlslTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: as glslang makes it, shared memory is made visible at each access."""
    shown = disassemble_spirv(compile_glsl(text(SHAPE), tools), tools)
    assert "OpMemoryModel Logical Vulkan" in shown
    assert "MakePointer" not in shown
    pointers = shared_pointers(shown)
    accesses = [a for a in ACCESS.finditer(shown) if a[1] in pointers]
    assert len(accesses) > 20
    assert all(a[2].endswith("NonPrivatePointer") for a in accesses)
    (semantics,) = set(re.findall(r"OpControlBarrier %\w+ %\w+ (%\w+)", shown))
    (value,) = re.findall(rf"{semantics} = OpConstant %\w+ (\d+)\n", shown)
    assert int(value) == 0x8 | 0x40 | 0x100 | 0x2000 | 0x4000
    monkeypatch.setattr(glsl_build, "ordered_by_barriers", lambda module: module)
    before = disassemble_spirv(compile_glsl(text(SHAPE), tools), tools)
    assert before.count("MakePointerVisible") > 20
    assert len(ACCESS.findall(before)) == len(ACCESS.findall(shown))


def test_other_memory_models_are_left_alone(tools: GlslTools) -> None:
    module = compile_glsl(text(None), tools)
    assert "OpMemoryModel Logical GLSL450" in disassemble_spirv(module, tools)
    assert ordered_by_barriers(module) is module


def test_what_is_ordered_stays_so(tools: GlslTools) -> None:
    """Twice is once, up to a constant of the same value."""
    once = compile_glsl(text(SHAPE), tools)
    again = ordered_by_barriers(once)
    glsl_build.validate_spirv(again, tools)
    assert len(again) == len(once) + 16
