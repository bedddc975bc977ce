"""Prompt and output lookup against a scan of the whole context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError
from speccc.runtime.drafter import NOTHING
from speccc.runtime.ngram import (
    _GRADES_AGREED,
    _GRADES_DISPUTED,
    _GRADES_ONCE,
    LONGEST,
    NgramDrafter,
)


def scan(context: list[int], n_min: int, n_max: int, k: int) -> tuple[int, ...]:
    """The definition: longest n first, then the latest earlier occurrence, repeated if short."""
    for n in range(min(n_max, len(context)), n_min - 1, -1):
        for start in range(len(context) - n - 1, -1, -1):
            if context[start : start + n] == context[len(context) - n :]:
                copied = list(context)
                period = len(context) - (start + n)
                while len(copied) < len(context) + k:
                    copied.append(copied[-period])
                return tuple(copied[len(context) :])
    return ()


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
        draft = drafting.propose(context, k)
        assert draft.tokens == scan(context, n_min, n_min + more, min(k, 7))
        assert len(draft.grades or ()) == len(draft.tokens)


def test_longest_match_wins_over_a_later_short_one() -> None:
    prompt = [1, 2, 3, 9, 9, 2, 3, 7, 7, 1, 2, 3]
    assert NgramDrafter(2, 3).start(prompt).propose(prompt, 2).tokens == (9, 9)
    assert NgramDrafter(2, 2).start(prompt).propose(prompt, 2).tokens == (7, 7)


def grades(prompt: list[int], k: int = 3) -> list[tuple[str, int]]:
    """Kind and length behind each grade."""
    draft = NgramDrafter().start(prompt).propose(prompt, k)
    kinds = ("once", "agreed", "disputed")
    found = [divmod(grade.key, LONGEST) for grade in draft.grades or ()]
    return [(kinds[kind], length + 1) for kind, length in found]


def test_grades_say_how_long_the_match_is_and_grow_with_depth() -> None:
    assert grades([1, 2, 9, 8, 7, 1, 2]) == [("once", 2), ("once", 3), ("once", 4)]
    assert grades([9, 8, 7, 6, 9]) == [("once", 1), ("once", 2), ("once", 3)]
    text = list(range(100, 130))
    assert grades([*text, 1, 2, *text[:8]], 2) == [("once", 8), ("once", 9)]
    assert grades([*text, 1, 2, *text[:20]], 2) == [("once", 12), ("once", 12)]


def test_grades_say_whether_earlier_occurrences_agree() -> None:
    agreed = [1, 2, 5, 6, 1, 2, 5, 7, 1, 2]
    assert grades(agreed) == [("agreed", 2), ("disputed", 3), ("once", 4)]
    assert grades([1, 2, 5, 6, 1, 2, 8, 7, 1, 2]) == [("disputed", 2), ("once", 3), ("once", 4)]


def test_grades_that_hold_more_often_promise_more() -> None:
    """Of one kind, never less with length; of one length, agreed over once over disputed."""
    tables = (_GRADES_ONCE, _GRADES_AGREED, _GRADES_DISPUTED)
    assert len({grade.key for table in tables for grade in table}) == 3 * LONGEST
    for once, agreed, disputed in zip(*tables, strict=True):
        assert 0.0 < disputed.chance < once.chance <= agreed.chance < 1.0
    for table in tables[:2]:
        chances = [grade.chance for grade in table]
        assert chances == sorted(chances)


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
