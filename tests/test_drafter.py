"""Drafts, trees and the acceptance walk."""

from __future__ import annotations

import pytest

from speccc.errors import SpecccError
from speccc.runtime.drafter import NOTHING, Draft, Grade, Verdict, accept_exact

TREE = Draft((10, 20, 11, 21, 12), (-1, -1, 0, 0, 2))


def test_depths_of_chain_and_tree() -> None:
    assert list(Draft((1, 2, 3)).depths()) == [1, 2, 3]
    assert list(TREE.depths()) == [1, 1, 2, 2, 3]
    assert (Draft((1, 2, 3)).depth, TREE.depth, NOTHING.depth, Draft((), ()).depth) == (3, 3, 0, 0)


def test_cut_keeps_a_tree_a_tree() -> None:
    assert TREE.cut(3) == Draft((10, 20, 11), (-1, -1, 0))
    assert TREE.cut(9) is TREE
    one, two = Grade(1, 0.5), Grade(2, 0.25)
    assert Draft((1, 2), grades=(one, two)).cut(1) == Draft((1,), grades=(one,))


@pytest.mark.parametrize("parents", [(0,), (-2,), (), (-1, -1)])
def test_a_parent_must_come_first(parents: tuple[int, ...]) -> None:
    with pytest.raises(SpecccError, match=r"^draft: "):
        Draft((5,), parents)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_token_needs_a_grade(count: int) -> None:
    with pytest.raises(SpecccError, match=r"^draft: "):
        Draft((5, 6), grades=(Grade(1, 0.5),) * count)


@pytest.mark.parametrize(
    ("draft", "answers", "verdict"),
    [
        (NOTHING, {0: 7}, Verdict((7,), ())),
        (Draft((1, 2)), {0: 9}, Verdict((9,), ())),
        (Draft((1, 2)), {0: 1, 1: 9}, Verdict((1, 9), (0,))),
        (Draft((1, 2)), {0: 1, 1: 2, 2: 3}, Verdict((1, 2, 3), (0, 1))),
        (TREE, {0: 9}, Verdict((9,), ())),
        (TREE, {0: 20, 2: 11}, Verdict((20, 11), (1,))),
        (TREE, {0: 10, 1: 21, 4: 12}, Verdict((10, 21, 12), (0, 3))),
        (TREE, {0: 10, 1: 11, 3: 12, 5: 1}, Verdict((10, 11, 12, 1), (0, 2, 4))),
        (Draft((5, 5, 6), (-1, -1, 0)), {0: 5, 1: 6, 3: 1}, Verdict((5, 6, 1), (0, 2))),
    ],
)
def test_walk(draft: Draft, answers: dict[int, int], verdict: Verdict) -> None:
    """Only rows on the path are sampled, each with the count of tokens accepted before it."""
    asked: list[tuple[int, int]] = []

    def sample(row: int, taken: int) -> int:
        asked.append((row, taken))
        return answers[row]  # a row off the path would be a KeyError

    assert accept_exact(draft, sample) == verdict
    assert asked == [(row, i) for i, row in enumerate([0, *(n + 1 for n in verdict.nodes)])]
