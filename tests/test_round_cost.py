"""The cost of a round: the measured table, and what rounds took since."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError
from speccc.runtime.round_cost import RoundCost
from speccc.runtime.verify_cost import VerifyCost

TABLE = VerifyCost((1, 2, 4, 8, 16), (2.0, 2.1, 2.4, 4.0, 7.0))


def after(rounds: list[tuple[int, float]], table: VerifyCost = TABLE) -> list[float]:
    cost = RoundCost(table, 16)
    for width, ms in rounds:
        cost.observe(width, ms)
    return list(cost.ratios())


def test_cost_between_and_beyond_the_measured_widths() -> None:
    cost = VerifyCost.from_table({4: 10.0, 1: 4.0, 8: 12.0})
    assert [cost.at(m) for m in (1, 2, 4, 6, 8, 12)] == [4.0, 6.0, 10.0, 11.0, 12.0, 14.0]
    assert VerifyCost((1, 2), (3.0, 2.0)).at(100) == 2.0
    assert VerifyCost((1,), (5.0,)).at(9) == 5.0


@pytest.mark.parametrize(
    ("widths", "times"),
    [((), ()), ((2, 3), (1.0, 1.0)), ((1, 1), (1.0, 1.0)), ((1,), ()), ((1,), (0.0,)),
     ((1,), (float("nan"),))],
)  # fmt: skip
def test_a_broken_cost_table_is_refused(widths: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match=r"^verify cost: "):
        VerifyCost(widths, times)


def test_at_first_it_is_the_table() -> None:
    assert after([]) == pytest.approx([TABLE.at(w) / 2.0 for w in range(1, 17)])
    paid = RoundCost(TABLE, 16, extra=0.5)
    assert paid.ratios()[3] == pytest.approx((2.4 + 1.5) / 2.0)


def test_a_machine_as_fast_as_the_table_changes_nothing() -> None:
    rounds = [(w, TABLE.at(w)) for _ in range(20) for w in range(1, 17)]
    assert after(rounds) == pytest.approx(after([]))


def test_another_speed_alone_changes_nothing_once_seen() -> None:
    """A machine three times as slow at every width has the same ratios."""
    rounds = [(w, 3 * TABLE.at(w)) for _ in range(20) for w in range(1, 17)]
    assert after(rounds) == pytest.approx(after([]), rel=0.05)


def test_a_cheaper_plain_round_makes_drafts_dearer() -> None:
    """Memory got faster: the widths bound by arithmetic did not."""
    rounds = [(1, 1.4), (1, 1.4), (8, 4.0)] * 12
    assert after(rounds)[7] == pytest.approx(4.0 / 1.4, rel=0.1)
    assert after([(1, 1.4)] * 12)[7] > after([])[7] * 1.1


def test_what_one_width_shows_is_lent_to_its_neighbours() -> None:
    """Width 8 was seen to take twice as long: 7 is believed to as well, 2 less so, 1 not."""
    rounds = [(1, 2.0)] * 9 + [(8, 8.0)] * 9
    changed = [b / a for a, b in zip(after([]), after(rounds), strict=True)]
    assert changed[0] == 1.0
    assert changed[7] > 1.7  # 2 ** (9 / 10) and a little by the table
    assert changed[7] > changed[6] > changed[3] > changed[1] > 1.0


@pytest.mark.parametrize("width", [1, 4])
def test_one_slow_round_in_nine_changes_nothing(width: int) -> None:
    usual = [(1, 2.0), (4, 2.4)] * 9
    assert after([*usual, (width, 50.0)]) == pytest.approx(after(usual), rel=1e-9)


def test_the_first_slow_round_of_a_width_counts_little() -> None:
    """It may be a spike: at most half of e^0.5 is believed."""
    assert after([(1, 2.0)] * 9 + [(4, 240.0)])[3] <= 1.2 * 1.2841


def test_noise_does_not_tilt_the_ratios() -> None:
    """Rounds with 10 % noise and spikes: within 8 % of the truth."""
    rng = random.Random(5)
    rounds = [
        (w, TABLE.at(w) * (1 + abs(rng.gauss(0, 0.1))) * (3 if rng.random() < 0.05 else 1))
        for _ in range(40)
        for w in (1, 1, 1, 2, 4, 8)
    ]
    assert after(rounds) == pytest.approx(after([]), rel=0.08)


def test_what_was_seen_long_ago_fades() -> None:
    seen = after([(8, 12.0)] * 9 + [(1, 2.0)] * 10)[7]
    later = after([(8, 12.0)] * 9 + [(1, 2.0)] * 3000)[7]
    assert seen > 5.0
    assert later == pytest.approx(2.0, rel=0.05)


def test_the_age_of_the_last_plain_round() -> None:
    cost = RoundCost(TABLE, 16)
    ages = []
    for width in (4, 4, 1, 4, 4):
        cost.observe(width, 2.0)
        ages.append(cost.plain_age())
    assert ages == [1, 2, 0, 1, 2]


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(allow_nan=True)), max_size=60))
def test_any_clock_gives_usable_ratios(rounds: list[tuple[int, float]]) -> None:
    ratios = after(rounds)
    assert ratios[0] == 1.0
    assert all(1.0 <= ratio < 1e9 for ratio in ratios)
