"""The choice among records: steady inside the noise, never slower than the default, never wrong."""

from __future__ import annotations

import itertools

from cache_rig import DEFAULT, record
from hypothesis import given
from hypothesis import strategies as st

from speccc.autotune.facts import facts
from speccc.autotune.record import Outcome, Record
from speccc.autotune.winner import Entry, barred, choose


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
