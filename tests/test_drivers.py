"""Drivers for real devices: whole models up to the vendor's call, and what is refused before it."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cpu_rig import Spec, compiled, model_file, same_bits
from gpu_fakes import RESIDENT, UNITS, FakeCuda, Host
from hip_fake import FakeHip
from hypothesis import given
from hypothesis import strategies as st
from launch_calls import calls
from metal_fake import FakeMetal
from models import Tiny
from test_emit import TextTarget
from test_numerics import tokens_of

from speccc.emit import EmitOptions, Front, read_model
from speccc.errors import InputError, UnsupportedError
from speccc.ir.plan import phases
from speccc.runtime.devices import drivers, recorded_steps
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import (
    BARRIER,
    LATE,
    Code,
    DeviceError,
    Driver,
    GpuStep,
    Part,
    Strided,
    copy_through_host,
)
from speccc.runtime.devices.launch_plan import read_launch_plan
from speccc.runtime.devices.size_expr import read_size
from speccc.targets import registry
from speccc.targets.launch_plan import document, launches_per_step, launches_with_work
from speccc.targets.triton import step

FAKES: dict[str, tuple[str, type, Callable[[Any], ModuleType | Any]]] = {
    "cuda": ("cuda.bindings", FakeCuda, lambda fake: package("cuda.bindings", driver=fake)),
    "rocm": ("hip", FakeHip, lambda fake: package("hip", hip=fake)),
    "metal": ("Metal", FakeMetal, lambda fake: fake),
}
SPECS = {
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=32, heads=2, kv_heads=1, ffn=64), "q4_1"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
}


def package(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def installed(backend: str, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the fake what the driver's import finds."""
    name, _, make = FAKES[backend]
    parent = name.partition(".")[0]
    monkeypatch.setitem(sys.modules, parent, package(parent))
    monkeypatch.setitem(sys.modules, name, make(fake))
    if backend == "metal":
        monkeypatch.setitem(sys.modules, "objc", fake.objc)


@pytest.fixture(params=FAKES)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Rig:
    """A model's plan with its tile programs as kernels."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.front: Front = read_model(
            model_file(spec, folder), EmitOptions(spec.kv), lambda *at: None, "cuda"
        )
        self.kernels = {k.name: k for k in phases(self.front.plan.body)}
        rendered = TextTarget().render(self.front.plan, self.front.arena, self.front.bounds)
        self.document = json.loads(json.dumps(document(rendered)))
        self.plan = read_launch_plan(self.document, "launch-plan.json")
        self.codes = {n: Code(n.encode(), n, 96 << 10) for n in self.kernels}
        self.model = compiled(spec)

    def session(self, driver: Driver, **changes: Any) -> GpuSession:
        data = self.model._entries.data
        weights, vectors = (np.frombuffer(data[n], np.uint8) for n in ("weights", "vectors"))
        given = {"plan": self.plan, "codes": self.codes, **changes}
        return GpuSession(
            self.model._spec,
            driver,
            weights=weights,
            vectors=vectors.view(np.float32),
            context=48,
            **given,
        )


class Rigs:
    """Each made when it is first asked for: it takes a compilation."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders = folders
        self.made: dict[str, Rig] = {}

    def __getitem__(self, which: str) -> Rig:
        if which not in self.made:
            self.made[which] = Rig(SPECS[which], self.folders.mktemp("rig"))
        return self.made[which]


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Rigs:
    return Rigs(tmp_path_factory)


@pytest.fixture
def rig(rigs: Rigs) -> Rig:
    return rigs["q4_1, kv f16"]


