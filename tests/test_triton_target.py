"""CUDA and ROCm as targets: one kernel a step, built for every chip."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from cpu_rig import Spec, model_file, single
from golden_text import check_golden
from models import Tiny
from proof_program import proof_program

from speccc.emit import EmitOptions, Front, read_model
from speccc.ir.tile import Kernel, ScaledDot, Share, walk
from speccc.targets.base import RenderedPlan, ToolMissingError
from speccc.targets.build_error import BuildError
from speccc.targets.launch_plan import document, launches_per_step
from speccc.targets.registry import target, target_names
from speccc.targets.report import kernel_facts
from speccc.targets.triton.target import TritonTarget

SPEC = Spec(Tiny(seed=8, layers=2), "q4_1")
NAMES = [n for n in target_names() if n.partition(":")[0] in ("cuda", "rocm")]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    path = model_file(SPEC, tmp_path_factory.mktemp("model"))
    return read_model(path, EmitOptions(), lambda *_: None)


def rendered(front: Front, name: str) -> tuple[TritonTarget, RenderedPlan]:
    made = target(name)
    assert isinstance(made, TritonTarget)
    return made, made.render(front.plan, front.arena, front.bounds)


def stages(front: Front, name: str) -> Mapping[str, bytes]:
    made, plan = rendered(front, name)
    files = {e: f(plan.sources[0]) for e, f in made.stages().items()}
    assert list(files)[-1] == "json"
    return files


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_one_launch(name: str, front: Front) -> None:
    """Its arguments are the text's own, in order; all workers must be resident."""
    made, plan = rendered(front, name)
    assert made.unsupported(front.plan) is None
    assert launches_per_step(plan) == 1
    (source,) = plan.sources
    told: Any = document(plan)["launches"]
    launch = told[0]
    names = [*launch["buffers"], *launch["scalars"]]
    assert f"def step({', '.join(names)}):" in source.text
    assert {p.name for p in plan.places} == set(launch["buffers"])
    assert launch["workgroups"]["all_resident"]
    assert name in source.text.partition("\n")[0]


@pytest.mark.parametrize("name", ["cuda:sm_90"])
def test_a_step_for_cuda(name: str, front: Front) -> None:
    """Matrix instructions, and nothing spilled."""
    pytest.importorskip("triton")
    facts = kernel_facts(stages(front, name))
    assert facts.instructions["mma.sync"] >= 8  # q, k, v, two of ffn_gate_up, three more
    assert facts.spills == 0
    assert 0 < (facts.registers or 0) <= 255


@pytest.mark.parametrize(
    ("name", "multiply"),
    [
        ("rocm:gfx942", "v_mfma_i32_16x16x32_i8"),
        ("rocm:gfx1100", "v_wmma_i32_16x16x16_iu8"),
    ],
)
def test_a_step_for_rocm(name: str, multiply: str, front: Front) -> None:
    """The same text, tiles of another width; on the stack a phase's way back, no more.

    A phase that took its pointers for numbers of each lane would look for the first lane's again
    in each access to a buffer, 700 times in this text.
    """
    pytest.importorskip("triton")
    files = stages(front, name)
    facts = kernel_facts(files)
    assert facts.instructions[multiply] >= 8
    assert facts.registers
    assert facts.spills == 0
    assert facts.stack_bytes is not None
    assert facts.stack_bytes <= 16
    assert files["amdgcn"].count(b"v_readfirstlane") <= 100


def test_without_triton(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    real = builtins.__import__

    def no_triton(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "triton":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_triton)
    made, plan = rendered(front, "cuda:sm_86")
    with pytest.raises(ToolMissingError, match=r"pip install 'speccc\[cuda\]'"):
        made.stages()["cubin"](plan.sources[0])


def test_a_source_of_another_target_is_refused(front: Front) -> None:
    made, plan = rendered(front, "cuda:sm_80")
    with pytest.raises(BuildError, match="another target"):
        made.stages()["ptx"](replace(plan.sources[0], detail=None))


def test_what_has_no_form_is_named() -> None:
    """Codes of other widths have no product here."""
    p = proof_program(64, 32)
    shares = [s for s in p.kernel.body if isinstance(s, Share)]
    odd = next(t for t in walk(shares[0].body) if isinstance(t, ScaledDot))
    wider = replace(odd.w, format=replace(odd.w.format, code_bits=6))
    body = (*p.kernel.body, replace(odd, w=wider))
    plan = single((Kernel("odd", p.kernel.bufs, p.kernel.scalars, body),))
    why = target("cuda:sm_90").unsupported(plan)
    assert why == "triton: no form of ScaledDot of 6 bit codes"


GOLDEN = ("ffn_down", "attn_softmax", "step")


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("chip", ["cuda:sm_90", "rocm:gfx942"])
def test_golden_texts(name: str, chip: str, front: Front, request: pytest.FixtureRequest) -> None:
    """A product, a reduction and the loop over layers, to be read."""
    text = rendered(front, chip)[1].sources[0].text
    parts = re.split(r"(?=@triton\.jit)", text)
    (found,) = [p for p in parts if f"def {name}(" in p]
    backend = chip.partition(":")[0]
    check_golden(f"triton/{backend}_{name}.py.txt", found.rstrip() + "\n", request)
