"""Tuning as users meet it: `speccc tune`, the budget of `compile`, and what they share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from models import Tiny, tiny_llama
from tune_rig import Table, tiny_subject

from speccc import tuning, user_cache
from speccc.autotune.cache import TuneCache
from speccc.autotune.cache_export import json_lines
from speccc.autotune.facts import Facts, facts
from speccc.autotune.measure import DefaultFails, Measured, OutOfTime
from speccc.autotune.record import Outcome
from speccc.autotune.step_space import DEFAULT
from speccc.cli.group import BAD_INPUT, FAILED, OK, cli, run
from speccc.driver import CompileOptions, compile_to
from speccc.errors import SpecccError
from speccc.ir.schedule import Schedule
from speccc.runtime.artifact_file import read_entries
from speccc.scratch import OWNER
from speccc.targets.cpu.isa import ISAS, runs_here
from speccc.targets.cpu.object_store import MemoryObjects
from speccc.tuning import WEIGHTS, Subject, job_of, problem_of, schedules_for

TINY = Tiny(hidden=64, ffn=128, layers=2)
FAST = facts({"ffn_gate_up.unroll": 2})


class FakeWorker(Table):
    """In place of the worker: times by a table, no process. `made` has all that were started."""

    made: list[FakeWorker] = []  # noqa: RUF012 (emptied for each test)
    plan: dict[Facts, float] = {FAST: 0.8}  # noqa: RUF012 (never changed)
    wrong: frozenset[Facts] = frozenset()
    log: list[str] = []  # noqa: RUF012 (emptied for each test)

    def __init__(self, suite: str, payload: object, *, golden: bool) -> None:
        super().__init__(ratios=self.plan, outcomes=dict.fromkeys(self.wrong, Outcome.WRONG))
        self.golden = golden
        FakeWorker.made.append(self)
        FakeWorker.log.append("made")

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def prepare(self) -> None:
        self.log.append("prepare")

    def measure(self, chosen: Facts, *, seconds: float, deadline: float) -> Measured:
        self.log.append("measure")
        if len(self.tried) >= 12 and chosen not in self.tried:
            raise OutOfTime
        found = super().measure(chosen, seconds=seconds, deadline=float("inf"))
        return replace(
            found,
            ms={m: found.ms[w] for m, w in ((1, 1), (4, 1), (8, 8)) if found.ms},
            default_ms={m: found.default_ms[w] for m, w in ((1, 1), (4, 1), (8, 8)) if found.ms},
        )


@pytest.fixture
def subject() -> Subject:
    return tiny_subject(TINY, "q4_1")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "Worker", FakeWorker)
    FakeWorker.made.clear()
    FakeWorker.log.clear()


def test_the_default_is_built_before_the_budget_begins(subject: Subject) -> None:
    schedules_for(subject, 5.0)
    assert FakeWorker.log[:3] == ["made", "prepare", "measure"]
    assert FakeWorker.log.count("prepare") == 1


def test_the_first_time_is_measured_and_the_second_is_not(subject: Subject) -> None:
    assert schedules_for(subject, 0.0) == {}
    assert FakeWorker.made == []
    first = schedules_for(subject, 5.0)
    assert first == {"ffn_gate_up": Schedule(unroll=2)}
    assert FakeWorker.made[0].golden
    assert schedules_for(subject, 5.0) == first
    assert len(FakeWorker.made) == 1


def test_a_budget_that_is_too_short_is_spent_once(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*args: object, **kwargs: object) -> Measured:
        raise OutOfTime

    with monkeypatch.context() as patch:
        patch.setattr(FakeWorker, "measure", late)
        assert schedules_for(subject, 5.0) == {}
        assert schedules_for(subject, 5.0) == {}
    assert len(FakeWorker.made) == 1
    # Whoever asks for tuning gets it, checked.
    _, done = tuning.tune_here(subject, 5.0)
    assert FakeWorker.made[-1].golden
    assert done.choice.config == FAST


def test_what_nobody_tuned_is_not_known(subject: Subject) -> None:
    schedules_for(subject, 5.0)
    other = tiny_subject(Tiny(hidden=64, ffn=192, layers=2), "q4_1")
    assert schedules_for(other, 0.0) == {}
    assert schedules_for(replace(subject, kv="i8"), 0.0) == {}


def test_tuning_goes_on_where_it_stopped(subject: Subject) -> None:
    problem, first = tuning.tune_here(subject, 60.0)
    _, second = tuning.tune_here(subject, 60.0)
    one, two = FakeWorker.made
    assert (one.golden, two.golden) == (True, False)
    assert set(one.tried) & set(two.tried) <= {first.choice.config}
    assert second.choice.config == first.choice.config == FAST
    assert problem.space.why_not(FAST) is None


def test_code_of_another_machine_is_not_tuned(subject: Subject) -> None:
    foreign = next(isa for isa in ISAS.values() if not runs_here(isa))
    assert schedules_for(replace(subject, isa=foreign), 5.0) == {}
    assert FakeWorker.made == []


def test_a_cache_that_cannot_be_used_is_a_notice(
    subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert schedules_for(subject, 5.0) == {}
    assert "not tuned" in capsys.readouterr().err


def test_an_imported_winner_is_no_schedule_before_it_was_checked_here(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules_for(subject, 5.0)
    with TuneCache(user_cache.folder("tune")) as cache:
        text = "\n".join(json_lines([e.record for e in cache.entries()])) + "\n"
    (tmp_path / "export.jsonl").write_text(text)
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "second"))
    done = CliRunner().invoke(cli, ["cache", "import", str(tmp_path / "export.jsonl")])
    assert done.exit_code == 0, done.output
    assert schedules_for(subject, 0.0) == {}
    # Here it computes something else.
    monkeypatch.setattr(FakeWorker, "wrong", frozenset({FAST}))
    assert schedules_for(subject, 5.0) == {}
    assert FakeWorker.made[-1].tried[:2] == [DEFAULT, FAST]
    assert FakeWorker.made[-1].golden


def test_weights_of_killed_tunings_are_removed(subject: Subject, tmp_path: Path) -> None:
    left = tmp_path / f"{WEIGHTS}left"
    left.mkdir()
    for name in (OWNER, "weights"):
        (left / name).write_bytes(b"w")
    with job_of(subject, tmp_path) as job:
        assert job.weights.stat().st_size == subject.weights.nbytes
        assert not left.exists()
        with job_of(subject, tmp_path):  # another one's at the same time
            assert job.weights.exists()
    assert not job.weights.exists()


def test_a_full_disk_is_said_before_it_is_filled(
    subject: Subject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(tuning.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SpecccError, match="free disk space"), job_of(subject, tmp_path):
        pass
    # To a compilation it is no more than a notice.
    assert schedules_for(subject, 5.0) == {}
    assert "not tuned" in capsys.readouterr().err


def test_the_key_says_all_that_a_time_depends_on(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = problem_of(subject).keys
    assert {m: key.m for m, key in keys.items()} == {1: 1, 4: 4, 8: 8}
    key = keys[1]
    assert dict(key.policy)["threads"] >= 1
    assert dict(key.layout)["default"] == "rows 8, unroll 1, prefetch 2048, far 8192, deal runs"
    assert {"apache_tvm", "renderer", "speccc"} <= set(dict(key.compilers))
    monkeypatch.setattr(tuning, "cores", lambda: 77)
    assert problem_of(subject).keys[1] != key


def quietly(path: Path, artifact: Path, seconds: float = 0.0) -> dict[str, object]:
    """Compiles, with T(m) taken as given, and returns the manifest."""
    compile_to(path, artifact, CompileOptions(tune_seconds=seconds))
    return dict(read_entries(artifact).manifest)


KERNELS = MemoryObjects()


@pytest.fixture
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speccc.driver._measure", lambda *_: None)
    monkeypatch.setattr("speccc.driver.open_kernel_cache", lambda: KERNELS)


@pytest.mark.usefixtures("_no_clock")
def test_compile_uses_what_tuning_found(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, fmt="q4_1", tiny=TINY)
    plain = quietly(path, tmp_path / "a.speccc")
    assert (plain["schedules"], FakeWorker.made) == ({}, [])
    tuned = quietly(path, tmp_path / "b.speccc", 5.0)
    assert list(tuned["schedules"]) == ["ffn_gate_up"]  # type: ignore[call-overload]
    again = quietly(path, tmp_path / "c.speccc", 5.0)
    assert again["schedules"] == tuned["schedules"]
    assert len(FakeWorker.made) == 1
    library = [bytes(read_entries(tmp_path / f"{n}.speccc").data["step.so"]) for n in "abc"]
    assert library[0] != library[1] == library[2]


@pytest.mark.usefixtures("_no_clock")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tiny_llama(tmp_path, fmt="q4_1", tiny=TINY))
    assert run(["tune", path, "--budget", "5", "--json"]) == OK
    said = json.loads(capsys.readouterr().out)
    assert (said["config"], said["widths"]) == (dict(FAST), [1, 4, 8])
    assert said["ratio"] == pytest.approx(0.8)
    assert said["outcomes"] == {"ok": said["tried"]}
    artifact = tmp_path / "t.speccc"
    assert run(["tune", path, "--budget", "5", "-o", str(artifact)]) == OK
    out = capsys.readouterr().out
    assert "ffn_gate_up.unroll" in out
    assert "0.800 of the untuned time" in out
    assert list(read_entries(artifact).manifest["schedules"]) == ["ffn_gate_up"]


def test_the_command_says_that_nothing_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeWorker, "plan", {})
    path = str(tiny_llama(tmp_path, fmt="q4_1", tiny=TINY))
    assert run(["tune", path, "--budget", "5"]) == OK
    assert "nothing is clearly faster" in capsys.readouterr().out


def test_a_step_that_is_wrong_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lie(*args: object, **kwargs: object) -> Measured:
        raise DefaultFails("tuning: the untuned default is wrong: logits differ")

    monkeypatch.setattr(FakeWorker, "measure", lie)
    path = str(tiny_llama(tmp_path, fmt="q4_1", tiny=TINY))
    # Nor is it compiled as if nothing were wrong.
    assert run(["compile", path, "-o", str(tmp_path / "x.speccc"), "--tune", "5"]) == FAILED
    assert capsys.readouterr().err.strip().endswith("untuned default is wrong: logits differ")
    assert run(["tune", path, "--budget", "5"]) == FAILED
    assert capsys.readouterr().err.strip().endswith("untuned default is wrong: logits differ")


NOWHERE = "no-such-model.gguf"
BAD: dict[str, Callable[[str], list[str]]] = {
    "no model": lambda path: [],
    "no such file": lambda path: [NOWHERE],
    "no budget": lambda path: [path, "--budget", "0"],
    "a word for a budget": lambda path: [path, "--budget", "long"],
    "the artifact is the model": lambda path: [path, "-o", path],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = str(tiny_llama(tmp_path, fmt="q4_1", tiny=TINY))
    assert run(["tune", *BAD[name](path)]) == BAD_INPUT
    assert capsys.readouterr().err.startswith("error: ")
    assert FakeWorker.made == []


def test_an_instruction_set_that_does_not_run_here_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = next(isa for isa in ISAS.values() if not runs_here(isa))
    path = str(tiny_llama(tmp_path, fmt="q4_1", tiny=TINY))
    assert run(["tune", path, "--isa", foreign.name]) == BAD_INPUT
    assert "tune on one that can" in capsys.readouterr().err


def test_help_has_examples() -> None:
    said = CliRunner().invoke(cli, ["tune", "--help"]).output
    assert "speccc tune model.gguf --budget 300" in said
    assert "--tune SECONDS" in CliRunner().invoke(cli, ["compile", "--help"]).output
