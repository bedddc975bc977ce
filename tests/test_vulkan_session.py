"""Whole models on Vulkan: a session in the CPU's driver equals the golden model bit for bit."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_rig import (
    Spec,
    compiled,
    compiled_smollm2,
    model_file,
    same_bits,
    smollm2_file,
    unmeasured,
)
from emulation.require import require
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Tiny
from table_session import ScriptedDrafter
from test_numerics import PlanSession, tokens_of

from speccc.api import Model, load
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
from speccc.runtime.controller import FixedController
from speccc.runtime.devices import vulkan_session
from speccc.runtime.devices.vulkan_launches import FILE, code_entries, parse_launches, read_launches
from speccc.runtime.devices.vulkan_session import VulkanSession
from speccc.runtime.devices.vulkan_worker import WorkerError
from speccc.runtime.drafter import Drafter
from speccc.runtime.generate import collect, generate
from speccc.runtime.ngram import NgramDrafter

LAVAPIPE = "vulkan:lavapipe"
# 4-bit and float weights, a half and an int8 cache, a tied and an untied head.
SPECS = {
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160), "q4_1"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
}
NAMES = tuple(SPECS)


@pytest.fixture(scope="module", autouse=True)
def _vulkan() -> None:
    require("vulkan")


@functools.cache
def model_of(which: str) -> Model:
    return unmeasured(_file(which), target=LAVAPIPE, kv=SPECS[which].kv)


@functools.cache
def _file(which: str) -> Path:
    return model_file(SPECS[which], _folder(which))


_FOLDERS: dict[str, Path] = {}


def _folder(which: str) -> Path:
    return _FOLDERS[which]


@pytest.fixture(scope="module", autouse=True)
def _folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    _FOLDERS.update({which: tmp_path_factory.mktemp("model") for which in SPECS})


@functools.cache
def session_of(which: str) -> VulkanSession:
    """One session for all tests of a model, emptied by each: a driver compiles for each anew."""
    session = model_of(which).session(context=64, threads=3)
    assert isinstance(session, VulkanSession)
    return session


@pytest.fixture
def session(which: str) -> Iterator[VulkanSession]:
    live = session_of(which)
    yield live
    live.truncate(0)


@pytest.mark.parametrize("which", NAMES)
def test_equals_the_golden_model(which: str, session: VulkanSession, tmp_path: Path) -> None:
    """A chain that fills one tile of rows and begins another, then a tree, then a row alone."""
    golden = PlanSession(SPECS[which], tmp_path)
    tokens = tokens_of(SPECS[which].tiny, 18)
    assert same_bits(session.forward(tokens[:9]), golden.forward(tokens[:9]))
    parents = [-1, 0, 0, 1, -1]
    tree = golden.forward(tokens[9:14], parents)
    assert same_bits(session.forward(tokens[9:14], parents=parents), tree)
    session.truncate(9)
    golden.length = 9
    picks = golden.forward(tokens[14:15]).argmax(axis=1)
    assert session.pick(tokens[14:15]).tolist() == picks.tolist()


@pytest.mark.parametrize("which", NAMES)
def test_a_path_of_a_tree_is_kept(which: str, session: VulkanSession) -> None:
    """Slots move in K, V and their scales, across a tile's edge, as on the CPU."""
    cpu = compiled(SPECS[which]).session(context=64)
    tokens = tokens_of(SPECS[which].tiny, 30)
    parents = [-1, -1, 1, 0, 2, 4]
    for s in (session, cpu):
        s.prefill(tokens[:13])
        s.forward(tokens[13:19], parents=parents)
        s.keep([1, 2, 4, 5])
    assert session.length == cpu.length == 17
    assert same_bits(session.forward(tokens[20:25]), cpu.forward(tokens[20:25]))


class Rig:
    """A generation on a session, with any drafter, drafting three tokens a round."""

    def __init__(self, which: str, session: VulkanSession) -> None:
        self.model, self.session = model_of(which), session

    def tokens(self, prompt: list[int], drafter: Drafter | None) -> tuple[list[int], int]:
        """The tokens, and how many steps they took."""
        self.session.truncate(0)
        done = collect(
            generate(
                self.session,
                self.model.tokenizer,
                prompt,
                max_tokens=12,
                drafter=drafter,
                controller=FixedController(3),
            )
        )
        return list(done.tokens), done.stats.rounds


