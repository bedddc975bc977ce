"""Steps of SYCL as command graphs, on Intel's CPU device: the bits of launches made one by one.

And the same from the command line: what takes long, the vendor's builds, is then done once.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_once import shared
from cpu_rig import model_file, same_bits, unmeasured
from emulation.require import require
from hypothesis import given
from hypothesis import strategies as st
from test_device_cli import Shell
from test_drivers import SPECS
from test_numerics import tokens_of

from speccc import device_step, driver
from speccc.api import Model
from speccc.cli import run
from speccc.runtime.devices import sycl, sycl_graph
from speccc.runtime.devices.built_kernels import read_codes, read_plan
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import DeviceError, Part, Start
from speccc.runtime.devices.recorded_steps import Numbered, places_of, recorded_groups
from speccc.runtime.devices.sycl_recorder import SyclRecorder

SPEC = SPECS["q4_1, kv f16"]
CONTEXT = 64
DEVICE = sycl.CPU_DEVICE


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("sycl")
    return model_file(SPEC, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(file: Path) -> Model:
    return unmeasured(file, target="sycl:cpu")


def opened(model: Model) -> GpuSession:
    session = model.session(context=CONTEXT)
    assert isinstance(session, GpuSession)
    return session


@pytest.fixture(scope="module")
def recorded(model: Model) -> GpuSession:
    """A test empties it before it begins."""
    return opened(model)


@pytest.fixture(scope="module")
def launched(model: Model) -> GpuSession:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sycl, "find_graphs", lambda *_: None)
        return opened(model)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def recorder_of(session: GpuSession) -> SyclRecorder:
    found = session._step.driver.recorder
    assert isinstance(found, SyclRecorder)
    return found


def both(recorded: GpuSession, launched: GpuSession, call: Callable[[GpuSession], Any]) -> bool:
    """Whether a call gives the same bits on both."""
    ours, theirs = (call(s) for s in (recorded, launched))
    return same_bits(ours, theirs)


def emptied(*sessions: GpuSession) -> None:
    for session in sessions:
        session.truncate(0)


def test_a_session_says_how_its_steps_run(recorded: GpuSession, launched: GpuSession) -> None:
    assert (recorded.steps, launched.steps) == ("recorded", "launched")


def test_programs_start_as_they_did_before() -> None:
    """A process that has used SYCL does not fork its gigabytes for each compiler it calls."""
    words = (
        "import subprocess as s; from speccc.runtime.devices import sycl; "
        "was = getattr(s, sycl.VFORK, None); sycl._bindings(); "
        "print(was in (None, getattr(s, sycl.VFORK, None)))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True)
    assert done.stdout == b"True\n"


def test_a_second_session_builds_nothing(
    model: Model, recorded: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dpctl.program

    monkeypatch.setattr(dpctl.program, "create_program_from_spirv", None)
    other = opened(model)
    emptied(recorded, other)
    assert both(recorded, other, lambda s: s.forward([3, 4, 5]))
    other.close()


def test_it_runs_by_name_from_the_command_line(
    file: Path, model: Model, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drafts as the CPU without; `model` is of the same kernels, and built by now."""
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    for builder in (driver, device_step):
        monkeypatch.setattr(builder, "open_kernel_cache", shared)
    artifact = str(tmp_path / "m.speccc")
    assert run(["compile", str(file), "--target", "sycl:cpu", "-o", artifact]) == 0
    ours = shell.text("-m", artifact)
    assert ours["steps"] == "recorded"
    assert ours["tokens"] == shell.text("-m", str(file), "--spec-type", "none")["tokens"]
    assert ours["timings"]["draft_n"] > 0


