"""The worker process really crashes, hangs, lies and wavers; it costs one candidate each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tune_rig import PATIENT, config
from tune_suite import SUITE, WIDTHS, Job

from speccc.autotune.facts import Facts
from speccc.autotune.measure import DefaultFails, Limits, Measured, OutOfTime, Worker
from speccc.autotune.record import Outcome
from speccc.errors import SpecccError

GOOD, BAD = config(up_unroll=2), config(up_unroll=4)
# Only the phase that never ends has little time, so that no busy machine can change an outcome.
HASTY = {
    "hang_in_build": replace(PATIENT, build=1.5),
    "hang": replace(PATIENT, check=1.5),
    "hang_in_race": replace(PATIENT, time=1.5),
}
FAR = float("inf")


@pytest.fixture(autouse=True)
def _suite_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def measure(worker: Worker, chosen: Facts) -> Measured:
    return worker.measure(chosen, seconds=0.0, deadline=FAR)


@pytest.mark.parametrize(
    ("kind", "outcome", "message"),
    [
        ("invalid", Outcome.INVALID, "more rows than registers"),
        ("fails", Outcome.COMPILE_FAILED, "cannot select"),
        ("no_c", Outcome.COMPILE_FAILED, "cc: <path> In function"),
        ("crash_in_build", Outcome.COMPILE_FAILED, "ended in build by signal SIGSEGV"),
        ("hang_in_build", Outcome.TIMEOUT, "build took longer than 1.5 s"),
        ("segv", Outcome.RUN_FAILED, "ended in check by signal SIGSEGV"),
        ("hang", Outcome.TIMEOUT, "check took longer than 1.5 s"),
        ("hang_in_race", Outcome.TIMEOUT, "took longer than 1.5 s"),
        ("wrong", Outcome.WRONG, "bits differ"),
        ("flaky", Outcome.WRONG, "run 2 of 2 did"),
    ],
)
def test_a_bad_candidate_costs_itself_and_nothing_else(
    tmp_path: Path, kind: str, outcome: Outcome, message: str
) -> None:
    job = Job(tmp_path, {BAD: kind}, {BAD: 0.001, GOOD: 0.5})
    with Worker(SUITE, job, limits=HASTY.get(kind, PATIENT)) as worker:
        found = measure(worker, BAD)
        worker._limits = PATIENT
        assert (found.outcome, message in found.message) == (outcome, True), found
        assert not found.ms
        after = measure(worker, GOOD)
    assert after.outcome is Outcome.OK
    assert after.ms[8][0] / after.default_ms[8] == 0.5
    assert set(after.ms) == set(after.default_ms) == set(WIDTHS)


def test_a_wavering_candidate_is_caught_by_its_second_run(tmp_path: Path) -> None:
    # Four calls a run: the seventh call is in the second one, so one run alone looks right.
    with Worker(SUITE, Job(tmp_path, {BAD: "flaky"}), limits=PATIENT) as worker:
        assert measure(worker, BAD).outcome is Outcome.WRONG


def test_what_a_candidate_prints_is_no_answer(tmp_path: Path) -> None:
    job = Job(tmp_path, {GOOD: "prints"}, {GOOD: 0.25})
    with Worker(SUITE, job, limits=PATIENT) as worker:
        found = measure(worker, GOOD)
    assert found.ms[1][0] / found.default_ms[1] == 0.25


def test_a_wrong_default_is_an_error_not_a_candidate(tmp_path: Path) -> None:
    job = Job(tmp_path, golden="logits differ")
    with (
        Worker(SUITE, job, limits=PATIENT) as worker,
        pytest.raises(SpecccError, match="the untuned default is wrong: logits differ"),
    ):
        measure(worker, GOOD)
    # Not asked for: the same default was compared before.
    with Worker(SUITE, job, limits=PATIENT, golden=False) as worker:
        assert measure(worker, GOOD).outcome is Outcome.OK


@pytest.mark.parametrize("kind", ["segv", "hang", "fails", "flaky"])
def test_a_default_that_does_not_work_is_an_error(tmp_path: Path, kind: str) -> None:
    limits = Limits(start=3.0, build=1.0, check=1.0, time=1.0)
    with (
        Worker(SUITE, Job(tmp_path, {(): kind}), limits=limits) as worker,
        pytest.raises(SpecccError, match="untuned default"),
    ):
        measure(worker, GOOD)


def test_a_prepared_worker_has_built_the_default_and_not_judged_it(tmp_path: Path) -> None:
    job = Job(tmp_path, golden="logits differ")
    with Worker(SUITE, job, limits=PATIENT) as worker:
        worker.prepare()
        assert (tmp_path / "built.txt").read_text().splitlines() == ["{}"]
        with pytest.raises(DefaultFails, match="logits differ"):
            measure(worker, GOOD)
    with Worker(SUITE, Job(tmp_path), limits=PATIENT) as worker:
        worker.prepare()
        process = worker._process
        assert measure(worker, GOOD).outcome is Outcome.OK
        assert worker._process is process
    assert (tmp_path / "built.txt").read_text().splitlines() == ["{}", "{}", str(dict(GOOD))]


@pytest.mark.parametrize("kind", ["crash_in_build", "hang_in_build", "fails", "invalid"])
def test_a_default_that_cannot_be_prepared_is_an_error(tmp_path: Path, kind: str) -> None:
    limits = Limits(start=1.0, build=1.0, check=1.0, time=1.0)
    with (
        Worker(SUITE, Job(tmp_path, {(): kind}), limits=limits) as worker,
        pytest.raises(DefaultFails, match="the untuned default does not work"),
    ):
        worker.prepare()


def test_a_worker_loads_no_torch(tmp_path: Path) -> None:
    with Worker(SUITE, Job(tmp_path, {BAD: "looks_for_torch"}), limits=PATIENT) as worker:
        assert "torch is None" in measure(worker, BAD).message


def test_a_built_candidate_is_not_built_again(tmp_path: Path) -> None:
    with Worker(SUITE, Job(tmp_path), limits=PATIENT) as worker:
        for _ in range(3):
            assert measure(worker, GOOD).outcome is Outcome.OK
    assert (tmp_path / "built.txt").read_text().splitlines() == ["{}", str(dict(GOOD))]


def test_out_of_time_says_nothing_about_the_candidate(tmp_path: Path) -> None:
    job = Job(tmp_path, {BAD: "hang"})
    with Worker(SUITE, job, limits=PATIENT) as worker:
        measure(worker, GOOD)
        with pytest.raises(OutOfTime):
            worker.measure(BAD, seconds=0.0, deadline=time.monotonic() + 0.3)
        assert measure(worker, GOOD).outcome is Outcome.OK


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not asked for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> bool:
    for _ in range(1000):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


def test_what_a_candidate_started_ends_with_it(tmp_path: Path) -> None:
    with Worker(SUITE, Job(tmp_path, {BAD: "leaves_children"}), limits=HASTY["hang"]) as worker:
        assert measure(worker, BAD).outcome is Outcome.TIMEOUT
        assert wait_until_gone(int((tmp_path / "child.txt").read_text()))


def test_a_killed_worker_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with Worker(SUITE, Job(tmp_path, {BAD: "leaves_folder"}), limits=HASTY["hang"]) as worker:
        assert measure(worker, BAD).outcome is Outcome.TIMEOUT
        assert list(scratch.iterdir()) == []


ORPHAN = """
import sys
from pathlib import Path
from tune_rig import config
from tune_suite import SUITE, Job
import speccc.autotune.worker
from speccc.autotune.measure import Limits, Worker

hang = config(up_unroll=4)
worker = Worker(SUITE, Job(Path(sys.argv[1]), {hang: sys.argv[2]}), limits=Limits(60, 60, 1, 1))
worker.measure((), seconds=0.0, deadline=float("inf"))
print(worker._process.pid, flush=True)
worker.measure(hang, seconds=0.0, deadline=float("inf"))
"""


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", ORPHAN, str(tmp_path), "hang"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    yield parent, worker
    parent.kill()
    parent.wait()
    parent.stdout.close()
    if alive(worker):
        os.kill(worker, signal.SIGKILL)


def test_a_hanging_worker_ends_though_its_parent_was_killed(
    tmp_path: Path, orphan: tuple[subprocess.Popen[str], int]
) -> None:
    parent, worker = orphan
    parent.kill()
    parent.wait()
    assert wait_until_gone(worker)
