"""Splits of m rows: the cheapest of all, monotone, and used only where they beat noise."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.column_split import WORTH, Split, split_columns, worthwhile

TIMES = st.floats(0.01, 100.0)


def test_a_dear_width_is_split() -> None:
    """5 = 4 + 1."""
    splits = split_columns({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 4.0})
    assert splits[5] == Split(2.3, (4, 1))
    assert [splits[m].widths for m in (1, 2, 3, 4)] == [(1,), (2,), (3,), (4,)]


def test_a_dear_width_is_run_as_the_next_one() -> None:
    splits = split_columns({1: 1.0, 2: 3.0, 3: 4.0, 4: 1.5})
    assert [splits[m] for m in (2, 3)] == [Split(1.5, (4,))] * 2


def test_between_the_measured_widths() -> None:
    splits = split_columns({1: 1.0, 8: 1.7, 16: 9.7})
    assert [splits[m].widths for m in (4, 12, 16)] == [(4,), (8, 4), (8, 8)]
    assert [splits[m].ms for m in (4, 12, 16)] == pytest.approx([1.3, 3.0, 3.4])
    assert list(splits) == list(range(1, 17))


def cheapest(times: dict[int, float], m: int) -> float:
    """By trying every multiset of widths whose sum is m or more, without a needless one."""

    @functools.cache
    def rest(left: int) -> float:
        return 0.0 if left <= 0 else min(ms + rest(left - w) for w, ms in times.items())

    return rest(m)


@given(st.lists(TIMES, min_size=1, max_size=20))
def test_no_other_split_is_cheaper(times: list[float]) -> None:
    table = dict(enumerate(times, start=1))
    for m, split in split_columns(table).items():
        assert split.ms == pytest.approx(cheapest(table, m))
        assert split.ms == pytest.approx(sum(table[w] for w in split.widths))
        assert sum(split.widths[:-1]) < m <= sum(split.widths)
        assert list(split.widths) == sorted(split.widths, reverse=True)


@given(st.dictionaries(st.integers(2, 64), TIMES, max_size=12), TIMES)
def test_times_never_fall(times: dict[int, float], one: float) -> None:
    splits = split_columns({1: one, **times})
    ms = [split.ms for split in splits.values()]
    # a sum of floats in another order may differ in its last bits
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(ms))


def test_only_gains_beyond_noise_are_run() -> None:
    table = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 2.3 / WORTH - 0.01, 6: 9.0}
    splits = split_columns(table)
    assert splits[5].widths == (4, 1)
    assert set(worthwhile(splits, table, table)) == {6}


def test_a_gain_that_the_fastest_times_deny_is_noise() -> None:
    busy = {1: 8.0, 4: 11.0, 5: 12.6, 6: 11.1, 8: 36.0}
    quiet = {1: 3.4, 4: 4.2, 5: 4.6, 6: 5.0, 8: 9.0}
    splits = split_columns(busy)
    assert splits[5].widths == (6,)
    assert splits[8].widths == (6, 2)
    assert set(worthwhile(splits, busy, busy)) == {5, 7, 8}
    assert worthwhile(splits, busy, quiet) == {}
    assert set(worthwhile(splits, busy, {**quiet, 8: 20.0})) == {7, 8}


def test_nothing_measured_splits_nothing() -> None:
    assert split_columns({}) == {}
    assert split_columns({1: 2.0}) == {1: Split(2.0, (1,))}