@pytest.mark.parametrize("which", NAMES)
def test_speculation_gives_the_golden_tokens(
    which: str, session: VulkanSession, tmp_path: Path
) -> None:
    rig, spec = Rig(which, session), SPECS[which]
    prompt = tokens_of(spec.tiny, 5)
    golden, expected = PlanSession(spec, tmp_path), []
    row = golden.forward(prompt)[-1]
    for _ in range(12):
        expected.append(int(row.argmax()))
        row = golden.forward(expected[-1:])[-1]
    plain, rounds = rig.tokens(prompt, None)
    assert plain == expected
    half: dict[str, Drafter] = {
        "right": ScriptedDrafter(expected),
        "wrong at times": ScriptedDrafter(expected, lambda at: at % 3 == 1, spec.tiny.vocab),
        "tree": ScriptedDrafter(expected, vocab=spec.tiny.vocab, branches=1),
        "ngram": NgramDrafter(1, 3),
    }
    for name, drafter in half.items():
        assert rig.tokens(prompt, drafter)[0] == expected, name
    assert rig.tokens(prompt, ScriptedDrafter(expected))[1] < rounds / 2


def test_memory_that_the_host_does_not_see() -> None:
    """As on a GPU without a window to its memory: everything goes through copies."""
    which = NAMES[0]
    model = model_of(which)
    data, launches = model._entries.data, read_launches(model._entries.data, "")
    code = [bytes(data[n]) for n in code_entries(launches)]
    vectors = data["vectors"].view(np.float32)
    hidden = VulkanSession(
        model._spec, launches, code, data["weights"], vectors, context=64, hidden=True
    )
    cpu = compiled(SPECS[which]).session(context=64)
    tokens = tokens_of(SPECS[which].tiny, 20)
    for s in (hidden, cpu):
        s.forward(tokens[:15], parents=[-1, *range(13), 0])
        s.keep([0, 14])
    assert same_bits(hidden.forward(tokens[15:17]), cpu.forward(tokens[15:17]))
    hidden.close()
    with pytest.raises(WorkerError, match="closed"):
        hidden.forward(tokens[17:18])


def test_a_worker_that_dies_is_an_error_of_that_session_alone() -> None:
    model = model_of(NAMES[0])
    lost, other = model.session(context=64), session_of(NAMES[0])
    assert isinstance(lost, VulkanSession)
    lost._worker._process.kill()
    with pytest.raises(WorkerError, match="the worker died with status -9"):
        lost.forward([1, 2])
    assert other.pick([1, 2]).shape == (2,)
    other.truncate(0)


def test_the_order_of_launches_matters() -> None:
    """The control: softmax before scores is another result."""
    model, tokens = model_of(NAMES[0]), tokens_of(SPECS[NAMES[0]].tiny, 5)
    data = model._entries.data
    launches = read_launches(data, "")
    code = [bytes(data[n]) for n in code_entries(launches)]
    loop = launches.order[1].kernels
    names = [launches.kernels[k].name for k in loop]
    scores, softmax = names.index("attn_scores"), names.index("attn_softmax")
    swapped = list(loop)
    swapped[scores], swapped[softmax] = loop[softmax], loop[scores]
    order = (launches.order[0], replace(launches.order[1], kernels=tuple(swapped)))
    wrong = VulkanSession(
        model._spec,
        replace(launches, order=(*order, *launches.order[2:])),
        code,
        data["weights"],
        data["vectors"].view(np.float32),
        context=64,
    )
    right = session_of(NAMES[0])
    assert not same_bits(wrong.forward(tokens), right.forward(tokens))
    right.truncate(0)


def test_smollm2_equals_the_cpu() -> None:
    """All 30 layers, 12 rows of a prompt, then m = 1 and m = 5: no bit of a logit differs."""
    cpu = compiled_smollm2().session(context=64)
    device = unmeasured(smollm2_file(), target=LAVAPIPE).session(context=64)
    tokens = compiled_smollm2().tokenizer.encode("The capital of France is Paris, that of Germany")
    assert same_bits(device.forward(tokens), cpu.forward(tokens))
    picks = [int(t) for t in cpu.pick([tokens[0]])]
    assert device.pick([tokens[0]]).tolist() == picks
    rows = [*picks, *tokens[:4]]
    assert same_bits(device.forward(rows), cpu.forward(rows))


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
    compile_to(_file(NAMES[0]), again, CompileOptions(target=LAVAPIPE, measure=False))
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
    model = unmeasured(_file(NAMES[0]), target=target.name)
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
    compile_to(_file(which), path, CompileOptions(target="vulkan:any"))
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
        compile_to(_file(NAMES[0]), tmp_path / "m.speccc", options)


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
