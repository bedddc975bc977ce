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
from speccc.device_here import device_target, profile_of_device
from speccc.device_step import measured_here
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError, UnsupportedError
from speccc.runtime.artifact_file import read_entries, write_entries
from speccc.runtime.devices import vulkan_session
from speccc.runtime.devices.built_kernels import read_plan
from speccc.runtime.devices.launch_plan import FILE, read_launch_plan
from speccc.runtime.devices.vulkan_session import VulkanSession
from speccc.runtime.devices.vulkan_worker import VulkanWorker, WorkerError
from speccc.runtime.session import TOPS
from speccc.runtime.step_spec import TOP, check_plan


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


def test_a_step_of_before_the_largest_logits_fits_its_plan() -> None:
    """It has one size and two buffers fewer; half of each is refused."""
    model = model_of(NAMES[0])
    plan, spec = read_plan(model._entries.data, ""), model._spec
    older = replace(plan, sizes=tuple(s for s in plan.sizes if s != TOP))
    bare = replace(spec, top=0, bufs=tuple(b for b in spec.bufs if b.name not in TOPS))
    check_plan(spec, plan)
    check_plan(bare, older)
    for one, other in ((spec, older), (bare, plan)):
        with pytest.raises(ValueError, match=f"the sizes of {FILE} are others"):
            check_plan(one, other)


def document() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(bytes(model_of(NAMES[0])._entries.data[FILE]))
    return record


def first(d: dict[str, Any]) -> Any:
    """The first launch, which stands before the loop."""
    return d["launches"][0]


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no kernels": (lambda d: d.update(kernels=[]), "a launch names token_embd"),
    "one twice": (lambda d: d["kernels"].append(d["kernels"][0]), "19 launches of 11 kernels"),
    "a kernel that is not there": (lambda d: first(d).update(kernel="x"), "a launch names x"),
    "no launches": (lambda d: d.update(launches=[]), "0 launches"),
    "too many": (lambda d: d["launches"][1].update(extent=60000), "launches of"),
    "half a matrix": (lambda d: d["needs"].update(matrix=[8, 8]), "a matrix of"),
    "an empty one": (lambda d: d["needs"].update(matrix=[8, 0, 8]), "a matrix of"),
    "negative workers": (lambda d: d["needs"].update(workers=-1), "is no count"),
    "a device with a line's end": (lambda d: d["needs"].update(device="a\n"), "is no device"),
    "a subgroup in words": (lambda d: d["needs"].update(subgroup="8"), "is no count"),
    "no needs": (lambda d: d.pop("needs"), "'needs' is missing"),
    "no list": (lambda d: d.update(launches={"a": 1}), "damaged"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_launch_plan_is_refused(how: str) -> None:
    record, (change, says) = document(), BROKEN[how]
    read_launch_plan(record, "")
    change(record)
    with pytest.raises(InputError, match=says):
        read_launch_plan(record, "")


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
        read_plan(entries, "m.speccc")
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
    needs = replace(read_plan(model._entries.data, "").needs, subgroup=8)
    device = session_of(NAMES[0]).device
    with pytest.raises(UnsupportedError, match="matrices of 16x16x16 of s8, which llvmpipe"):
        vulkan_session._check_device(needs, device)
    with pytest.raises(UnsupportedError, match="matrices of 16x16x16 of f16, which llvmpipe"):
        vulkan_session._check_device(replace(needs, matrix=None, halves=needs.matrix), device)
    vulkan_session._check_device(replace(needs, matrix=(8, 8, 8), halves=(8, 8, 8)), device)


def test_a_device_that_is_not_there_is_named() -> None:
    model = model_of(NAMES[0])
    plan, data = read_plan(model._entries.data, ""), model._entries.data
    plan = replace(plan, needs=replace(plan.needs, device="GeForce"))
    with pytest.raises(WorkerError, match="no Vulkan device is called GeForce"):
        VulkanSession(
            model._spec, plan, {}, data["weights"], data["vectors"].view(np.float32), context=64
        )


def test_a_bare_target_is_the_device_here() -> None:
    assert device_target("vulkan").name == LAVAPIPE
    known = {
        "AMD Radeon RX 7900 XTX (RADV NAVI31)": "vulkan:rx7900xtx",
        "Radeon 8060S Graphics (RADV STRIX_HALO)": "vulkan:strixhalo",
        "Voodoo 2": "vulkan:any",
    }
    assert {d: profile_of_device("vulkan", d) for d in known} == known


def test_the_target_of_any_device_needs_no_matrix(tmp_path: Path) -> None:
    """Its dots are exact. It trusts the device's fma, which here rounds twice: a class of its own.

    Rounding may turn a code of an activation into the next one, by 1/127 of the largest.
    """
    which, path = NAMES[0], tmp_path / "m.speccc"
    compile_to(file_of(which), path, CompileOptions(target="vulkan:any"))
    model = load(path)
    assert set(map(int, model.manifest["verify_ms"])) >= {1, 2, 4, 8, 16}
    needs = read_plan(model._entries.data, "").needs
    assert needs.matrix is None
    assert needs.subgroup == 0
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


def test_what_a_buffer_of_the_device_does_not_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = VulkanWorker.query
    monkeypatch.setattr(VulkanWorker, "query", lambda w: replace(query(w), buffer_bytes=5_000))
    with pytest.raises(InputError, match=r"takes \d+ bytes, a buffer of llvmpipe.* 5000: "):
        model_of(NAMES[0]).session(context=64)


def test_without_vulkan_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speccc.vulkan_home.find_vulkan", lambda: None)
    with pytest.raises(UnsupportedError, match="apt install gcc libvulkan-dev"):
        model_of(NAMES[0]).session(context=64)
