"""Whole models whose floats go to matrix engines: near golden, and lossless on every device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import Spec, model_file, same_bits, unmeasured
from emulation.metal_stand_in import stand_in
from emulation.require import require
from emulation.sycl_model import SyclModel
from metal_step import MetalModel
from models import Tiny
from table_session import ScriptedDrafter, TableTokens
from test_numerics import PlanSession, tokens_of

from speccc.emit import EmitOptions, read_model
from speccc.runtime.controller import FixedController
from speccc.runtime.generate import Generation, collect, generate
from speccc.runtime.session import StepSession
from speccc.targets.devices import PROFILES
from speccc.targets.registry import target, target_names

TINY = Tiny(seed=11, hidden=96, heads=6, kv_heads=3, ffn=160, layers=1)
SPECS = {
    "sycl": Spec(TINY, "bf16", activations="bf16"),
    "metal": Spec(TINY, "fp8", kind="llama", activations="fp8"),
    "vulkan": Spec(replace(TINY, tied=False), "f16", activations="f16"),
}
UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
"""How far rounding moves an activation, at most, beside its size."""
PRODUCTS = ("attn_q_k_v", "attn_output", "ffn_gate_up", "ffn_down", "output")
LETTERS = TableTokens([bytes([n % 256]) for n in range(300)])
Open = Callable[[Spec, Path, pytest.MonkeyPatch], StepSession]


def on_sycl(spec: Spec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StepSession:
    path = model_file(spec, folder)
    return SyclModel(path, target("sycl:bmg"), activations=spec.activations).session()


def on_metal(spec: Spec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StepSession:
    options = EmitOptions(activations=spec.activations)
    front = read_model(model_file(spec, folder), options, lambda *_: None, "metal")
    return MetalModel(front, target("metal:m4"), stand_in(folder)).session(monkeypatch)


def on_vulkan(spec: Spec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StepSession:
    path = model_file(spec, folder)
    model = unmeasured(path, target="vulkan:lavapipe", activations=spec.activations)
    session = model.session(context=64, threads=2)
    assert isinstance(session, StepSession)
    return session


OPEN: dict[str, Open] = {"sycl": on_sycl, "metal": on_metal, "vulkan": on_vulkan}


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda s: s.fmt)
def test_every_profile_serves_every_class(spec: Spec, tmp_path: Path) -> None:
    """By a matrix instruction in all products of weights, or in golden's order."""
    options = EmitOptions(activations=spec.activations)
    front = read_model(model_file(spec, tmp_path), options, lambda *_: None)
    archs = (n for n in target_names() if PROFILES[n].device is None)
    for name in (n for n in archs if n.split(":")[0] in OPEN):
        chosen = target(name)
        assert chosen.unsupported(front.plan) is None, name
        made = chosen.render(front.plan, front.arena, front.bounds).sources
        marked = [s.name for s in made if "no matrix instruction" not in s.text[:200]]
        # An fp8 model's head is of another type; its layers' codes are multiplied as halves.
        held, products = ("f16", PRODUCTS[:-1]) if spec.fmt == "fp8" else (spec.fmt, PRODUCTS)
        engine = held in {f.a.name for f in chosen.lowering.floats}
        assert tuple(marked) == (products if engine else ()), name


@pytest.mark.parametrize("backend", OPEN)
def test_a_model_on_its_engine(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits near golden's and alike for any number of rows; drafts change no token.

    Where an engine's sum makes an activation round the other way, it moves by one unit.
    """
    require(backend)
    spec = SPECS[backend]
    session = OPEN[backend](spec, tmp_path, monkeypatch)
    prompt = tokens_of(spec.tiny, 9)
    together = session.forward(prompt)
    (tmp_path / "golden").mkdir()
    right = PlanSession(spec, tmp_path / "golden").forward(prompt)
    unit = UNITS[spec.activations]
    assert np.abs(together - right).max() <= unit * np.abs(right).max()
    assert not same_bits(together, right)  # an engine made them, in chunks

    session.truncate(0)
    alone = [session.forward([t])[0] for t in prompt]
    assert same_bits(together, np.stack(alone))

    def generated(drafter: ScriptedDrafter | None) -> Generation:
        session.truncate(0)
        options = {"max_tokens": 8, "drafter": drafter, "controller": FixedController(4)}
        return collect(generate(session, LETTERS, prompt[:5], **options))

    plain = generated(None)
    for branches in (0, 1):
        drafter = ScriptedDrafter(plain.tokens, lambda at: at in (2, 5), spec.tiny.vocab, branches)
        drafted = generated(drafter)
        assert drafted.tokens == plain.tokens
        assert drafted.stats.rounds < plain.stats.rounds
    session.close()
