"""The choice of draft length: best by its own formula, bounded in what it risks, deterministic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError
from speccc.runtime.controller import CREDIT, AdaptiveController, FixedController
from speccc.runtime.drafter import NOTHING, Draft, Grade
from speccc.runtime.verify_cost import VerifyCost

LONG = Draft(tuple(range(15)))
FLAT = VerifyCost((1,), (5.0,))
MILD = VerifyCost((1, 2, 8, 16), (1.0, 1.05, 1.5, 2.4))
STEEP = VerifyCost((1, 2), (1.0, 1.6))
COSTS = {"flat": FLAT, "mild": MILD, "steep": STEEP}


def feed(
    controller: AdaptiveController,
    draft: Draft,
    holds: Iterable[int],
    cost: VerifyCost | None = None,
) -> list[tuple[int, int]]:
    """Rounds in which the draft is good for so many tokens: (verified, accepted) of each."""
    rounds = []
    for good in holds:
        k = controller.choose(draft)
        accepted = min(good, k)
        took = (cost or controller.cost).at(k + 1)
        controller.observe(draft.cut(k), range(accepted), took)
        rounds.append((k, accepted))
    return rounds


def loss(rounds: Iterable[tuple[int, int]], cost: VerifyCost) -> float:
    """Time lost against plain decoding of the same tokens, in plain rounds."""
    return sum(cost.at(k + 1) / cost.at(1) - 1 - accepted for k, accepted in rounds)


def test_good_drafts_on_a_flat_device_are_verified_whole() -> None:
    rounds = feed(AdaptiveController(FLAT), LONG, [15] * 10)
    assert rounds == [(15, 15)] * 10


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_drafts_that_never_hold_cost_one_percent(cost: VerifyCost) -> None:
    """At every moment at most the stake and 1 % of the rounds; and it never gives up for good."""
    controller = AdaptiveController(cost)
    rounds = feed(controller, LONG, [0] * 3000)
    lost = itertools.accumulate(loss([one], cost) for one in rounds)
    assert all(total <= 1.0 + 0.01 * n + 1e-9 for n, total in enumerate(lost, start=1))
    assert loss(rounds[1000:], cost) <= 0.01 * 2000 + 1e-9
    assert any(k for k, _ in rounds[-200:])


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)), max_size=300),
    st.sampled_from(sorted(COSTS)),
)
def test_no_text_costs_more_than_the_stake_and_the_allowance(
    script: list[tuple[int, int, int]], name: str
) -> None:
    """Any text, an adversary's too: the bound holds against plain decoding of the same tokens."""
    cost = COSTS[name]
    controller = AdaptiveController(cost)
    rounds: list[tuple[int, int]] = []
    for size, holds, key in script:
        grades = tuple(Grade(key, 0.2 + 0.2 * key) for _ in range(size))
        rounds += feed(controller, Draft(tuple(range(size)), grades=grades), [holds])
        assert loss(rounds, cost) <= 1.0 + 0.01 * len(rounds) + 1e-9
        assert controller.ledger <= CREDIT


def test_an_adversary_who_waits_for_trust_wins_little() -> None:
    """Drafts hold until they are long, then fail, again and again: the gains still outweigh."""
    controller = AdaptiveController(STEEP)
    rounds: list[tuple[int, int]] = []
    for _ in range(400):
        k = controller.choose(LONG)
        accepted = k if k < 4 else 0
        controller.observe(LONG.cut(k), range(accepted), STEEP.at(k + 1))
        rounds.append((k, accepted))
    assert loss(rounds, STEEP) <= 1.0 + 0.01 * 400


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_follows_a_change_of_text_within_a_few_rounds(cost: VerifyCost) -> None:
    """Code that repeats itself, then prose that does not, then code again."""
    controller = AdaptiveController(cost)
    code = feed(controller, LONG, [15] * 120)
    assert [k for k, _ in code[-20:]].count(15) >= 19
    prose = feed(controller, LONG, [0] * 60)
    spent = [cost.at(k + 1) / cost.at(1) - 1 for k, _ in prose]
    assert sum(spent[20:]) <= 0.02 * 40 + 1.0  # nearly plain after 20 rounds
    assert sum(spent) <= CREDIT + 0.01 * 60
    again = feed(controller, LONG, [15] * 400)
    first = next(i for i, (k, _) in enumerate(again) if k)
    assert first <= (cost.at(2) / cost.at(1) - 1) / 0.01 + 1  # as soon as a probe is affordable
    assert [k for k, _ in again[first + 40 : first + 60]].count(15) >= 19


def test_length_follows_the_drafts() -> None:
    """Guesses that hold for three tokens and a cost that rises: three, but for a few."""
    rounds = feed(AdaptiveController(VerifyCost((1, 2), (1.0, 1.1))), LONG, [3] * 300)
    assert [k for k, _ in rounds[-100:]].count(3) >= 90


