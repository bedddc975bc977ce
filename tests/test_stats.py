"""Counts of drafts: users' formulas, and only what was delivered."""

from __future__ import annotations

from speccc.runtime.stats import Round, summarize


def test_scripted_acceptance() -> None:
    """B34: 3, 0, 2, 4 of 4 accepted."""
    rounds, at = [], 0
    for accepted in (3, 0, 2, 4):
        rounds.append(Round(at, 4, 4, accepted))
        at += accepted + 1
    stats = summarize(rounds, prompt_tokens=1, completion_tokens=at)
    assert (stats.drafted, stats.accepted, stats.steps, stats.rounds) == (16, 9, 4, 4)
    assert stats.acceptance_length == 3.25
    assert stats.per_position == (0.75, 0.75, 0.5, 0.25)
    assert stats.histogram == (1, 0, 1, 1, 1)
    assert stats.acceptance_rate == 9 / 16
    assert stats.tokens_per_round == 13 / 4


def test_rounds_without_a_draft_are_not_steps() -> None:
    rounds = [Round(0, 0, 0, 0), Round(1, 2, 2, 2), Round(4, 0, 0, 0)]
    stats = summarize(rounds, prompt_tokens=1, completion_tokens=5)
    assert (stats.rounds, stats.steps, stats.acceptance_length) == (3, 1, 3.0)
    assert stats.histogram == (0, 0, 1)


def test_undelivered_drafts_are_not_accepted() -> None:
    """A cut after 5 tokens: 2 of the second round's 4, none of the third's."""
    rounds = [Round(0, 4, 4, 2), Round(3, 4, 4, 4), Round(8, 4, 4, 3)]
    stats = summarize(rounds, prompt_tokens=1, completion_tokens=5)
    assert stats.accepted == 4
    assert stats.histogram == (1, 0, 2, 0, 0)


def test_a_tree_counts_depth_and_nodes_apart() -> None:
    stats = summarize([Round(0, 6, 3, 2)], prompt_tokens=1, completion_tokens=3)
    assert (stats.drafted, stats.accepted, stats.per_position) == (6, 2, (1.0, 1.0, 0.0))


def test_nothing_at_all() -> None:
    stats = summarize([], prompt_tokens=3, completion_tokens=0)
    assert (stats.acceptance_length, stats.acceptance_rate, stats.tokens_per_round) == (1.0, 0, 0)
    assert (stats.histogram, stats.per_position) == ((), ())
    assert (stats.prefill_rate, stats.decode_rate) == (0.0, 0.0)


def test_rates() -> None:
    stats = summarize(
        [], prompt_tokens=30, cached_tokens=10, completion_tokens=6,
        prefill_seconds=2.0, decode_seconds=3.0,
    )  # fmt: skip
    assert (stats.prefill_rate, stats.decode_rate) == (10.0, 2.0)
