"""The choice among records: steady inside the noise, never slower than the default, never wrong."""

from __future__ import annotations

import itertools
import math

import pytest
from cache_rig import DEFAULT, key, record
from hypothesis import given
from hypothesis import strategies as st

from speccc.autotune.facts import facts
from speccc.autotune.record import Outcome, Record
from speccc.autotune.winner import Entry, barred, choose, upper_bound


def entry(one: Record, verified: bool = True) -> Entry:
    return Entry(one, verified, one.identity())


def timed(unroll: int, *ms: float, default_ms: float = 1.0) -> Entry:
    return entry(record({"unroll": unroll}, ms, default_ms=default_ms))


def failed(unroll: int, outcome: Outcome, at: str, verified: bool = True) -> Entry:
    return entry(record({"unroll": unroll}, outcome=outcome, at=at), verified)


def unroll(entries: list[Entry]) -> object:
    return dict(choose(entries, DEFAULT).config)["unroll"]


def test_the_fastest_wins() -> None:
    choice = choose([timed(2, 0.5), timed(3, 0.4), timed(4, 0.6)], DEFAULT)
    assert (dict(choice.config), choice.ratio, choice.samples) == ({"unroll": 3}, 0.4, 1)


def test_no_records_no_winner_but_the_default() -> None:
    assert choose([], DEFAULT).config == DEFAULT


def test_the_default_stays_unless_something_is_clearly_faster() -> None:
    # 0.98 * 1.02 = 0.9996 < 1: outside the band; 0.99 * 1.02 > 1: inside it.
    assert choose([timed(2, 0.99)], DEFAULT).config == DEFAULT
    assert choose([timed(2, 1.5)], DEFAULT).config == DEFAULT
    assert unroll([timed(2, 0.98)]) == 2
    # In the fixed order this one comes before the default.
    early = entry(record({"columns": 1}, (0.99,), default_ms=1.0))
    assert choose([early], DEFAULT).config == DEFAULT


def test_equals_inside_the_band_go_by_a_fixed_order() -> None:
    first = [timed(2, 0.500), timed(3, 0.495), timed(4, 0.52)]
    again = [timed(2, 0.495), timed(3, 0.500), timed(4, 0.52)]
    assert unroll(first) == unroll(again) == 2


@given(st.permutations([timed(i, 0.5 + i / 1000) for i in range(6)]))
def test_the_order_of_records_does_not_count(entries: list[Entry]) -> None:
    assert unroll(entries) == 0


def test_sessions_are_compared_through_their_defaults() -> None:
    """2 was measured on a machine twice as slow at the time: it is the faster one all the same."""
    assert unroll([timed(2, 0.8, default_ms=2.0), timed(3, 0.5, default_ms=1.0)]) == 2


def test_samples_of_all_sessions_are_pooled() -> None:
    lucky = [timed(2, 0.3), timed(2, 0.8, 0.8, 0.8), timed(3, 0.6, 0.6)]
    assert unroll(lucky) == 3


def test_once_wrong_never_wins() -> None:
    for before, after in itertools.permutations(("2026-11-29T11:00:00Z", "2026-11-29T13:00:00Z")):
        good = entry(record({"unroll": 2}, (0.1,), at=before))
        assert unroll([good, failed(2, Outcome.WRONG, after), timed(3, 0.9)]) == 3


def test_the_last_word_counts_for_other_failures() -> None:
    good = entry(record({"unroll": 2}, (0.1,), default_ms=1.0, at="2026-11-29T12:00:00Z"))
    later = failed(2, Outcome.TIMEOUT, "2026-11-29T13:00:00Z")
    sooner = failed(2, Outcome.TIMEOUT, "2026-11-29T11:00:00Z")
    same = failed(2, Outcome.RUN_FAILED, "2026-11-29T12:00:00Z")
    assert unroll([good, later, timed(3, 0.5)]) == 3
    assert unroll([good, same, timed(3, 0.5)]) == 3
    assert unroll([good, sooner, timed(3, 0.5)]) == 2


def test_failures_are_remembered_but_not_a_strangers() -> None:
    outcomes = [o for o in Outcome if o is not Outcome.OK]
    at = "2026-11-29T12:00:00Z"
    known = [failed(i, outcome, at) for i, outcome in enumerate(outcomes)]
    assert barred(known) == {facts({"unroll": i}) for i in range(len(outcomes))}
    assert barred([failed(2, Outcome.WRONG, at, verified=False)]) == frozenset()


def test_a_choice_says_whether_its_numerics_were_checked() -> None:
    fast = record({"unroll": 2}, (0.5,), default_ms=1.0)
    assert not choose([entry(fast, verified=False)], DEFAULT).verified
    assert choose([entry(fast)], DEFAULT).verified


def test_what_noise_may_have_made_does_not_win() -> None:
    # Half of the samples are slower than the default: the median alone says 0.9.
    wild = timed(2, *([0.7] * 3 + [0.9] + [1.4] * 3))
    assert choose([wild], DEFAULT).config == DEFAULT
    # Many samples say it better than a few, if they agree.
    calm = timed(3, *([0.85] * 10 + [0.9] * 10 + [1.4] * 3))
    assert unroll([wild, calm]) == 3


@pytest.mark.parametrize(("n", "place"), [(1, 1), (5, 5), (15, 13), (45, 31), (101, 63)])
def test_the_bound_of_a_median(n: int, place: int) -> None:
    assert upper_bound([float(i) for i in range(n, 0, -1)]) == place


def test_the_bound_is_broken_in_one_case_of_a_hundred() -> None:
    # Of n fair coins fewer than `place` show heads, exactly: P[Binomial(n, 1/2) < place] >= 0.99.
    for n, place in ((15, 13), (45, 31), (101, 63)):
        below = sum(math.comb(n, k) for k in range(place)) / 2**n
        assert 0.985 < below < 0.999


def test_widths_count_together_and_each_must_be_there() -> None:
    def at(m: int, unrolled: int, ms: float) -> Entry:
        return entry(record({"unroll": unrolled}, (ms,), of=key(m=m), default_ms=1.0))

    both = [at(1, 2, 0.9), at(8, 2, 0.7), at(1, 3, 0.6), at(8, 3, 1.2)]
    assert choose(both, DEFAULT).ratio == pytest.approx(0.8)
    assert unroll(both) == 2
    # One that was timed at one width only says nothing of the other.
    assert unroll([*both, at(1, 4, 0.1)]) == 2


def test_who_won_once_may_have_been_lucky() -> None:
    once, again = timed(2, 0.5), [timed(3, 0.7), timed(3, 0.8)]
    assert unroll([once, *again]) == 2
    assert dict(choose([once, *again], DEFAULT, races=2).config) == {"unroll": 3}