# ------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize(
    ("which", "backend"), [*(("q4_1, kv f16", b) for b in FAKES), ("f16, kv i8", "cuda")]
)
def test_a_model_on_every_driver_has_the_cpus_bits(
    which: str, backend: str, rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, a tree of which one branch is kept, and a step after it."""
    rig = rigs[which]
    host = Host(rig.kernels)
    installed(backend, FAKES[backend][1](host), monkeypatch)
    driver = drivers.open_driver(backend)
    ours, theirs = rig.session(driver), rig.model.session(context=48)
    tokens = tokens_of(SPECS[which].tiny, 20)
    assert same_bits(ours.forward(tokens[:7]), theirs.forward(tokens[:7]))
    parents = [-1, 0, 0, 2, 3]
    for s in (ours, theirs):
        s.pick(tokens[7:12], parents=parents)
        s.keep([0, 2, 3, 4])
    assert ours.length == theirs.length == 11
    assert same_bits(ours.pick(tokens[12:15]), theirs.pick(tokens[12:15]))
    assert same_bits(ours.forward(tokens[15:17]), theirs.forward(tokens[15:17]))
    # There is nothing to merge so early in a text.
    assert {name for name, _, _ in host.launched} == set(rig.kernels) - {"attn_merge"}
    assert ours.launches == (len(host.launched) / 4, len(host.launched) / 4)  # of four steps
    ours.close()
    if backend != "metal":  # its memory goes with the objects
        assert host.left() == {}
        assert set(host.hidden) == {0}, "two null pointers for Triton"


def test_no_launch_has_more_groups_than_work(
    backend: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(rig.kernels)
    installed(backend, FAKES[backend][1](host), monkeypatch)
    driver = drivers.open_driver(backend)
    rig.session(driver).pick([1, 2])
    groups = {name: n for name, n, _ in host.launched}
    assert groups["pick"] == 2
    assert groups["token_embd"] == 2
    assert max(groups.values()) <= driver.groups
    assert {threads for _, _, threads in host.launched} == {64}


def test_large_shared_memory_is_asked_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(rig.kernels)
    installed("cuda", FakeCuda(host), monkeypatch)
    driver = drivers.open_driver("cuda")
    driver.load(Code(b"pick", "pick", 4096))
    assert host.asked_shared == []
    driver.load(Code(b"pick", "pick", 96 << 10))
    assert host.asked_shared == [96 << 10]


def test_a_step_starts_what_the_plan_calls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that a step's sizes do not change worked out beforehand, for any sizes."""
    host = Host(rig.kernels)
    installed("cuda", FakeCuda(host), monkeypatch)
    driver = drivers.open_driver("cuda")
    step = rig.session(driver)._step
    for length in (0, 5, 636, 637, 2000):
        sizes = {**step._sizes, "m": 3, "length": length, "head_rows": length % 2}
        made, starts = list(calls(rig.plan, sizes)), step.starts(sizes)
        assert [s.scalars for s in starts] == [c.scalars for c in made]
        assert [s.groups for s in starts] == [min(c.most, driver.groups) for c in made]
        assert [s.threads for s in starts] == [c.launch.threads for c in made]
        assert [s.kernel for s in starts] == [step._kernels[c.launch.kernel] for c in made]


def test_kernels_that_meet_are_launched_as_they_fit(
    backend: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that wait for one another must all run: never more than the device holds."""
    meeting = copy.deepcopy(rig.document)
    for launch in meeting["launches"]:
        if launch.get("kernel") == "output":
            launch["workgroups"]["all_resident"] = True
    host = Host(rig.kernels)
    installed(backend, FAKES[backend][1](host), monkeypatch)
    driver = drivers.open_driver(backend)
    rig.session(driver, plan=read_launch_plan(meeting, "x")).pick([1])
    most = 1 if backend == "metal" else UNITS * RESIDENT
    assert max(n for name, n, _ in host.launched if name == "output") == most
    assert most < driver.groups


@pytest.mark.parametrize(("backend", "prefix"), [("cuda", "cu"), ("rocm", "hip")])
def test_a_step_is_one_launch_of_a_graph(
    backend: str, prefix: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made once for each shape of step; then the kernels are told the new numbers, and no more."""
    host = Host(rig.kernels)
    installed(backend, FAKES[backend][1](host), monkeypatch)
    session = rig.session(drivers.open_driver(backend))
    session.pick([1, 2])
    assert host.alive["graph"] == 1
    host.calls.clear()
    session.pick([3, 4])
    telling = (f"{prefix}GraphExecKernelNodeSetParams", "hipKernelNodeParams")
    assert host.calls.count(telling[0]) >= len(rig.kernels) - 1, "the length is another"
    rest = [c for c in host.calls if c not in telling]
    assert rest == [f"{prefix}GraphLaunch", f"{prefix}StreamSynchronize"]
    session.forward([5, 6])
    session.prefill([7, 8])
    session.pick([9])
    assert host.alive["graph"] == 4, "logits, no head at all, one row"
    session.close()
    assert host.left() == {}


@pytest.mark.parametrize("backend", ["cuda", "rocm"])
def test_numbers_of_a_recording_that_come_back(
    backend: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step again after another: its kernels are told that they are at its place."""
    installed(backend, FAKES[backend][1](Host(rig.kernels)), monkeypatch)
    session = rig.session(drivers.open_driver(backend))
    first = session.forward([1, 2])
    session.forward([3, 4])
    session.truncate(0)
    assert same_bits(session.forward([1, 2]), first)


def test_few_recordings_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(rig.kernels)
    installed("cuda", FakeCuda(host), monkeypatch)
    monkeypatch.setattr(recorded_steps, "MOST", 2)
    ours, theirs = rig.session(drivers.open_driver("cuda")), rig.model.session(context=48)
    for tokens in ([1], [2, 3], [4], [5, 6, 7], [8], [9, 10]):
        assert same_bits(ours.forward(tokens), theirs.forward(tokens))
        assert host.alive["graph"] == host.alive["ready graph"] <= 2


def test_a_kernel_of_which_none_fits_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = copy.deepcopy(rig.document)
    meeting["launches"][-1]["workgroups"]["all_resident"] = True
    installed("cuda", FakeCuda(Host(rig.kernels)), monkeypatch)
    monkeypatch.setattr("gpu_fakes.RESIDENT", 0)
    session = rig.session(drivers.open_driver("cuda"), plan=read_launch_plan(meeting, "x"))
    with pytest.raises(DeviceError, match="kernel pick does not fit this device"):
        session.pick([1])


def test_workers_that_did_not_meet_are_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A persistent kernel gives up after a bounded wait and sets its barrier's second word."""
    meeting = copy.deepcopy(rig.document)
    barrier = {"name": "grid_barrier", "dtype": "index", "shape": [3], "role": "state"}
    meeting["buffers"].append(barrier)
    installed("cuda", FakeCuda(Host(rig.kernels)), monkeypatch)
    session = rig.session(drivers.open_driver("cuda"), plan=read_launch_plan(meeting, "x"))
    session.pick([1])
    session._step.write("grid_barrier", np.array([4, 1, 4], np.int64))
    with pytest.raises(DeviceError, match="did not meet"):
        session.pick([2])


# ------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("name", "says"),
    [("cuda", r"cuda: .*speccc\[cuda\]"), ("rocm", "rocm: .*hip-python"),
     ("sycl", r"sycl: .*speccc\[sycl\]"), ("metal", r"metal: .*speccc\[metal\]")],
)  # fmt: skip
def test_without_its_bindings_a_driver_says_what_to_install(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("cuda", "cuda.bindings", "hip", "dpctl", "Metal"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=says):
        drivers.open_driver(name)


def test_only_backends_with_a_driver_have_one() -> None:
    with pytest.raises(UnsupportedError, match="vulkan: no driver for it; there are cuda, rocm"):
        drivers.open_driver("vulkan")
    assert drivers.binary_ending("cuda") == "cubin"


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_a_drivers_library_that_is_not_there_names_the_backend(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bindings raise an error of Python's own where they cannot load it."""

    def absent(*given: object) -> None:
        raise RuntimeError("no such library")

    fake = FAKES[name][1](Host({}))
    setattr(fake, {"cuda": "cuInit", "rocm": "hipInit"}[name], absent)
    installed(name, fake, monkeypatch)
    with pytest.raises(UnsupportedError, match=f"^{name}: no such library: install"):
        drivers.open_driver(name)


@pytest.mark.parametrize(
    ("name", "call"),
    [("cuda", "cuInit"), ("rocm", "hipInit"), ("rocm", "hipSetDevice"),
     ("metal", "MTLCreateSystemDefaultDevice")],
)  # fmt: skip
def test_no_device_is_unsupported(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(name, FAKES[name][1](Host({}), call), monkeypatch)
    with pytest.raises(UnsupportedError, match="install"):
        drivers.open_driver(name)


def two_steps(rig: Rig, backend: str) -> None:
    """The second replays what the first recorded."""
    session = rig.session(drivers.open_driver(backend))
    session.pick([1, 2])
    session.pick([3, 4])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cuda", "cuMemAlloc"),
        ("cuda", "cuModuleLoadData"),
        ("cuda", "cuGraphLaunch"),
        ("cuda", "cuGraphAddKernelNode"),
        ("cuda", "cuMemAllocHost"),
        ("cuda", "cuStreamSynchronize"),
        ("cuda", "cuMemcpyHtoDAsync"),
        ("rocm", "hipMalloc"),
        ("rocm", "hipModuleLaunchKernel"),
        ("rocm", "hipMemcpyDtoHAsync"),
        ("rocm", "hipHostMalloc"),
        ("rocm", "hipStreamBeginCapture"),
        ("rocm", "hipStreamGetCaptureInfo_v2"),
        ("rocm", "hipStreamEndCapture"),
        ("rocm", "hipGraphInstantiate"),
        ("rocm", "hipGraphExecKernelNodeSetParams"),
        ("rocm", "hipGraphLaunch"),
        ("metal", "allocate"),
        ("metal", "compile"),
        ("metal", "commit"),
        ("metal", "commands"),
    ],
)
def test_a_failed_call_is_an_error_with_the_vendors_words(
    name: str, call: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(name, FAKES[name][1](Host(rig.kernels), call), monkeypatch)
    words = {"allocate": "no memory", "compile": "line 1: no", "commit": "the GPU hung"}
    words["commands"] = r"no buffer for \d+ commands"
    with pytest.raises(DeviceError, match=words.get(call, "illegal memory access")):
        two_steps(rig, name)


@pytest.mark.parametrize(
    "call", ["hipStreamGetCaptureInfo_v2", "hipModuleLaunchKernel", "hipGraphInstantiate"]
)
def test_a_capture_that_fails_leaves_nothing(
    call: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is as it was, so that the driver can still give back what it has."""
    host = Host(rig.kernels)
    installed("rocm", FakeHip(host, call), monkeypatch)
    session = rig.session(drivers.open_driver("rocm"))
    with pytest.raises(DeviceError):
        session.pick([1, 2])
    session.close()
    assert host.left() == {}


@pytest.mark.parametrize("backend", FAKES)
def test_where_memory_runs_out_one_line_says_what_to_do(
    backend: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"cuda": "cuMemAlloc", "rocm": "hipMalloc", "metal": "allocate"}
    installed(backend, FAKES[backend][1](Host(rig.kernels), calls[backend]), monkeypatch)
    with pytest.raises(DeviceError, match=r"give a shorter context \(-c\) or a smaller model$"):
        rig.session(drivers.open_driver(backend))


def test_a_wrong_entry_is_an_error(backend: str, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(backend, FAKES[backend][1](Host(rig.kernels)), monkeypatch)
    with pytest.raises(DeviceError):
        drivers.open_driver(backend).load(Code(b"pick", "other"))


def test_what_does_not_fit_the_plan_is_refused_before_a_launch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(rig.kernels)
    installed("cuda", FakeCuda(host), monkeypatch)
    driver = drivers.open_driver("cuda")
    codes = {n: c for n, c in rig.codes.items() if n != "pick"}
    with pytest.raises(InputError, match="kernel pick is not built"):
        rig.session(driver, codes=codes)
    with pytest.raises(InputError, match="size slots is not known"):
        GpuStep(driver, rig.plan, rig.codes, {"m": 1, "length": 0}, {})
    capacity = dict.fromkeys(rig.plan.sizes, 16)
    with pytest.raises(InputError, match="buffer weights has 3 bytes, not 16"):
        GpuStep(driver, rig.plan, rig.codes, capacity, {"weights": np.zeros(3, np.uint8)})
    with pytest.raises(InputError, match="past the arena"):
        GpuStep(driver, rig.plan, rig.codes, dict.fromkeys(rig.plan.sizes, 10_000), {})
    assert host.launched == []


# ------------------------------------------------------------------------- plans and their sizes


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*path, key))


@given(st.data())
def test_no_damage_to_a_plan_goes_further_than_an_input_error(data: st.DataObject) -> None:
    document = copy.deepcopy(SMALL)
    path = data.draw(st.sampled_from(list(leaves(document))))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    junk = st.one_of(
        st.none(), st.integers(), st.text(max_size=5), st.just([]), st.just({}), st.just("x // 0")
    )
    inner[path[-1]] = data.draw(junk)
    with suppress(InputError):
        assert read_launch_plan(document, "plan.json").sizes


SMALL: Any = {
    "needs": {"device": "", "subgroup": 0, "matrix": None, "halves": None, "workers": 0},
    "sizes": ["m"],
    "arena_bytes": 64,
    "buffers": [
        {"name": "x", "dtype": "f32", "shape": ["m", 4], "role": "input"},
        {"name": "h", "dtype": "f32", "shape": ["m"], "role": "activation", "arena_offset": 16},
    ],
    "kernels": [{"name": "k", "entry": "k"}],
    "launches": [
        {
            "loop": "layer",
            "extent": 2,
            "body": [
                {
                    "kernel": "k",
                    "buffers": ["x", "h"],
                    "scalars": ["m", "layer"],
                    "scalar_type": "i32",
                    "workgroups": {"most": "m - 1", "threads": 32, "all_resident": False},
                }
            ],
        }
    ],
}


def test_loops_number_their_launches_and_idle_ones_are_left_out() -> None:
    plan = read_launch_plan(SMALL, "x")
    assert [(c.scalars, c.most) for c in calls(plan, {"m": 3})] == [((3, 0), 2), ((3, 1), 2)]
    assert list(calls(plan, {"m": 1})) == []
    assert plan.buffers["x"].nbytes({"m": 3}) == 48


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("sizes"), "'sizes' is missing"),
        (lambda d: d["buffers"].append(d["buffers"][0]), "a buffer is there twice"),
        (lambda d: d["buffers"][1].update(arena_offset=68), "outside the arena"),
        (lambda d: d["buffers"][0].update(role="other"), "unknown kind"),
        (lambda d: d["needs"].update(matrix=[8, 8]), "a matrix of"),
        (lambda d: d["needs"].update(halves=[8, 8, 0]), "a matrix of"),
        (lambda d: d["launches"][0].update(extent=10**6), "a loop over layer"),
        (lambda d: d["launches"][0].update(loop="m"), "a loop over m"),
        (lambda d: d["launches"][0]["body"][0]["buffers"].append("y"), "a launch names y"),
        (lambda d: d["launches"][0]["body"][0]["scalars"].append("n"), "a launch names n"),
        (lambda d: d["launches"][0]["body"][0].update(kernel="z"), "a launch names z"),
        (
            lambda d: d["launches"][0]["body"][0]["workgroups"].update(threads=2048),
            "takes 2048 threads",
        ),
    ],
)
def test_a_damaged_plan_is_refused_by_name(change: Any, says: str) -> None:
    damaged = copy.deepcopy(SMALL)
    change(damaged)
    with pytest.raises(InputError, match=says):
        read_launch_plan(damaged, "plan.json")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        ("m", 5),
        ("max(1, m * 9)", 45),
        ("(((length + m) + 15) // 16) * 3", 6),
        ("min(m, 1) * 256 - length % 4", 254),
    ],
)
def test_sizes_are_worked_out(text: object, value: int) -> None:
    assert read_size(text, ("m", "length"))({"m": 5, "length": 14}) == value


@pytest.mark.parametrize(
    "text",
    ["", "n", "m.real", "m ** 9", "__import__('os')", "max(m)", "max(m, 1, 2)", "m if m else 1",
     "[m]", "1.5", "True", None, -1, 1 << 80, "(" * 500 + "m" + ")" * 500, "m+" * 2000 + "m",
     "max(a=1, b=2)", "m / 2", "-m", "'m'"],
)  # fmt: skip
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"is no size|is no size of the plan"):
        read_size(text, ("m",))


@pytest.mark.parametrize("name", registry.backends())
def test_every_targets_plan_is_understood(name: str, rig: Rig) -> None:
    """What emit writes is what a driver reads: known roles, closed names, sizes worked out."""
    front, target = rig.front, registry.target(name)
    rendered = target.render(front.plan, front.arena, front.bounds)
    plan = read_launch_plan(json.loads(json.dumps(document(rendered))), "launch-plan.json")
    sizes = {**dict.fromkeys(plan.sizes, 16), "m": 3, "length": 700, "head_rows": 3}
    assert len(list(calls(plan, sizes))) == launches_per_step(rendered) > 0
    for length in (5, 636, 637):  # parts of attention's sums are merged from 640 positions on
        early = {v: {**sizes, "length": length}[v.name] for v in rendered.sizes}
        made = launches_with_work(rendered, early)
        assert made == len(list(calls(plan, {v.name: n for v, n in early.items()})))
        merges = 0 if length == 637 or name in ("cuda", "rocm") else 2  # one a layer
        assert made == launches_per_step(rendered) - merges
    assert all(1 <= c.most <= 4096 for c in calls(plan, sizes))
    persistent = name in ("cuda", "rocm")
    assert (launches_per_step(rendered) == 1) is persistent
    assert (BARRIER in plan.buffers) is persistent
    assert (BARRIER, LATE) == (step.BARRIER, step.LATE)


# -------------------------------------------------------------------------- copies by the host


class Copied:
    """A driver of one buffer that counts what crosses."""

    def __init__(self, data: Any) -> None:
        self.data, self.crossed = data, 0

    def upload(self, part: Part, data: Any) -> None:
        self.crossed += data.nbytes
        self.data[part.offset : part.offset + data.nbytes] = data

    def download(self, part: Part, into: Any) -> None:
        self.crossed += into.nbytes
        into[:] = self.data[part.offset : part.offset + into.nbytes]


@given(
    source=st.integers(0, 7), to=st.integers(0, 7), size=st.integers(1, 4), count=st.integers(1, 9)
)
def test_pieces_are_copied_and_nothing_else(source: int, to: int, size: int, count: int) -> None:
    stride = 12
    data = np.arange(stride * 10, dtype=np.uint8)
    expected = data.copy()
    for n in range(count):
        at = n * stride
        expected[to + at : to + at + size] = data[source + at : source + at + size]
    moved = Strided(source, to, size, stride, count)
    driver: Any = Copied(data.copy())
    copy_through_host(driver, None, moved)
    np.testing.assert_array_equal(driver.data, expected)


def test_far_pieces_are_copied_one_by_one() -> None:
    data = np.arange(1 << 22, dtype=np.uint32).view(np.uint8)
    driver: Any = Copied(data.copy())
    copy_through_host(driver, None, Strided(0, 64, 8, 1 << 20, 4))
    assert driver.crossed == 2 * 8 * 4
    for n in range(4):
        at = n << 20
        np.testing.assert_array_equal(driver.data[at + 64 : at + 72], data[at : at + 8])