def test_a_recorded_text_has_the_bits_of_a_launched_one(
    recorded: GpuSession, launched: GpuSession
) -> None:
    """All that a step may be asked for, at lengths from none to a full context."""
    emptied(recorded, launched)
    tokens = tokens_of(SPEC.tiny, CONTEXT)
    for session in (recorded, launched):
        session.prefill(tokens[:3])
    assert both(recorded, launched, lambda s: s.forward(tokens[3:8]))
    assert both(recorded, launched, lambda s: s.forward(tokens[8:13], last=2))
    parents = [-1, 0, 0, 2, 3]
    assert both(recorded, launched, lambda s: s.pick(tokens[13:18], parents=parents))
    for session in (recorded, launched):
        session.keep([0, 2, 3])
    assert both(recorded, launched, lambda s: s.top(tokens[18:20], 5).values)
    while recorded.length < CONTEXT:
        assert both(recorded, launched, lambda s: s.forward(tokens[s.length : s.length + 1]))
    assert launched.length == CONTEXT


def test_a_step_is_one_submission(recorded: GpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its shape is recorded, a step asks the queue for a graph and for nothing else."""
    emptied(recorded)
    recorded.pick([5])
    recorder, calls = recorder_of(recorded), []
    run = recorder._graphs.run
    monkeypatch.setattr(recorder._graphs, "run", lambda graph: (calls.append(graph), run(graph)))
    for name in ("submit", "copy_in", "copy_out", "upload", "download"):
        monkeypatch.setattr(recorder._driver, name, lambda *_, name=name: calls.append(name))
    for token in (6, 7, 8):
        recorded.pick([token])
    assert len(calls) == 3
    assert len(set(calls)) == 1


def test_a_growing_text_is_seldom_recorded_anew(
    recorded: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workgroups are powers of two up to the most that a launch may have. Only here is one token
    asked for its largest logits."""
    emptied(recorded)
    recorder, filled = recorder_of(recorded), []
    fill = recorder._fill
    monkeypatch.setattr(recorder, "_fill", lambda *a: (filled.append(1), fill(*a)))
    tokens = tokens_of(SPEC.tiny, CONTEXT)
    for token in tokens:
        recorded.top([token], 3)
    groups = recorded._step.groups
    assert 1 <= len(filled) <= groups.bit_length()
    assert all(n <= groups for made in recorder._made for n in made.groups)


# ------------------------------------------------------------------------ where there are none


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNTIME", "libsycl.so.1"),
        ("SUBMIT", "no_such_function"),
        ("LIMITED_GRAPH", 56),  # graphs that can be told other numbers: this device has none
    ],
)
def test_without_graphs_there_is_no_recorder(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime of another version, one without a function, and a device that lacks them."""
    require("sycl")
    driver = sycl.SyclDriver(DEVICE)
    assert driver.recorder is not None
    driver.close()
    monkeypatch.setattr(sycl_graph, name, value)
    driver = sycl.SyclDriver(DEVICE)
    assert driver.recorder is None
    driver.close()


def test_many_launches_wait_for_each_other(
    recorded: GpuSession, launched: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of a launch are not overwritten before it has run."""
    monkeypatch.setattr(sycl, "MOST_WAITING", 3)
    emptied(recorded, launched)
    assert both(recorded, launched, lambda s: s.forward([3, 1, 4]))


# -------------------------------------------------------------------------------- negative controls


def test_numbers_that_are_not_told_are_seen(
    recorded: GpuSession, launched: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second step of a shape would run with the first's numbers."""
    emptied(recorded, launched)
    tokens = tokens_of(SPEC.tiny, 3)
    assert both(recorded, launched, lambda s: s.forward(tokens[:1]))
    monkeypatch.setattr(Numbered, "tell", lambda *_: None)
    assert not both(recorded, launched, lambda s: s.forward(tokens[1:2]))


def test_a_graph_that_lacks_a_launch_is_seen(
    recorded: GpuSession, launched: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shape of step that no other test has."""
    driver, kernels = recorder_of(recorded)._driver, []
    submit = driver.submit

    def most(kernel: Any, *rest: Any) -> None:
        kernels.append(kernel)
        if len(kernels) != 4:
            submit(kernel, *rest)

    monkeypatch.setattr(driver, "submit", most)
    emptied(recorded, launched)
    assert not both(recorded, launched, lambda s: s.forward(tokens_of(SPEC.tiny, 11)))


def test_a_kernel_that_takes_numbers_by_value_is_refused(model: Model) -> None:
    """As older versions made them: in a graph it would end the process."""
    driver = sycl.SyclDriver(DEVICE)
    files = model._entries.data
    kernel = driver.load(next(iter(read_codes(files, read_plan(files, ""), "sycl", "").values())))
    part = Part(driver.allocate(64))
    with pytest.raises(DeviceError, match=r"takes \d+ arguments, not 1: compile the model again"):
        driver.submit(kernel, 1, 64, [part])
    recorder = driver.recorder
    assert recorder is not None
    with pytest.raises(DeviceError, match="compile the model again"):
        recorder.record([], [start_of(kernel, [1, 2], 1, "i32", part)], [])
    recorder.close()
    driver.close()


def test_a_gpu_that_is_not_there_does_not_hide_the_cpu() -> None:
    """OpenCL's loader looks for drivers once a process: when the first queue is made."""
    require("sycl")
    code = (
        "from contextlib import suppress; from speccc.errors import UnsupportedError\n"
        "from speccc.runtime.devices.sycl import CPU_DEVICE, SyclDriver\n"
        "with suppress(UnsupportedError): SyclDriver('gpu')\n"
        "print(SyclDriver(CPU_DEVICE).name)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=120)
    assert done.returncode == 0
    assert done.stdout.strip()


def test_a_graph_that_cannot_be_made_anew_is_given_back_once(
    recorded: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that fails leaves a recorder that can be closed, and a next step of that shape."""
    emptied(recorded)
    first = recorded.forward([3] * 13)
    recorder, freed = recorder_of(recorded), []
    free = recorder._graphs.free
    monkeypatch.setattr(recorder._graphs, "free", lambda graph: (freed.append(graph), free(graph)))
    made = recorder._made[-1]
    made.groups = [0] * len(made.groups)
    with monkeypatch.context() as patch:
        patch.setattr(recorder._driver, "submit", refuse)
        emptied(recorded)
        with pytest.raises(DeviceError, match="refused"):
            recorded.forward([3] * 13)
    assert (len(freed), made.graph) == (1, 0)
    emptied(recorded)
    assert same_bits(recorded.forward([3] * 13), first)
    assert len(freed) == 1


def refuse(*_: object) -> None:
    raise DeviceError("refused")


# ------------------------------------------------------------------------------------------ numbers


def start_of(
    kernel: Any, scalars: Sequence[int], groups: int, scalar: str, *parts: Part, most: int = 8
) -> Start:
    return Start(kernel, groups, 64, list(parts), tuple(scalars), scalar, most)


STARTS = st.lists(
    st.tuples(
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), st.sampled_from(["i32", "i64"])
    ),
    max_size=8,
)


@given(STARTS, st.sampled_from([4, 16, 256]), st.data())
def test_numbers_lie_where_a_launch_reads_them(
    given_: list[tuple[list[int], str]], align: int, data: st.DataObject
) -> None:
    """Each launch's own, whatever changed since they were last told."""
    starts = [start_of(None, scalars, 1, kind) for scalars, kind in given_]
    places, end = places_of(starts, align)
    memory = np.full(end, 0x55, np.uint8)
    held = Numbered([], places, memory, [()] * len(starts))
    for _ in range(2):
        held.tell(starts)
        for start, at in zip(starts, places, strict=True):
            form = f"<{len(start.scalars)}{'iq'[start.scalar == 'i64']}"
            assert at % align == 0
            assert struct.unpack_from(form, memory.tobytes(), at) == start.scalars
        changed = data.draw(st.sets(st.sampled_from(range(len(starts))))) if starts else ()
        starts = [
            start_of(None, [-1 - v for v in s.scalars], 1, s.scalar) if n in changed else s
            for n, s in enumerate(starts)
        ]


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_recorded_workgroups_are_enough_and_allowed(groups: int, most: int) -> None:
    start = start_of(None, (), min(groups, most), "i32", most=most)
    got = recorded_groups(start)
    assert start.groups <= got <= most
    assert got < 2 * start.groups
