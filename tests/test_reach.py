"""Weights past what 32 bits reach: kernels see windows of them, and the bits stay the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_rig import compiled, model_file, same_bits, unmeasured
from emulation.require import require
from gpu_fakes import Host
from graph_models import config_of
from launch_calls import calls
from metal_fake import FakeMetal
from models import Tiny
from test_drivers import SPECS, installed
from test_emit import TextTarget
from test_numerics import tokens_of

from speccc import device_here, reach
from speccc.api import Model
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError, UnsupportedError
from speccc.ir.build_llama import build_llama, plain
from speccc.ir.formats import FORMATS
from speccc.ir.graph import Graph
from speccc.ir.plan import phases
from speccc.ir.types import TensorType
from speccc.passes.graph_pipeline import optimize
from speccc.passes.lower_graph import LowerGraph
from speccc.passes.plan_memory import PlanMemory
from speccc.reach import REACH, lower_for
from speccc.runtime.devices.launch_plan import read_launch_plan
from speccc.targets.devices import profile
from speccc.targets.launch_plan import document

SPEC = SPECS["q4_1, kv f16"]
LARGE = Tiny(vocab=32000, hidden=4096, layers=32, heads=32, kv_heads=32, ffn=11008, context=4096)
"""The shape of a model of 7 billion weights; none of them is ever made."""


def shapes(t: Tiny) -> dict[str, tuple[int, ...]]:
    """Of the tensors of a tied model, by GGUF name."""
    q, kv = t.heads * t.dim, t.kv_heads * t.dim
    layer = {
        "attn_norm": (t.hidden,), "attn_q": (q, t.hidden), "attn_k": (kv, t.hidden),
        "attn_v": (kv, t.hidden), "attn_output": (t.hidden, q), "ffn_norm": (t.hidden,),
        "ffn_gate": (t.ffn, t.hidden), "ffn_up": (t.ffn, t.hidden), "ffn_down": (t.hidden, t.ffn),
    }  # fmt: skip
    out = {f"blk.{n}.{k}.weight": s for n in range(t.layers) for k, s in layer.items()}
    return {"token_embd.weight": (t.vocab, t.hidden), "output_norm.weight": (t.hidden,), **out}


def large_graph(fmt: str, tiny: Tiny = LARGE) -> Graph:
    types = {
        name: TensorType(shape, plain(FORMATS["f32" if len(shape) == 1 else fmt]))
        for name, shape in shapes(tiny).items()
    }
    return optimize(build_llama(config_of(tiny), types))


@pytest.fixture(scope="module")
def large() -> Graph:
    return large_graph("q8_0")


def test_the_windows_of_a_large_model_are_its_matrices(large: Graph) -> None:
    """Every matrix is a window in some launch, where the host packs it; none is past 32 bits."""
    lowered = lower_for("vulkan:any", LowerGraph(), large)
    assert lowered.weights.matrix_bytes > 1 << 32
    arena = PlanMemory({lowered.sizes["m"]: 64}).run(lowered.plan)
    kernels = {k.name: k for k in phases(lowered.plan.body)}
    rendered = TextTarget().render(lowered.plan, arena, {})
    plan = read_launch_plan(json.loads(json.dumps(document(rendered))), "")
    sizes = {**dict.fromkeys(plan.sizes, 16), "weight_bytes": lowered.weights.matrix_bytes}
    seen: dict[int, int] = {}
    for call in calls(plan, sizes):
        assert max(call.scalars) < 1 << 31
        assert "weights" not in call.launch.buffers
        for name, at in call.windows.items():
            seen[at] = plan.buffers[name].nbytes(sizes)
    assert seen == {s.offset: s.matrix.nbytes for s in lowered.weights.matrices}
    assert all(at % 256 == 0 for at in seen)
    assert max(seen.values()) < 1 << 31
    assert set(kernels) == set(plan.entries)


def windows(target: str, graph: Graph) -> int:
    return sum(b.window is not None for b in lower_for(target, LowerGraph(), graph).plan.bufs)


def test_only_what_32_bits_do_not_reach_is_windowed(large: Graph) -> None:
    assert {windows(t, large) for t in ("cpu", "cuda:sm_90", "rocm:gfx1100", "")} == {0}
    small = large_graph("q8_0", replace(LARGE, layers=1, ffn=64, vocab=320))
    assert {t: windows(t, small) for t in REACH} == dict.fromkeys(REACH, 0)
    assert {t: windows(t, large) > 0 for t in REACH} == dict.fromkeys(REACH, True)


def test_a_matrix_that_is_too_large_alone_is_named() -> None:
    wide = replace(LARGE, layers=1, vocab=150_000)
    with pytest.raises(UnsupportedError, match=r"sycl:bmg: token_embd.weight has 24\d+ bytes, it"):
        lower_for("sycl:bmg", LowerGraph(), large_graph("f32", wide))


# ------------------------------------------------------------------------------ whole models


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets that reach no further than the largest matrix."""
    for backend in REACH:
        monkeypatch.setitem(reach.REACH, backend, 12_000)


