"""T(m): how it is measured on a clock of the test's own, planned, and kept in the cache."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cpu_rig import Spec, compiled
from hypothesis import given
from hypothesis import strategies as st
from models import Tiny

from speccc import user_cache
from speccc.autotune.cache import TuneCache
from speccc.autotune.cache_export import json_lines
from speccc.autotune.cache_import import read_records
from speccc.autotune.key import TuneKey
from speccc.errors import SpecccError
from speccc.verify_cache import known_or_measured, verify_keys
from speccc.verify_cost import (
    BUDGET,
    CONTEXT,
    PROMPT,
    VISITS,
    WARM_UP,
    WIDTHS,
    VerifyTable,
    measure,
)

COST = {w: 0.001 * (10 + w) for w in WIDTHS}


class Clocked:
    """A session whose steps take a known time on a clock of their own."""

    def __init__(self, cost: dict[int, float], noise: Sequence[float] = (0.0,)) -> None:
        self.length, self.now, self.cost = 0, 0.0, cost
        self.noise = itertools.cycle(noise)
        self.widths: list[int] = []

    def pick(self, tokens: Sequence[int]) -> None:
        self.now += self.cost.get(len(tokens), 0.0) + next(self.noise)
        self.length += len(tokens)
        assert self.length <= CONTEXT
        self.widths.append(len(tokens))

    def truncate(self, length: int) -> None:
        assert length <= self.length
        self.length = length

    def measured(self, budget: float = BUDGET) -> VerifyTable:
        return measure(self, CONTEXT, budget=budget, clock=lambda: self.now)


def test_times_are_medians_whatever_the_outliers() -> None:
    session = Clocked(COST, (0.0, 0.0, 0.0, 5.0, 0.0))
    table = session.measured(budget=1e6)
    assert table.measured == pytest.approx({w: 1000 * c for w, c in COST.items()})
    assert table.planned == pytest.approx({str(w): 1000 * c for w, c in COST.items()})
    assert session.length == PROMPT
    assert all(len(taken) == VISITS[1] for taken in table.samples.values())


def test_keeps_its_budget_but_for_the_least_number_of_visits() -> None:
    session = Clocked(dict.fromkeys(WIDTHS, 9.0))
    table = session.measured(budget=1.0)
    assert {len(taken) for taken in table.samples.values()} == {VISITS[0]}
    warm = sum(w <= WARM_UP for w in WIDTHS)
    assert len(session.widths) == 1 + VISITS[0] * (len(WIDTHS) + warm)


def test_the_rest_of_the_budget_goes_to_what_is_quick() -> None:
    """Every width gets about the same time, so narrow ones get many samples."""
    session = Clocked({w: 0.002 + 0.0006 * w for w in WIDTHS})
    table = session.measured()
    counts = [len(taken) for taken in table.samples.values()]
    assert counts[:8] == sorted(counts[:8], reverse=True)
    assert counts[0] > 3 * counts[-1]
    assert session.now < BUDGET + 2 * max(session.cost.values())


@pytest.mark.parametrize("context", [1, 3, 9, 40])
def test_fits_a_short_context(context: int) -> None:
    model = compiled(Spec(Tiny(layers=2, hidden=32, heads=2, kv_heads=1, ffn=32), "f32"))
    table = measure(model.session(context=context), context, budget=0.0)
    assert min(table.samples) == 1
    assert all(w <= context for w in table.samples)


def test_a_busy_machine_is_noted() -> None:
    quiet = Clocked(COST).measured(1e6).document()
    busy = Clocked(COST, (0.0, 0.02, 0.0, 0.001, 0.03)).measured(1e6).document()
    assert (quiet["noisy"], busy["noisy"]) == (False, True)


def test_noise_splits_nothing() -> None:
    cost = {**COST, 8: 0.5}
    noise = (0.0, 0.02, 0.0, 0.001, 0.03)
    assert Clocked(cost).measured(1e6).document()["splits"] == {"8": [9]}
    assert Clocked(cost, noise).measured(1e6).document()["splits"] == {}


def test_the_document_says_which_widths_are_run_otherwise() -> None:
    cost = {**COST, 5: 0.09, 8: 0.5}
    document = Clocked(cost).measured().document()
    assert document["splits"] == {"5": [6], "8": [9]}
    dear = {w: 0.001 * (1 if w <= 4 else 40 + w) for w in WIDTHS}
    splits = Clocked(dear).measured().document()["splits"]
    assert isinstance(splits, dict)
    assert splits["6"] == [4, 2] or sum(splits["6"]) >= 6


@given(st.dictionaries(st.sampled_from(WIDTHS), st.floats(0.0, 1e4), max_size=8), st.floats(0, 10))
def test_planned_times_never_fall(times: dict[int, float], one: float) -> None:
    table = VerifyTable({w: [ms] for w, ms in {**times, 1: one}.items()})
    planned = list(table.planned.values())
    assert [int(w) for w in table.planned] == sorted(table.samples)
    assert planned == sorted(planned)
    assert min(planned) > 0


KEYS = verify_keys(b"code", {"symbol": "step"}, 100, "portable", 2, CONTEXT)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path))
    return tmp_path


def once() -> Callable[[], VerifyTable]:
    """Measures the first time and fails the second."""
    tables = iter([quiet()])
    return lambda: next(tables)


def quiet(factor: float = 1.0) -> VerifyTable:
    """What an idle machine measures."""
    return VerifyTable({w: [1000 * c, 900 * c, factor * 890 * c] for w, c in COST.items()})


def busy(factor: float) -> VerifyTable:
    """What a machine measures on which the medians are so much higher."""
    return VerifyTable(
        {w: [factor * c for c in (400 * m, 900 * m, 5000 * m)] for w, m in COST.items()}
    )


@pytest.mark.usefixtures("cache")
def test_what_was_measured_is_not_measured_again() -> None:
    ask = once()
    first = known_or_measured(KEYS, ask)
    again = known_or_measured(KEYS, ask)
    assert again.measured == pytest.approx(first.measured)
    with TuneCache(user_cache.folder("tune")) as kept:
        assert kept.stats().records == len(WIDTHS)
        assert kept.check() == []


@pytest.mark.usefixtures("cache")
def test_times_of_a_stranger_are_not_believed() -> None:
    """An import's T(m), lower than ours, is neither used nor spares the measuring."""
    known_or_measured(KEYS, lambda: VerifyTable({w: [0.5] for w in WIDTHS}))
    with TuneCache(user_cache.folder("tune")) as kept:
        theirs = [entry.record for entry in kept.entries()]
        assert kept.remove(before="9999-01-01T00:00:00Z") == len(theirs)
        data = "".join(f"{line}\n" for line in json_lines(theirs)).encode()
        assert kept.add(read_records(io.BytesIO(data), "x"), verified=False) == len(WIDTHS)
    found = known_or_measured(KEYS, once())
    assert found.measured == pytest.approx(quiet().measured)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("measured", "factor"),
    [
        ([busy(3.0), busy(2.0), busy(4.0)], 2.0),
        ([busy(3.0), quiet()], 1.0),
        ([quiet()], 1.0),
    ],
    ids=["always busy", "busy once", "quiet"],
)
def test_a_busy_machine_is_asked_again_at_once_but_not_for_ever(
    measured: list[VerifyTable], factor: float
) -> None:
    tables = iter(measured)
    first = known_or_measured(KEYS, lambda: next(tables))
    assert next(tables, None) is None
    assert first.measured[1] == pytest.approx(factor * 900 * COST[1])
    assert first.noisy == (factor > 1)
    second = known_or_measured(KEYS, lambda: pytest.fail("measured again"))
    assert second.measured == pytest.approx(first.measured)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "other",
    [
        verify_keys(b"other", {"symbol": "step"}, 100, "portable", 2, CONTEXT),
        verify_keys(b"code", {"symbol": "other"}, 100, "portable", 2, CONTEXT),
        verify_keys(b"code", {"symbol": "step"}, 101, "portable", 2, CONTEXT),
        verify_keys(b"code", {"symbol": "step"}, 100, "portable", 3, CONTEXT),
    ],
    ids=["code", "call", "weights", "threads"],
)
def test_another_step_is_measured_anew(other: dict[int, TuneKey]) -> None:
    known_or_measured(KEYS, once())
    ask = once()
    known_or_measured(other, ask)
    with pytest.raises(StopIteration):
        ask()


@pytest.mark.usefixtures("cache")
def test_a_width_that_is_missing_measures_all() -> None:
    some = {w: key for w, key in KEYS.items() if w != 7}
    known_or_measured(some, lambda: VerifyTable({w: [5.0] for w in some}))
    assert known_or_measured(KEYS, once()).measured[1] == pytest.approx(900 * COST[1])


def test_a_folder_that_cannot_be_used_is_a_notice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    (cache / "file").touch()
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(cache / "file" / "below"))
    assert known_or_measured(KEYS, once(), notices.append).measured
    assert len(notices) == 1
    assert notices[0].startswith("T(m) is not kept: ")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("method", ["lookup", "add"])
def test_a_cache_that_breaks_on_the_way_is_a_notice(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise SpecccError("the disk is full")

    notices: list[str] = []
    monkeypatch.setattr(TuneCache, method, broken)
    assert known_or_measured(KEYS, once(), notices.append).measured
    assert any("the disk is full" in notice for notice in notices)


@pytest.mark.usefixtures("cache")
def test_a_failing_measurement_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        known_or_measured(KEYS, lambda: VerifyTable({1: [1 / 0]}))
