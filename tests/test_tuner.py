"""The tuning loop: its budget, its memory, its choice; with tables for devices, and for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cache_rig import SIBLING, STRANGER
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_rig import PATIENT, STEP, Table, config, problem
from tune_suite import SUITE, WIDTHS, Job

from speccc.autotune.cache import TuneCache
from speccc.autotune.cache_export import json_lines
from speccc.autotune.cache_import import import_file
from speccc.autotune.facts import Facts
from speccc.autotune.measure import Worker
from speccc.autotune.record import Outcome
from speccc.autotune.step_space import DEFAULT
from speccc.autotune.tuner import Tuned, tune, usable_entries
from speccc.errors import SpecccError

ALL = {c for kernel in STEP.kernels for c in STEP.moves(DEFAULT, kernel)}
FAST, FASTER = config(up_unroll=2), config(up_unroll=2, down_unroll=2)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TuneCache]:
    with TuneCache(made(tmp_path / "cache")) as opened:
        yield opened


def made(folder: Path) -> Path:
    """The folder, which is there."""
    folder.mkdir(exist_ok=True)
    return folder


def run(cache: TuneCache, table: Table, budget: float = 1000.0) -> Tuned:
    return tune(problem(), cache, table, budget, clock=table.clock)


def test_the_best_is_found_and_kept(cache: TuneCache) -> None:
    table = Table({FAST: 0.8, FASTER: 0.7})
    done = run(cache, table)
    assert (done.choice.config, done.choice.ratio, done.exhausted) == (FASTER, 0.7, True)
    assert done.outcomes == {"ok": len(table.tried)}
    # The winner was raced again before it was believed.
    assert table.tried.count(FASTER) == 3


def test_nothing_measured_twice(cache: TuneCache) -> None:
    run(cache, Table({FAST: 0.8}))
    again = Table({FAST: 0.8})
    done = run(cache, again)
    assert (again.tried, done.choice.config, done.tried) == ([], FAST, 0)


def test_nothing_slower_than_the_default_is_kept(cache: TuneCache) -> None:
    done = run(cache, Table(dict.fromkeys(ALL - {DEFAULT}, 1.2)))
    assert done.choice.config == DEFAULT
    # Nor what only noise makes faster: inside the band nothing is.
    other = TuneCache(made(cache.folder.parent / "other"))
    assert run(other, Table(dict.fromkeys(ALL - {DEFAULT}, 0.99))).choice.config == DEFAULT
    other.close()


def test_a_lucky_candidate_does_not_survive_another_race(cache: TuneCache) -> None:
    class Lucky(Table):
        def measure(self, chosen: Facts, *, seconds: float, deadline: float) -> object:
            self.ratios = {FAST: 0.9 if self.tried.count(FAST) == 0 else 1.1}
            return super().measure(chosen, seconds=seconds, deadline=deadline)

    table = Lucky()
    done = run(cache, table)
    assert table.tried.count(FAST) >= 2
    assert done.choice.config == DEFAULT


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.OK])
def test_failures_are_remembered_and_not_tried_again(cache: TuneCache, outcome: Outcome) -> None:
    first = Table({FAST: 0.5}, {FAST: outcome})
    assert run(cache, first).choice.config == DEFAULT
    assert first.tried.count(FAST) == 1
    kept = [e.record for e in cache.entries() if e.record.config == FAST]
    assert [(r.outcome, r.message) for r in kept] == [(outcome, "planted")]
    again = Table({FAST: 0.5})
    assert run(cache, again).choice.config == DEFAULT
    assert FAST not in again.tried


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0, 5.0, 7.5, 30.0])
def test_the_budget_is_kept(cache: TuneCache, budget: float) -> None:
    table = Table({FAST: 0.8})
    done = run(cache, table, budget)
    assert table.now <= budget
    assert done.seconds <= budget
    assert len(table.tried) == done.tried
    assert (done.tried > 0) == (budget >= 1.0)
    if budget >= 5.0:
        assert done.tried >= 4
    # Even that nothing could be done is known afterwards, and does not stop the next tuning.
    assert usable_entries(problem(), cache)
    assert run(cache, Table({FAST: 0.8})).choice.config == FAST


def test_a_tuning_cut_short_is_gone_on_with(cache: TuneCache) -> None:
    whole = Table({FAST: 0.8, FASTER: 0.7})
    with TuneCache(made(cache.folder.parent / "whole")) as other:
        expected = run(other, whole).choice.config
    tried: list[Facts] = []
    for _ in range(200):
        table = Table({FAST: 0.8, FASTER: 0.7})
        done = run(cache, table, 4.0)
        tried += table.tried
        if not table.tried:
            break
    assert done.choice.config == expected == FASTER
    again = [c for c in tried if tried.count(c) > 1]
    # Only winners are raced again.
    assert set(again) <= {FAST, FASTER}
    assert set(tried) == set(whole.tried)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10_000))
def test_repeated_tunings_agree_in_spite_of_noise(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    # 0.5% of noise a sample; differences of 10%: far more than medians of five can lose.
    def one(n: int) -> Facts:
        rng = Random(seed + n)
        table = Table(
            {FAST: 0.8, FASTER: 0.7, config(soft_deal="turns"): 0.998},
            noise=lambda: rng.gauss(1.0, 0.005),
        )
        with TuneCache(tmp_path_factory.mktemp("cache")) as cache:
            return run(cache, table).choice.config

    assert one(1) == one(2) == FASTER


def test_the_search_does_not_follow_noise(cache: TuneCache) -> None:
    rng = Random(5)
    # Nothing is faster, but samples spread by half: medians of five are off by tens of percent.
    table = Table(noise=lambda: rng.uniform(0.6, 1.6))
    done = run(cache, table, 60.0)
    assert done.choice.config == DEFAULT
    # One kernel at a time is changed, or a few after a streak of luck; never a pile of changes.
    alone = [c for c in table.tried if len({n.split(".")[0] for n, _ in c}) <= 1]
    assert len(alone) > 0.8 * len(table.tried)


def test_other_machines_winners_race_first_and_prove_themselves(cache: TuneCache) -> None:
    # Found on a machine of the same family: tried right after the default, and measured here.
    sibling = Table({FASTER: 0.5, FAST: 0.6})
    tune(problem(device=SIBLING), cache, sibling, 1000.0, clock=sibling.clock)
    mine = Table({FASTER: 1.3, FAST: 0.9})
    done = run(cache, mine)
    assert mine.tried[:2] == [DEFAULT, FASTER]
    assert done.choice.config == FAST
    # Another family's are no hint at all.
    stranger = Table()
    tune(problem(device=STRANGER), cache, stranger, 3.0, clock=stranger.clock)
    assert FASTER not in stranger.tried


def test_an_imported_winner_is_checked_before_it_is_used(cache: TuneCache, tmp_path: Path) -> None:
    with TuneCache(made(tmp_path / "theirs")) as theirs:
        run(theirs, Table({FASTER: 0.1, FAST: 0.5}))
        lines = list(json_lines([e.record for e in theirs.entries()]))
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    cache.add(import_file(tmp_path / "records.jsonl"), verified=False, origin="import")
    # Of this very device, by its own word; here it computes something else.
    mine = Table(outcomes={FASTER: Outcome.WRONG}, ratios={FAST: 0.9})
    assert usable_entries(problem(), cache) == []
    done = run(cache, mine)
    assert mine.tried[:2] == [DEFAULT, FASTER]
    # FAST's time is the one measured here, not the one it came with.
    assert (done.choice.config, done.choice.ratio) == (FAST, 0.9)


# From here on with the real worker.


@pytest.fixture
def _suite_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


KINDS = {
    config(up_unroll=2): "wrong",
    config(up_unroll=4): "flaky",
    config(up_rows=4): "segv",
    config(up_rows=2): "hang",
    config(up_rows=1): "crash_in_build",
    config(down_unroll=2): "no_c",
    config(down_unroll=4): "invalid",
}


@pytest.mark.usefixtures("_suite_can_be_found")
def test_planted_candidates_however_fast_never_win(cache: TuneCache, tmp_path: Path) -> None:
    honest = config(soft_deal="turns")
    seconds = {**dict.fromkeys(KINDS, 1e-6), honest: 0.5}
    job = Job(tmp_path, KINDS, seconds)
    with Worker(SUITE, job, limits=replace(PATIENT, check=3.0)) as worker:
        done = tune(problem(), cache, worker, 1000.0)
    assert done.exhausted
    assert done.choice.config == honest
    found: dict[str, set[Outcome]] = {k: set() for k in KINDS.values()}
    for record in (e.record for e in cache.entries()):
        planted = [kind for part, kind in KINDS.items() if set(part) <= set(record.config)]
        if len(planted) == 1:
            found[planted[0]].add(record.outcome)
    assert found == {
        "wrong": {Outcome.WRONG},
        "flaky": {Outcome.WRONG},
        "segv": {Outcome.RUN_FAILED},
        "hang": {Outcome.TIMEOUT},
        "crash_in_build": {Outcome.COMPILE_FAILED},
        "no_c": {Outcome.COMPILE_FAILED},
        "invalid": {Outcome.INVALID},
    }
    # None of them is built a second time.
    (tmp_path / "built.txt").unlink()
    with Worker(SUITE, job, limits=PATIENT) as worker:
        assert tune(problem(), cache, worker, 100.0).choice.config == honest
    assert not (tmp_path / "built.txt").exists()


@pytest.mark.usefixtures("_suite_can_be_found")
def test_a_wrong_default_stops_the_tuning(cache: TuneCache, tmp_path: Path) -> None:
    with (
        Worker(SUITE, Job(tmp_path, golden="logits differ"), limits=PATIENT) as worker,
        pytest.raises(SpecccError, match="logits differ"),
    ):
        tune(problem(), cache, worker, 100.0)
    assert list(cache.entries()) == []


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("tune_rig.py")), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def built(folder: Path) -> list[str]:
    return (folder / "built.txt").read_text().splitlines()


def test_a_killed_tuning_loses_one_candidate(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 3:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with TuneCache(tmp_path / "cache") as cache:
        kept = {str(dict(e.record.config)) for e in cache.entries()}
        assert len(kept) >= 3
        # All but the one that was being tried are kept, each at every width.
        assert set(built(tmp_path)) - kept <= {built(tmp_path)[-1]}
        assert sum(1 for _ in cache.entries()) == len(kept) * len(WIDTHS)
    (tmp_path / "built.txt").unlink()
    second = start(tmp_path)
    assert second.stdout is not None
    assert int(second.stdout.readline()) == 0
    second.stdout.readline()
    second.kill()
    second.wait()
    second.stdout.close()
    # The default is built to compare with; nothing else that was known is.
    assert not set(built(tmp_path)[1:]) & kept


def test_tunings_at_once_share_what_they_find(tmp_path: Path) -> None:
    racers = [start(tmp_path) for _ in range(3)]
    for process in racers:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 2:
                break
        process.kill()
        process.wait()
        process.stdout.close()
    with TuneCache(tmp_path / "cache") as cache:
        assert cache.check() == []
        sessions = {dict(e.record.provenance)["session"] for e in cache.entries()}
    assert len(sessions) == 3
