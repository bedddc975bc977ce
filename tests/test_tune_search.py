"""The search: what it tries first, that it needs no memory of its own, that it ends."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tune_rig import FLAT, STEP, Expect, config

from speccc.autotune.facts import Facts
from speccc.autotune.search import Search
from speccc.autotune.step_space import DEFAULT, StepSpace
from speccc.ir.schedule import Schedule
from speccc.ir.space import Constraint, Pow2, Space

FAST = config(up_rows=4, up_unroll=2)


# Knows that this is good in `up`, and a little in `down`, and that `up` matters most.
PRIOR = Expect(
    {FAST: 0.1, config(down_rows=4, down_unroll=2): 0.05}, {"up": 0.7, "down": 0.2, "soft": 0.1}
)


def run(search: Search, ratios: dict[Facts, float | None], steps: int) -> list[Facts]:
    """What a search proposes in turn when it is told the ratios (1.0 for what is not named)."""
    known: dict[Facts, float | None] = {}
    order: list[Facts] = []
    for _ in range(steps):
        chosen = search.propose(known)
        if chosen is None:
            break
        order.append(chosen)
        known[chosen] = ratios.get(chosen, 1.0)
    return order


def test_the_default_comes_first_then_seeds_then_the_prior() -> None:
    seed = config(down_unroll=4)
    foreign = (config(other_rows=4), config(up_rows=3), seed)
    order = run(Search(STEP, PRIOR, foreign), {}, 3)
    assert order == [DEFAULT, seed, FAST]


def test_kernels_are_tried_by_what_they_may_gain() -> None:
    order = run(Search(STEP, PRIOR), {}, 14)[1:]
    kernels = [next(iter(c))[0].split(".")[0] for c in order]
    # Expected gains first; then, as nobody knows, the heavy kernel more often than the light one,
    # which gets its turn before the heavy one's list is used up.
    assert kernels[:2] == ["up", "down"]
    assert kernels.count("up") > kernels.count("down") > 1
    assert "soft" in kernels


def test_a_choice_that_won_is_tried_everywhere() -> None:
    won = config(up_unroll=2)
    search = Search(STEP, FLAT)
    known = {DEFAULT: 1.0, won: 0.8}
    assert search.propose(known) == config(up_unroll=2, down_unroll=2)
    two = config(up_rows=4, up_unroll=2)
    known = {DEFAULT: 1.0, two: 0.8}
    spread = []
    for _ in range(3):
        chosen = search.propose(known)
        assert chosen is not None
        spread.append(chosen)
        known[chosen] = 0.9
    assert spread == [
        config(up_rows=4, up_unroll=2, down_rows=4),
        config(up_rows=4, up_unroll=2, down_unroll=2),
        config(up_rows=4, up_unroll=2, down_rows=4, down_unroll=2),
    ]


def test_what_was_found_is_built_upon() -> None:
    ratios: dict[Facts, float | None] = {config(up_rows=4): 0.5}
    order = run(Search(STEP, FLAT), ratios, 60)
    after = order[order.index(config(up_rows=4)) + 1 :]
    assert all(("up.rows", 4) in c or "up.rows" not in dict(c) or len(c) <= 4 for c in after)
    assert sum(("up.rows", 4) in c for c in after) > len(after) // 2


def test_it_ends_and_never_repeats_itself() -> None:
    order = run(Search(STEP, FLAT), {}, 10_000)
    assert len(order) == len(set(order)) < 10_000
    # Every change of one kernel was tried: 12 schedules each of up and down, 2 of soft.
    alone = {c for kernel in STEP.kernels for c in STEP.moves(DEFAULT, kernel)}
    assert alone <= set(order)


@given(st.integers(0, 10_000))
def test_a_search_that_is_interrupted_goes_on_the_same(seed: int) -> None:
    rng = Random(seed)
    ratios: dict[Facts, float | None] = {
        c: rng.choice([None, 0.7, 0.9, 1.1]) for k in STEP.kernels for c in STEP.moves(DEFAULT, k)
    }
    whole = run(Search(STEP, PRIOR), ratios, 12)
    cut = rng.randrange(12)
    known = {c: ratios.get(c, 1.0) for c in whole[:cut]}
    assert Search(STEP, PRIOR).propose(known) == whole[cut]


@given(st.integers(0, 10_000))
def test_whatever_is_proposed_is_legal(seed: int) -> None:
    small = Constraint(
        "code", "rows * unroll <= 4", lambda c: int(c["rows"]) * int(c["unroll"]) <= 4
    )
    own = Space((("rows", Pow2(1, 4, 4)), ("unroll", Pow2(1, 4, 1))), (small,))
    space = StepSpace({"up": own, "down": own})
    rng = Random(seed)
    known: dict[Facts, float | None] = {}
    for _ in range(15):
        chosen = Search(space, FLAT).propose(known)
        if chosen is None:
            break
        assert space.why_not(chosen) is None
        known[chosen] = rng.choice([None, 0.5, 0.8, 1.2])


def test_a_configuration_names_only_what_is_not_the_default() -> None:
    assert STEP.replace(config(up_rows=4), "up", {"rows": 8, "unroll": 1}) == DEFAULT
    assert STEP.config(config(up_rows=4), "up") == {"rows": 4, "unroll": 1}
    assert STEP.schedules(config(up_rows=4)) == {"up": Schedule(rows=4)}
    assert STEP.schedules(DEFAULT) == {}
    assert STEP.why_not(config(up_rows=8)) == "it names a default"
    assert STEP.why_not(config(up_rows=16)) == "up: rows cannot be 16"
    assert STEP.why_not(config(left_rows=4)) == "the step has no kernel for left.rows"
    assert STEP.why_not(config(up_prefetch=4)) == "up: prefetch is no choice here"
    assert STEP.why_not(config(up_rows=4, down_unroll=2)) is None
