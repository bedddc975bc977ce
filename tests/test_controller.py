"""The choice of draft length: best by its own formula, bounded in its probing, deterministic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError
from speccc.runtime.controller import AdaptiveController, FixedController, VerifyCost
from speccc.runtime.drafter import NOTHING, Draft

LONG = Draft(tuple(range(15)))
FLAT = VerifyCost((1,), (5.0,))
STEEP = VerifyCost((1, 2), (1.0, 2.0))


def feed(controller: AdaptiveController, draft: Draft, holds: int, rounds: int) -> list[int]:
    """Rounds in which the draft is good for `holds` tokens; the lengths chosen."""
    chosen = []
    for _ in range(rounds):
        cut = draft.cut(controller.choose(draft))
        chosen.append(len(cut.tokens))
        if cut.tokens:
            controller.observe(cut, min(holds, cut.depth))
    return chosen


def test_cost_between_and_beyond_the_measured_widths() -> None:
    cost = VerifyCost.from_table({4: 10.0, 1: 4.0, 8: 12.0})
    assert [cost.at(m) for m in (1, 2, 4, 6, 8, 12)] == [4.0, 6.0, 10.0, 11.0, 12.0, 14.0]
    assert VerifyCost((1, 2), (3.0, 2.0)).at(100) == 2.0
    assert FLAT.at(9) == 5.0


@pytest.mark.parametrize(
    ("widths", "times"),
    [((), ()), ((2, 3), (1.0, 1.0)), ((1, 1), (1.0, 1.0)), ((1,), ()), ((1,), (0.0,)),
     ((1,), (float("nan"),))],
)  # fmt: skip
def test_a_broken_cost_table_is_refused(widths: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match=r"^verify cost: "):
        VerifyCost(widths, times)


def test_good_drafts_on_a_flat_device_are_verified_whole() -> None:
    assert feed(AdaptiveController(FLAT), LONG, holds=15, rounds=10) == [15] * 10


def test_bad_drafts_on_a_steep_device_are_left_alone_but_probed() -> None:
    """K = 0 wins; probing takes a bounded and shrinking share, and never ends."""
    chosen = feed(AdaptiveController(STEEP), LONG, holds=0, rounds=2000)
    tried = [i for i, k in enumerate(chosen) if k]
    assert max(chosen[50:]) == 1
    assert 1 <= sum(i >= 1000 for i in tried) <= 1000 / 256 + 1
    assert len(tried) < 40


def test_recovers_when_drafts_turn_good() -> None:
    controller = AdaptiveController(VerifyCost((1, 2), (1.0, 1.3)))
    assert feed(controller, LONG, holds=0, rounds=600)[-100:].count(0) >= 98
    chosen = feed(controller, LONG, holds=15, rounds=300)
    assert chosen[-1] == 15
    first = next(i for i, k in enumerate(chosen) if k)
    assert first < 256
    assert chosen[first : first + 40].count(0) == 0  # one good probe and it is at it again


def test_length_follows_the_drafts() -> None:
    """Guesses that hold for three tokens and a cost that rises: three, but for probes."""
    controller = AdaptiveController(VerifyCost((1, 2), (1.0, 1.1)))
    chosen = feed(controller, LONG, holds=3, rounds=300)
    assert chosen[-100:].count(3) >= 95


def test_a_step_in_the_cost_is_seen() -> None:
    """Width 5 costs as much as two passes: stop at four drafts' width of 4, or pay for many."""
    cost = VerifyCost.from_table({1: 1.0, 4: 1.05, 5: 2.0, 16: 2.05})
    assert feed(AdaptiveController(cost), LONG, holds=3, rounds=200)[-20:].count(3) >= 18
    assert feed(AdaptiveController(cost), LONG, holds=15, rounds=200)[-20:] == [15] * 20


def test_buckets_are_learnt_apart() -> None:
    controller = AdaptiveController(VerifyCost((1, 2), (1.0, 1.2)))
    weak, strong = Draft((1, 2, 3, 4), bucket=2), Draft((1, 2, 3, 4), bucket=5)
    for _ in range(60):
        feed(controller, weak, holds=0, rounds=1)
        feed(controller, strong, holds=4, rounds=1)
    assert controller.acceptance(1, bucket=2) < 0.2
    assert controller.acceptance(4, bucket=5) > 0.9
    assert (controller.choose(weak), controller.choose(strong)) == (0, 4)


def test_acceptance_is_the_decayed_share() -> None:
    controller = AdaptiveController(decay=1.0, prior=0.5, prior_weight=2.0)
    draft = Draft((1, 2))
    for accepted in (2, 1, 0, 2):
        controller.observe(draft, accepted)
    assert controller.acceptance(1) == pytest.approx((3 + 2 * 0.5) / (4 + 2))
    assert controller.acceptance(2) == pytest.approx((2 + 2 * (4 / 6)) / (3 + 2))
    assert controller.acceptance(3) == controller.acceptance(2)


def test_a_costly_drafter_is_asked_for_less() -> None:
    """Drafting a token costs a pass: `limit` shrinks, and bad drafts end it but for probes."""
    free, paid = AdaptiveController(FLAT), AdaptiveController(STEEP, draft_ms=1.0)
    assert free.limit() == 15
    # prior .6 and half a pass a token: 1/5 < 1.6/7.5 > 1.96/10
    assert AdaptiveController(FLAT, draft_ms=2.5).limit() == 1
    limits = []
    for _ in range(300):
        limits.append(paid.limit())
        draft = LONG.cut(limits[-1])
        paid.observe(draft.cut(paid.choose(draft)), 0)
    assert limits[-100:].count(0) >= 95
    assert any(limits[-280:])


def test_tree_nodes_pay_by_depth() -> None:
    """Wide but shallow nodes add width and no expected tokens: the cut stops before them."""
    controller = AdaptiveController(STEEP, prior=0.999)
    wide = Draft((1, 2, 3, 4), (-1, 0, 0, 0))
    assert controller.choose(wide) in (0, 1, 2)
    assert AdaptiveController(FLAT).choose(wide) == 2


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)), max_size=80))
def test_choices_are_legal_and_repeatable(script: list[tuple[int, int, int]]) -> None:
    one, two = AdaptiveController(STEEP, probe_every=3), AdaptiveController(STEEP, probe_every=3)
    for size, holds, bucket in script:
        draft = Draft(tuple(range(size)), bucket=bucket)
        k = one.choose(draft)
        assert 0 <= k <= size
        assert two.choose(draft) == k
        for controller in (one, two):
            controller.observe(draft.cut(k), min(holds, k))


def test_fixed_length() -> None:
    assert FixedController(4).choose(LONG) == 4
    assert FixedController(4).choose(NOTHING) == 0
    assert FixedController(4).limit() == 4
    with pytest.raises(InputError, match=r"^draft length: "):
        FixedController(-1)
    with pytest.raises(InputError, match=r"^draft length: "):
        AdaptiveController(max_draft=-1)
