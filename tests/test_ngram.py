"""Prompt and output lookup against a scan of the whole context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError
from speccc.runtime.drafter import NOTHING, Draft
from speccc.runtime.ngram import NgramDrafter


def scan(context: list[int], n_min: int, n_max: int, k: int) -> Draft:
    """The definition: longest n first, then the latest earlier occurrence, repeated if short."""
    for n in range(min(n_max, len(context)), n_min - 1, -1):
        for start in range(len(context) - n - 1, -1, -1):
            if context[start : start + n] == context[len(context) - n :]:
                copied = list(context)
                period = len(context) - (start + n)
                while len(copied) < len(context) + k:
                    copied.append(copied[-period])
                return Draft(tuple(copied[len(context) :]), bucket=n)
    return NOTHING


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_equals_a_scan(
    prompt: list[int], rounds: list[list[int]], n_min: int, more: int, k: int
) -> None:
    drafting = NgramDrafter(n_min, n_min + more, draft_max=7).start(prompt)
    context = list(prompt)
    for tokens in [[], *rounds]:
        drafting.observe(tokens)
        context += tokens
        assert drafting.propose(context, k) == scan(context, n_min, n_min + more, min(k, 7))


def test_longest_match_wins_over_a_later_short_one() -> None:
    prompt = [1, 2, 3, 9, 9, 2, 3, 7, 7, 1, 2, 3]
    assert NgramDrafter(2, 3).start(prompt).propose(prompt, 2) == Draft((9, 9), bucket=3)
    assert NgramDrafter(2, 2).start(prompt).propose(prompt, 2) == Draft((7, 7), bucket=2)


def test_no_match_gives_nothing() -> None:
    assert NgramDrafter().start([1, 2, 3]).propose([1, 2, 3], 4) == NOTHING
    assert NgramDrafter().start([1]).propose([1], 4) == NOTHING


def test_requests_share_nothing() -> None:
    """L#27852: what one request said must not be drafted in the next."""
    drafter = NgramDrafter(1, 2)
    first = drafter.start([1, 2, 1])
    assert first.propose([1, 2, 1], 1).tokens == (2,)
    assert drafter.start([1]).propose([1], 1) == NOTHING


@pytest.mark.parametrize("bad", [(0, 2, 4), (3, 2, 4), (2, 3, 0)])
def test_bad_settings_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match=r"^ngram drafter: "):
        NgramDrafter(*bad)