def same_as_the_cpu(model: Model) -> None:
    """A prompt, a tree of which a path is kept, and a step after it."""
    ours, theirs = model.session(context=48), compiled(SPEC).session(context=48)
    tokens = tokens_of(SPEC.tiny, 16)
    for s in (ours, theirs):
        s.prefill(tokens[:5])
    assert same_bits(ours.forward(tokens[5:9]), theirs.forward(tokens[5:9]))
    for s in (ours, theirs):
        s.pick(tokens[9:13], parents=[-1, 0, 0, 2])
        s.keep([0, 2, 3])
    assert same_bits(ours.forward(tokens[13:15]), theirs.forward(tokens[13:15]))


@pytest.mark.usefixtures("short")
def test_a_windowed_model_on_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, artifact = model_file(SPEC, tmp_path), tmp_path / "m.speccc"
    compiled(SPEC)
    made: list[Any] = []

    class Windowed(TextTarget):
        def render(self, plan: Any, *rest: Any) -> Any:
            made.append(plan)
            return super().render(plan, *rest)

    target = Windowed(profile("metal:m4"), {"metal": lambda s: s.name.encode()})
    monkeypatch.setattr(device_here, "device_target", lambda name: target)
    compile_to(path, artifact, CompileOptions(target="metal:m4", measure=False))
    windows = [b.buf.name for b in made[0].bufs if b.window is not None]
    assert len(windows) == 8, "an embedding, its use as head, and six matrices of a layer"
    host = Host({k.name: k for k in phases(made[0].body)})
    installed("metal", FakeMetal(host), monkeypatch)
    import speccc

    same_as_the_cpu(speccc.load(artifact))


@pytest.mark.usefixtures("short")
def test_a_windowed_model_on_vulkan(tmp_path: Path) -> None:
    require("vulkan")
    model = unmeasured(model_file(SPEC, tmp_path), target="vulkan:lavapipe")
    plan = json.loads(bytes(model._entries.data["launch-plan.json"]))
    assert any("layer" in str(b.get("window")) for b in plan["buffers"])
    same_as_the_cpu(model)


# ---------------------------------------------------------------------------------- refusals

PLAN: Any = {
    "needs": {"device": "", "subgroup": 0, "matrix": None, "workers": 0},
    "sizes": ["weight_bytes"],
    "arena_bytes": 0,
    "buffers": [
        {"name": "weights", "dtype": "u8", "shape": ["weight_bytes"], "role": "weights"},
        {"name": "w", "dtype": "u8", "shape": [256], "role": "weights", "window": "i * 512 + 256"},
    ],
    "kernels": [{"name": "k", "entry": "k"}],
    "launches": [
        {
            "loop": "i",
            "extent": 2,
            "body": [
                {
                    "kernel": "k",
                    "buffers": ["w"],
                    "scalars": ["i"],
                    "scalar_type": "i32",
                    "workgroups": {"most": 1, "threads": 32, "all_resident": False},
                }
            ],
        }
    ],
}


def test_windows_move_with_a_loop_and_stay_inside() -> None:
    plan = read_launch_plan(PLAN, "")
    assert [c.windows for c in calls(plan, {"weight_bytes": 1024})] == [{"w": 256}, {"w": 768}]
    with pytest.raises(InputError, match="buffer w lies outside the weights"):
        list(calls(plan, {"weight_bytes": 1023}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["buffers"][1].update(role="state"), "w is no part of the weights"),
        (lambda d: d["buffers"][0].update(window=0), "weights is no part of the weights"),
        (lambda d: d["buffers"][1].update(window="j"), "j is no size"),
        (lambda d: d["buffers"].pop(0), "weights that are not there"),
    ],
)
def test_a_damaged_window_is_refused(change: Callable[[Any], object], says: str) -> None:
    damaged = copy.deepcopy(PLAN)
    change(damaged)
    with pytest.raises(InputError, match=says):
        read_launch_plan(damaged, "")


def test_numbers_past_32_bits_are_not_handed_to_kernels() -> None:
    plan = read_launch_plan(PLAN, "")
    launch = replace(plan.launches()[0], scalars=("weight_bytes",))
    bare = replace(plan, steps=(replace(launch, buffers=("weights",)),))
    (call,) = calls(bare, {"weight_bytes": 5 << 30})
    assert call.scalars == (2**31 - 1,)
    assert np.int32(call.scalars[0]) > 0
