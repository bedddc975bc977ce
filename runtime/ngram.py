"""Prompt and output lookup: what followed the last n tokens the last time they appeared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speccc.errors import InputError
from speccc.runtime.drafter import NOTHING, Draft


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Longest match first, from `n_max` down to `n_min` tokens; the latest occurrence wins.

    Raises InputError unless 1 <= n_min <= n_max and draft_max >= 1.
    """

    n_min: int = 2
    n_max: int = 5
    draft_max: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.n_min <= self.n_max:
            raise InputError(
                f"n_min {self.n_min} must be at least 1 and at most n_max {self.n_max}",
                where="ngram drafter",
            )
        if self.draft_max < 1:
            raise InputError(
                f"draft_max must be at least 1, not {self.draft_max}", where="ngram drafter"
            )

    @property
    def name(self) -> str:
        return "ngram"

    def start(self, prompt: Sequence[int]) -> NgramDrafting:
        """A drafting over this prompt; indexing takes time proportional to its length."""
        return NgramDrafting(self, prompt)


class NgramDrafting:
    """The index of one request: for each n, n-gram -> the position after its last occurrence.

    An n-gram enters the index when its successor is known, so the tokens at the very end never find
    themselves. `propose` looks up n_max - n_min + 1 keys whatever the length of the context.
    """

    def __init__(self, config: NgramDrafter, prompt: Sequence[int]) -> None:
        self._config = config
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self.observe(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        """Index the newly committed tokens."""
        known, after = self._tokens, self._after
        for token in tokens:
            end = len(known)
            for n in range(self._config.n_min, min(self._config.n_max, end) + 1):
                after[tuple(known[end - n : end])] = end
            known.append(token)

    def propose(self, context: Sequence[int], k: int) -> Draft:
        """The tokens after the longest known n-gram that ends the context, copied on past its end.

        When fewer than k tokens follow the match, it overlaps the end of the context: the text is
        taken to repeat with that period.
        """
        known = self._tokens
        end = len(known)
        for n in range(min(self._config.n_max, end), self._config.n_min - 1, -1):
            start = self._after.get(tuple(known[end - n :]))
            if start is not None:
                return Draft(_repeat(known, start, min(k, self._config.draft_max)), bucket=n)
        return NOTHING


def _repeat(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    copied = list(tokens[start : start + count])
    period = len(copied)
    while len(copied) < count:
        copied.append(copied[-period])
    return tuple(copied)
