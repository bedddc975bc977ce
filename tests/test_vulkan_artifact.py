"""Artifacts for Vulkan: equal when made twice, checked when read, refused where they cannot run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_rig import (
    same_bits,
    unmeasured,
)
from emulation.require import require
from hypothesis import given, settings
from hypothesis import strategies as st
from test_numerics import tokens_of
from vulkan_rig import LAVAPIPE, NAMES, SPECS, file_of, model_of, session_of

from speccc.api import load
from speccc.device_step import (
    WEIGHTS_MOST,
    build_device_step,
    device_target,
    measured_here,
    profile_of_device,
)
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError, UnsupportedError
from speccc.runtime.artifact_file import read_entries, write_entries
from speccc.runtime.devices import vulkan_session
from speccc.runtime.devices.vulkan_launches import FILE, parse_launches, read_launches
from speccc.runtime.devices.vulkan_session import VulkanSession
from speccc.runtime.devices.vulkan_worker import WorkerError


@pytest.fixture(scope="module", autouse=True)
def _vulkan() -> None:
    require("vulkan")


# ------------------------------------------------------------------------------------- artifacts


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "m.speccc"
    kept = model_of(NAMES[0])._entries
    manifest = {k: v for k, v in kept.manifest.items() if k not in ("schema", "entries")}
    write_entries(path, manifest, dict(kept.data))
    return path


def changed(path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """An entry changed by one who can write hashes."""
    kept = read_entries(path)
    manifest = {k: v for k, v in kept.manifest.items() if k not in ("schema", "entries")}
    write_entries(path, manifest, {**kept.data, name: change(bytes(kept.data[name]))})


def test_artifacts_of_two_compilations_are_equal(artifact: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.speccc"
    compile_to(file_of(NAMES[0]), again, CompileOptions(target=LAVAPIPE, measure=False))
    one, two = (read_entries(p).data for p in (artifact, again))
    assert {n: bytes(d) for n, d in one.items()} == {n: bytes(d) for n, d in two.items()}


@pytest.mark.parametrize("name", [FILE, "kernels/pick.spv"])
def test_code_that_is_not_the_steps_is_refused(artifact: Path, name: str) -> None:
    changed(artifact, name, lambda raw: raw.replace(b"1", b"2", 1).replace(b"\x00", b"\x01", 1))
    with pytest.raises(InputError, match=r"does not belong|is damaged"):
        load(artifact)


def document() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(bytes(model_of(NAMES[0])._entries.data[FILE]))
    return record


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "no kernels": lambda d: d.update(kernels=[]),
    "one twice": lambda d: d["kernels"].append(d["kernels"][0]),
    "a folder in a name": lambda d: d["kernels"][0].update(name="../x"),
    "a kernel that is not there": lambda d: d["order"][0].update(kernels=[99]),
    "no rounds": lambda d: d["order"][0].update(count=0),
    "too many launches": lambda d: d["order"][1].update(count=60000),
    "half a matrix": lambda d: d.update(matrix=[8, 8]),
    "no workers": lambda d: d.update(workers=0),
    "a crooked offset": lambda d: d["kernels"][1]["bindings"][0].update(offset=4),
    "a negative size": lambda d: d["kernels"][1]["bindings"][0].update(each=-1),
    "no list": lambda d: d.update(order={}),
    "a flag that is a number": lambda d: d["kernels"][0].update(pushed=1),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_launch_document_is_refused(how: str) -> None:
    record = document()
    parse_launches(record)
    BROKEN[how](record)
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_launches(record)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_other_document_is_refused_in_one_line(data: st.DataObject) -> None:
    """A value anywhere in the document becomes any other: it is read, or refused as InputError."""
    record = document()
    at: Any = record
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(JSON)
    entries = {**model_of(NAMES[0])._entries.data, FILE: json.dumps(record).encode()}
    said = "m.speccc"
    try:
        read_launches(entries, "m.speccc")
    except InputError as error:
        said = str(error)
    assert "m.speccc" in said
    assert "\n" not in said


# -------------------------------------------------------------------------------------- refusals


def test_a_device_without_the_instruction_is_refused() -> None:
    """An artifact for RDNA 3: its matrices are 16x16x16, its subgroups of 32."""
    target = device_target("vulkan:rdna3")
    model = unmeasured(file_of(NAMES[0]), target=target.name)
    data = model._entries.data
    vectors = data["vectors"].view(np.float32)
    assert measured_here(target, model._spec, data, data["weights"], vectors, 64) is None
    with pytest.raises(UnsupportedError, match="subgroups of 32, which llvmpipe"):
        model.session(context=64)
    launches = read_launches(model._entries.data, "")
    small = tuple(replace(k, subgroup=8) for k in launches.kernels)
    with pytest.raises(UnsupportedError, match="matrices of 16x16x16, which llvmpipe"):
        vulkan_session._check_device(replace(launches, kernels=small), session_of(NAMES[0]).device)


def test_a_device_that_is_not_there_is_named() -> None:
    model = model_of(NAMES[0])
    launches = replace(read_launches(model._entries.data, ""), device="GeForce")
    data = model._entries.data
    with pytest.raises(WorkerError, match="no Vulkan device is called GeForce"):
        VulkanSession(
            model._spec, launches, [], data["weights"], data["vectors"].view(np.float32), context=64
        )


def test_a_bare_target_is_the_device_here() -> None:
    assert device_target("vulkan").name == LAVAPIPE
    known = {
        "AMD Radeon RX 7900 XTX (RADV NAVI31)": "vulkan:rx7900xtx",
        "Radeon 8060S Graphics (RADV STRIX_HALO)": "vulkan:strixhalo",
        "Voodoo 2": "vulkan:any",
    }
    assert {d: profile_of_device(d, is_cpu=False) for d in known} == known


def test_the_target_of_any_device_needs_no_matrix(tmp_path: Path) -> None:
    """Its dots are exact. It trusts the device's fma, which here rounds twice: a class of its own.

    Rounding may turn a code of an activation into the next one, by 1/127 of the largest.
    """
    which, path = NAMES[0], tmp_path / "m.speccc"
    compile_to(file_of(which), path, CompileOptions(target="vulkan:any"))
    model = load(path)
    assert set(map(int, model.manifest["verify_ms"])) >= {1, 2, 4, 8, 16}
    launches = read_launches(model._entries.data, "")
    assert launches.matrix is None
    assert {k.subgroup for k in launches.kernels} == {0}
    session = model.session(context=64)
    tokens = tokens_of(SPECS[which].tiny, 10)
    rows = session.forward(tokens)
    expected = session_of(which).forward(tokens)
    session_of(which).truncate(0)
    assert not same_bits(rows, expected)
    assert np.abs(rows - expected).max() <= np.abs(expected).max() / 127
    session.truncate(3)
    assert same_bits(session.forward(tokens[3:5]), rows[3:5])


def test_options_of_the_cpu_are_refused(tmp_path: Path) -> None:
    options = CompileOptions(target=LAVAPIPE, isa="avx2")
    with pytest.raises(UnsupportedError, match="--isa avx2: it is for --target cpu"):
        compile_to(file_of(NAMES[0]), tmp_path / "m.speccc", options)


def test_what_32_bit_numbers_do_not_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan_session, "MOST_ELEMENTS", 50_000)
    with pytest.raises(InputError, match=r"has \d+ elements, kernels count to 50000: .*\(-c\)"):
        model_of(NAMES[0]).session(context=512)
    target = device_target(LAVAPIPE)
    lowered: Any = None
    with pytest.raises(UnsupportedError, match="the weights are 2147483648 bytes"):
        build_device_step(target, lowered, lowered, {}, WEIGHTS_MOST + 1, lambda *_: None)


def test_without_vulkan_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speccc.runtime.devices.vulkan_home.find_vulkan", lambda: None)
    with pytest.raises(UnsupportedError, match="apt install gcc libvulkan-dev"):
        model_of(NAMES[0]).session(context=64)
