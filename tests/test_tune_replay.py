"""Replays: a search runs on a recording as it would on the device; random order as a yardstick."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tune_rig import FLAT, STEP, Expect, Table, config, problem

from speccc.autotune.cache import TuneCache
from speccc.autotune.cache_export import json_lines
from speccc.autotune.cache_import import import_file
from speccc.autotune.facts import Facts
from speccc.autotune.record import Outcome, Record
from speccc.autotune.replay import progress, random_progress, recorded
from speccc.autotune.search import Search
from speccc.autotune.step_space import DEFAULT, StepSpace
from speccc.autotune.tuner import records, tune

UP = StepSpace({"up": STEP.kernels["up"]})
SPACE = [DEFAULT, *sorted(set(UP.moves(DEFAULT, "up")) - {DEFAULT}, key=str)]


def record_all(ratios: dict[Facts, float], outcomes: dict[Facts, Outcome]) -> list[Record]:
    """A recording of the whole space of one kernel."""
    table = Table(ratios, outcomes)
    made: list[Record] = []
    for number, chosen in enumerate(SPACE):
        measured = table.measure(chosen, seconds=0.0, deadline=float("inf"))
        timed = replace(measured, compile_s=0.5, verify_s=0.25)
        made += records(problem().keys, chosen, timed, "session", number)
    return made


BEST = config(up_rows=4, up_unroll=2)
RATIOS = {chosen: 0.7 + 0.02 * n for n, chosen in enumerate(reversed(SPACE))} | {BEST: 0.6}
RECORDING = record_all(RATIOS, {config(up_rows=1): Outcome.WRONG})


def test_a_tuning_runs_on_an_exported_recording(tmp_path: Path) -> None:
    path = tmp_path / "space.jsonl"
    path.write_text("\n".join(json_lines(RECORDING)) + "\n")
    replay = recorded(import_file(path))
    with TuneCache(tmp_path) as cache:
        done = tune(problem(UP), cache, replay, 1000.0, clock=replay.clock)
    assert done.choice.config == BEST
    assert done.choice.ratio == pytest.approx(0.6)
    assert done.outcomes["wrong"] == 1
    # Each measurement took its recorded time: 0.75 s, and 2 x 5 samples of 2 and 16 ms times it.
    assert replay.now > 0.75 * len(SPACE)


def test_a_replay_keeps_to_the_budget(tmp_path: Path) -> None:
    replay = recorded(RECORDING)
    with TuneCache(tmp_path) as cache:
        done = tune(problem(UP), cache, replay, 3.0, clock=replay.clock)
    assert replay.now <= 3.0
    assert 1 <= done.tried < len(SPACE)


def test_what_was_not_recorded_is_no_candidate(tmp_path: Path) -> None:
    replay = recorded([r for r in RECORDING if r.config != BEST])
    with TuneCache(tmp_path) as cache:
        done = tune(problem(UP), cache, replay, 1000.0, clock=replay.clock)
    assert done.choice.config not in (BEST, DEFAULT)
    assert done.outcomes["invalid"] == 1


def test_a_prior_that_knows_is_shown_to_know() -> None:
    wise = Expect({BEST: 0.4}, {"up": 1.0})
    assert progress(Search(UP, wise), recorded(RECORDING), 2)[-1] == pytest.approx(0.6)
    ignorant = progress(Search(UP, FLAT), recorded(RECORDING), 2)[-1]
    assert ignorant > 0.6
    # Never worse with more tries, and all of it is seen in the end.
    whole = progress(Search(UP, FLAT), recorded(RECORDING), 100)
    assert whole == sorted(whole, reverse=True)
    assert (len(whole), whole[-1]) == (len(SPACE), pytest.approx(0.6))


@given(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=6))
def test_random_orders_on_average(ratios: list[float]) -> None:
    # All orders, one by one.
    orders = list(itertools.permutations(ratios))
    for k, expected in enumerate(random_progress(ratios, len(ratios)), 1):
        brute = mean(min(1.0, *order[:k]) for order in orders)
        assert expected == pytest.approx(brute, rel=1e-9)


def test_random_orders_of_many() -> None:
    rng = Random(0)
    ratios = [rng.uniform(0.5, 1.0) for _ in range(60)]
    exact = random_progress(ratios, 20)
    drawn = mean(min(rng.sample(ratios, 10)) for _ in range(4000))
    # The standard error of the mean of 4000 draws, which spread by less than 0.05.
    assert exact[9] == pytest.approx(drawn, abs=5 * 0.05 / 4000**0.5)
