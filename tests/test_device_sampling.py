"""Sampling by the largest logits that a device's step finds, where no test file has a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cpu_rig import Spec, model_file
from emulation.metal_stand_in import stand_in
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from gpu_fakes import Host
from metal_step import MetalModel
from models import Tiny
from sampling_rig import Sampled
from test_drivers import FAKES, Rig, installed
from triton_driver import InterpretedModel

from speccc.emit import EmitOptions, Front, read_model
from speccc.runtime.devices import drivers
from speccc.targets.registry import target
from speccc.targets.triton.target import TritonTarget

SPEC = Spec(Tiny(seed=8, hidden=32, heads=2, kv_heads=1, ffn=64, layers=1), "q4_1")


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return read_model(model_file(SPEC, tmp_path), EmitOptions(kv=SPEC.kv), lambda *_: None)


@pytest.mark.parametrize("backend", FAKES)
def test_every_driver(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the vendor's call, recorded steps among them."""
    rig = Rig(SPEC, tmp_path)
    installed(backend, FAKES[backend][1](Host(rig.kernels)), monkeypatch)
    Sampled(rig.session(drivers.open_driver(backend)), SPEC).check()


def test_metal(front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("metal")
    model = MetalModel(front, target("metal:m4"), stand_in(tmp_path))
    Sampled(model.session(monkeypatch), SPEC).check()


def test_triton(front: Front) -> None:
    require("triton")
    made = target("cuda:sm_90")
    assert isinstance(made, TritonTarget)
    few = replace(made, shape=replace(made.shape, fill=1))
    with TritonMachine(timeout_s=120) as machine:
        Sampled(InterpretedModel(front, few, machine).session()[0], SPEC).check()