def test_a_step_in_the_cost_is_seen() -> None:
    """Width 5 costs as much as two passes: stop at four rows, or pay for many."""
    cost = VerifyCost.from_table({1: 1.0, 4: 1.05, 5: 2.0, 16: 2.05})
    assert [k for k, _ in feed(AdaptiveController(cost), LONG, [3] * 200)[-20:]].count(3) >= 18
    assert feed(AdaptiveController(cost), LONG, [15] * 200)[-20:] == [(15, 15)] * 20


def test_grades_are_learnt_apart() -> None:
    controller = AdaptiveController(VerifyCost((1, 2), (1.0, 1.2)))
    weak, strong = (
        Draft((1, 2, 3, 4), grades=(Grade(key, 0.5),) * 4) for key in (2, 5)
    )  # fmt: skip
    for _ in range(60):
        feed(controller, weak, [0])
        feed(controller, strong, [4])
    assert controller.acceptance.chance(Grade(2, 0.5)) < 0.2
    assert controller.acceptance.chance(Grade(5, 0.5)) > 0.9
    controller.choose(weak)  # a probe may be due
    assert (controller.choose(weak), controller.choose(strong)) == (0, 4)


def test_a_drafters_own_chances_decide_at_first() -> None:
    cost = VerifyCost((1, 2), (1.0, 1.3))
    for chance, length in ((0.1, 0), (0.4, 1), (0.9, 3)):
        draft = Draft((1, 2, 3), grades=(Grade(0, chance),) * 3)
        assert AdaptiveController(cost).choose(draft) == length


def test_an_emptied_ledger_stops_even_promising_drafts() -> None:
    controller = AdaptiveController(STEEP, stake=0.7)
    sure = Draft((1,), grades=(Grade(0, 0.999),))
    assert controller.choose(sure) == 1  # 0.6 of a round at risk
    controller.observe(sure, (), STEEP.at(2))
    assert controller.ledger == pytest.approx(0.11)
    assert controller.choose(sure) == 0
    for _ in range(50):
        controller.observe(NOTHING, (), STEEP.at(1))
    assert controller.choose(sure) == 1


def test_costs_of_an_earlier_request_are_believed_and_its_text_is_not() -> None:
    """A table that calls drafts free is corrected once, not once a request."""
    first = AdaptiveController(FLAT)
    feed(first, LONG, [0] * 400, STEEP)
    again = AdaptiveController(FLAT, costs=first.costs)
    assert again.costs is first.costs
    assert again.ledger == again.stake
    fresh = feed(AdaptiveController(FLAT), LONG, [0] * 5, STEEP)
    assert loss(feed(again, LONG, [0] * 5, STEEP), STEEP) < loss(fresh, STEEP)


def test_costs_of_other_rounds_are_not_taken() -> None:
    first = AdaptiveController(FLAT)
    for other in (AdaptiveController(STEEP, costs=first.costs),
                  AdaptiveController(FLAT, 7, costs=first.costs),
                  AdaptiveController(FLAT, draft_ms=0.1, costs=first.costs)):  # fmt: skip
        assert other.costs is not first.costs


def test_a_table_that_is_wrong_is_corrected() -> None:
    """Steep where it says flat: drafting stops; flat where it says steep: drafting starts."""
    drafts = itertools.cycle([0, 0, 0, 1])  # every fourth draft is good for one token
    rounds = feed(AdaptiveController(MILD), LONG, itertools.islice(drafts, 400), STEEP)
    assert sum(k for k, _ in rounds[-100:]) <= 10
    rounds = feed(AdaptiveController(STEEP), LONG, itertools.islice(drafts, 400), MILD)
    assert sum(k > 0 for k, _ in rounds[-100:]) >= 90


def test_a_spike_of_load_passes() -> None:
    """A few rounds that take five times as long change the choice for a few rounds only."""
    controller = AdaptiveController(MILD)
    feed(controller, LONG, [15] * 50)
    for _ in range(3):
        k = controller.choose(LONG)
        controller.observe(LONG.cut(k), range(k), 5 * MILD.at(k + 1))
    assert [k for k, _ in feed(controller, LONG, [15] * 10)] == [15] * 10


def test_a_costly_drafter_is_asked_for_less() -> None:
    """Drafting a token costs a pass: `limit` shrinks, and bad drafts end it but for probes."""
    steep = VerifyCost((1, 2), (1.0, 1.5))
    free, paid = AdaptiveController(FLAT), AdaptiveController(steep, draft_ms=0.2)
    assert free.limit() == 15
    # prior .6 and half a pass a token: 1.6 / 1.5 > 1.96 / 2 and > 1
    assert AdaptiveController(FLAT, draft_ms=2.5).limit() == 1
    limits = []
    for _ in range(400):
        limits.append(paid.limit())
        draft = LONG.cut(limits[-1])
        paid.observe(draft.cut(paid.choose(draft)), (), steep.at(1 + limits[-1]))
    assert limits[-100:].count(0) >= 95
    assert any(limits[-280:])


