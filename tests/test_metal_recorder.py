"""Metal's steps as indirect command buffers, up to the vendor's call: the bits, and what breaks."""

from __future__ import annotations

from collections.abc import Callable

import metal_fake
import numpy as np
import pytest
from cpu_rig import same_bits
from gpu_fakes import Host
from metal_fake import FakeMetal, MTLSize
from test_drivers import SPECS, Rig, installed
from test_numerics import tokens_of

from speccc.runtime.devices import drivers, metal_recorder
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import DeviceError
from speccc.runtime.devices.metal import MetalDriver
from speccc.runtime.devices.metal_recorder import DISPATCH, MetalRecorder
from speccc.runtime.devices.recorded_steps import Numbered

NAME = "q4_1, kv f16"
TOKENS = tokens_of(SPECS[NAME].tiny, 20)
M1, BEFORE = 1007, 1006
"""Families of GPUs: that of the first Apple silicon in a Mac, and the one before."""
Opened = Callable[..., tuple[GpuSession, Host]]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(SPECS[NAME], tmp_path_factory.mktemp("rig"))


@pytest.fixture
def opened(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A session on a GPU of a family, and the calls that it makes."""

    def open_(family: int = M1) -> tuple[GpuSession, Host]:
        host = Host(rig.kernels)
        installed("metal", FakeMetal(host, family=family), monkeypatch)
        return rig.session(drivers.open_driver("metal")), host

    return open_


def recorder_of(session: GpuSession) -> MetalRecorder:
    driver = session._step.driver
    assert isinstance(driver, MetalDriver)
    assert driver.recorder is not None
    return driver.recorder


def texts(session: GpuSession) -> list[np.ndarray]:
    """Rows of all kinds of step, at growing lengths."""
    out = [session.forward(TOKENS[:7])]
    out.append(session.pick(TOKENS[7:12], parents=[-1, 0, 0, 2, 3]))
    session.keep([0, 2, 3, 4])
    out += [session.forward(TOKENS[n : n + 1]) for n in range(12, 16)]
    return [*out, session.top(TOKENS[16:18], 3).values]


@pytest.mark.parametrize(("family", "how"), [(M1, "recorded"), (BEFORE, "launched")])
def test_steps_have_the_cpus_bits(family: int, how: str, opened: Opened, rig: Rig) -> None:
    """Recorded where the GPU can, else launched anew."""
    session, _ = opened(family)
    assert session.steps == how
    want = texts(rig.model.session(context=48))
    assert all(same_bits(a, b) for a, b in zip(texts(session), want, strict=True))


def test_a_step_is_one_command(opened: Opened) -> None:
    """What a second step of a shape asks of Metal, whatever its number of launches."""
    session, host = opened()
    session.pick([1])
    host.calls.clear()
    host.launched.clear()
    session.pick([2])
    assert host.calls == ["endEncoding", "waitUntilCompleted"]
    assert len(host.launched) > 10


def test_a_growing_text_is_seldom_recorded_anew(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = opened()
    recorder, encoded = recorder_of(session), []
    encode = recorder._encode
    monkeypatch.setattr(recorder, "_encode", lambda *a: (encoded.append(1), encode(*a)))
    for n in range(40):
        session.forward([n])
    assert 1 <= len(encoded) <= session._step.groups.bit_length()


def test_more_launches_than_a_buffer_holds_are_refused(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = opened()
    monkeypatch.setattr(metal_recorder, "MOST_COMMANDS", 3)
    with pytest.raises(DeviceError, match=r"\d+ launches: Metal records 3"):
        session.pick([1])


# ------------------------------------------------------------------------------- what pyobjc knows


def test_sizes_are_said_to_be_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the two arguments behind the object and the selector, as pyobjc's own are registered."""
    fake = FakeMetal(Host({}))
    installed("metal", fake, monkeypatch)
    drivers.open_driver("metal")
    size = {"type": MTLSize.__typestr__}
    assert fake.types == {DISPATCH: {"arguments": {2: size, 3: size}}}


def test_sizes_that_pyobjc_takes_for_integers_are_seen(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metal_recorder, "tell_sizes", lambda _: None)
    session, _ = opened()
    with pytest.raises(ValueError, match="got 'MTLSize'"):
        session.pick([1])


# -------------------------------------------------------------------------------- negative controls


@pytest.mark.parametrize("missing", [1, 4, 9])
def test_a_missing_barrier_is_seen(
    missing: int, opened: Opened, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that nothing keeps apart may change places."""
    session, _ = opened()
    commands: list[object] = []

    def barrier(command: metal_fake._Command) -> None:
        commands.append(command)
        command.barrier = len(commands) - 1 != missing

    monkeypatch.setattr(metal_fake._Command, "setBarrier", barrier)
    want = rig.model.session(context=48).forward(TOKENS[:5])
    assert not same_bits(session.forward(TOKENS[:5]), want)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_count_off_by_one_is_seen(
    change: int, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One less lacks the pick; one more is no command."""
    session, _ = opened()
    first = session.pick(TOKENS[:3])
    session.truncate(0)
    session.pick(TOKENS[3:6])
    session.truncate(0)
    (recording,) = session._recorded._kept.values()  # type: ignore[union-attr]
    recording.count += change
    if change > 0:
        with pytest.raises(AssertionError, match="commands that are not there"):
            session.pick(TOKENS[:3])
    else:
        assert not same_bits(session.pick(TOKENS[:3]), first)


def test_numbers_that_are_not_told_are_seen(
    opened: Opened, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, theirs = opened()[0], rig.model.session(context=48)
    assert same_bits(session.forward(TOKENS[:1]), theirs.forward(TOKENS[:1]))
    monkeypatch.setattr(Numbered, "tell", lambda *_: None)
    assert not same_bits(session.forward(TOKENS[1:2]), theirs.forward(TOKENS[1:2]))


@pytest.mark.parametrize(
    ("field", "says"),
    [("uses", "memory that is not used"), ("pipelines", "a pipeline that is not there")],
)
def test_what_commands_name_must_be_there(field: str, says: str, opened: Opened) -> None:
    session, _ = opened()
    session.pick([1])
    (recording,) = session._recorded._kept.values()  # type: ignore[union-attr]
    getattr(recording, field).pop()
    with pytest.raises(AssertionError, match=says):
        session.pick([2])
