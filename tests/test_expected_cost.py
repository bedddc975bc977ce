"""T(m) from a profile's figures: read once, multiplied by rows, and said to be no measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_rig import Spec, model_file
from models import Tiny
from test_emit import TextTarget

from speccc import device_here
from speccc.api import load
from speccc.cli import run
from speccc.driver import CompileOptions, compile_to
from speccc.expected_cost import expected_document, expected_ms
from speccc.runtime.verify_cost import VerifyCost
from speccc.targets.devices import profile

TRAFFIC = {"weight_bytes": 4_000_000_000, "dots_per_row": 7_000_000_000}
RTX4090 = profile("cuda:rtx4090")


def test_a_step_is_as_long_as_reading_until_the_rows_take_longer() -> None:
    device = RTX4090.device
    assert device is not None
    assert device.bandwidth is not None
    ms = expected_ms(RTX4090, TRAFFIC)
    reading = 4e9 / (device.bandwidth.value * 1e9) * 1000
    row = 2 * 7e9 / (device.rates["i8"].value * 1e12) * 1000
    assert ms[1] == pytest.approx(max(reading, 8 * row))
    assert ms[64] == pytest.approx(max(reading, 64 * row))
    many = expected_ms(RTX4090, {**TRAFFIC, "dots_per_row": 10**13})
    assert many[8] == many[1] == pytest.approx(many[16] / 2)
    assert list(ms.values()) == sorted(ms.values())
    assert VerifyCost.from_table(ms).at(1) == ms[1]


@pytest.mark.parametrize(
    ("name", "activations", "rate"),
    [
        ("cuda:rtx4090", "fp8", "fp8"),
        ("cuda:rtx3090", "fp8", "f16"),
        ("vulkan:rtx4090", "fp8", "f16"),
        ("vulkan:rx7900xtx", "f16", "f16"),
        ("cuda:rtx4090", "bf16", "bf16"),
        ("cuda:rtx4090", "nvfp4", "i8"),
    ],
)
def test_the_rate_is_that_of_what_is_multiplied(name: str, activations: str, rate: str) -> None:
    """As many operations that no width is bound by reading."""
    device = profile(name).device
    assert device is not None
    ms = expected_ms(profile(name), {**TRAFFIC, "dots_per_row": 10**13}, activations)
    assert ms[64] == pytest.approx(64 * 2e13 / (device.rates[rate].value * 1e12) * 1000)


def test_a_product_without_the_rate_has_no_times() -> None:
    assert expected_ms(profile("vulkan:rx7900xtx"), TRAFFIC, "bf16") == {}


@pytest.mark.parametrize("name", ["cuda:sm_90", "vulkan:lavapipe", "sycl:cpu", "metal:m4max"])
def test_without_the_figures_nothing_is_expected(name: str) -> None:
    """An architecture has no bandwidth, and Apple does not say how many operations."""
    assert expected_ms(profile(name), TRAFFIC) == {}
    assert expected_document(profile(name), {}) == {}


def test_an_artifact_says_that_it_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = TextTarget(RTX4090, {"cubin": lambda s: s.name.encode()})
    monkeypatch.setattr(device_here, "device_target", lambda name: target)
    path, artifact = model_file(Spec(Tiny(), "q4_1"), tmp_path), tmp_path / "m.speccc"
    assert run(["compile", str(path), "--target", "cuda:rtx4090", "-o", str(artifact)]) == 0
    assert "note: T(m) is not measured" in capsys.readouterr().err
    options = CompileOptions(target="cuda:rtx4090")
    compile_to(path, artifact, options)
    model = load(artifact)
    told = model.manifest["verify_cost"]
    assert told["source"] == "not measured: what the figures of cuda:rtx4090 allow"
    assert told["expected_ms"] == model.manifest["verify_ms"]
    assert model._facts.verify_ms[1] > 0
    assert json.dumps(told)
    compile_to(path, artifact, replace(options, measure=False))
    assert load(artifact).manifest["verify_cost"] == {}