def test_tree_nodes_pay_by_their_chance_of_being_reached() -> None:
    """Siblings share what their parent leaves; what hangs on an unlikely node is unlikely."""
    likely, unlikely = Grade(1, 0.8), Grade(2, 0.1)
    tree = Draft((1, 2, 3, 4), (-1, -1, 0, 1), (likely, unlikely, likely, likely))
    # 1.8/1.15, 1.9/1.3, 2.54/1.45, 2.62/1.6
    cost = VerifyCost((1, 2), (1.0, 1.15))
    assert AdaptiveController(cost).choose(tree) == 3
    assert AdaptiveController(FLAT).choose(tree) == 4


def test_tree_nodes_are_counted_where_their_parent_held() -> None:
    controller = AdaptiveController(FLAT)
    grades = tuple(Grade(key, 0.5) for key in range(4))
    controller.observe(Draft((1, 2, 3, 4), (-1, -1, 0, 1), grades), (1, 3), 5.0)
    chances = [controller.acceptance.chance(grade) for grade in grades]
    # (held + 2 * .5) / (tested + 2)
    assert chances == pytest.approx([1 / 3, 2 / 3, 0.5, 2 / 3])


def test_acceptance_is_the_decayed_share() -> None:
    controller = AdaptiveController(FLAT)
    one, two = Grade(1, 0.5), Grade(2, 0.5)
    for accepted in (2, 1, 0):
        controller.observe(Draft((7, 7), grades=(one, two)), range(accepted), 5.0)
    keep = 0.9 * 0.99
    assert controller.acceptance.chance(one) == pytest.approx(
        (keep**2 + keep + 2 * 0.5) / (keep**2 + keep + 1 + 2)
    )
    assert controller.acceptance.chance(two) == pytest.approx(
        (keep * 0.99 + 2 * 0.5) / ((keep + 1) * 0.99 + 2)
    )
    assert controller.acceptance.chance(Grade(3, 0.7)) == 0.7


def scripts() -> st.SearchStrategy[list[tuple[int, int, float]]]:
    return st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0.0, 1e4)), max_size=80
    )


@given(scripts())
def test_choices_are_legal_and_repeatable(script: list[tuple[int, int, float]]) -> None:
    """Whatever the clock says, 0 included."""
    one, two = AdaptiveController(MILD), AdaptiveController(MILD)
    for size, holds, ms in script:
        draft = Draft(tuple(range(size)))
        k = one.choose(draft)
        assert 0 <= k <= min(size, 15)
        assert two.choose(draft) == k
        for controller in (one, two):
            controller.observe(draft.cut(k), range(min(holds, k)), ms)


def test_drafts_longer_than_the_controllers_own_limit() -> None:
    """Another controller, or a caller, may have verified more than this one would."""
    controller = AdaptiveController(MILD, max_draft=2)
    controller.observe(LONG, range(15), 3.0)
    assert controller.choose(LONG) == 2
    assert AdaptiveController(MILD, max_draft=0).choose(LONG) == 0
    assert AdaptiveController(MILD, max_draft=0, draft_ms=1.0).limit() == 0


def test_fixed_length() -> None:
    assert FixedController(4).choose(LONG) == 4
    assert FixedController(4).choose(NOTHING) == 0
    assert FixedController(4).limit() == 4
    with pytest.raises(InputError, match=r"^draft length: "):
        FixedController(-1)
    with pytest.raises(InputError, match=r"^draft length: "):
        AdaptiveController(max_draft=-1)


REGIMES: dict[str, Callable[[], Iterator[int]]] = {
    "always": lambda: itertools.repeat(15),
    "never": lambda: itertools.repeat(0),
    "every third": lambda: itertools.cycle([0, 0, 2]),
    "short": lambda: itertools.cycle([1, 2, 1, 0]),
    "bursts": lambda: itertools.cycle([0] * 30 + [15] * 10),
    "rare": lambda: itertools.cycle([0] * 99 + [3]),
}


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("regime", REGIMES)
def test_tokens_per_second_against_the_best_fixed_length(regime: str, cost: VerifyCost) -> None:
    """2000 rounds: never below 0.985 of plain, and near the best fixed length of hindsight."""
    holds = list(itertools.islice(REGIMES[regime](), 2000))
    rounds = feed(AdaptiveController(cost), LONG, holds)
    rate = _rate(rounds, cost)
    assert rate >= 0.985
    fixed = max(_rate([(k, min(good, k)) for good in holds], cost) for k in range(16))
    assert rate >= 0.9 * fixed


def _rate(rounds: list[tuple[int, int]], cost: VerifyCost) -> float:
    """Tokens per second over plain decoding's."""
    time = sum(cost.at(k + 1) for k, _ in rounds)
    return sum(1 + accepted for _, accepted in rounds) * cost.at(1) / time
