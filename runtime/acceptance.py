"""How often drafted tokens hold: a decaying estimate by grade, which starts at the drafter's own.

For a grade with the decayed counts `tested` and `held` the chance is

    (held + WEIGHT * prior) / (tested + WEIGHT)

`DECAY` forgets by observation, so that a change of text is followed within a few of them; `FADE`
forgets by round, so that a grade that is left alone comes back to its prior and is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from speccc.runtime.drafter import Draft, Grade

DECAY = 0.9
FADE = 0.99
WEIGHT = 2.0
"""Observations that the drafter's own guess counts for."""


@dataclass(slots=True)
class _Counts:
    tested: float = 0.0
    held: float = 0.0
    last: int = 0


@dataclass(slots=True)
class Acceptance:
    """Estimates of one request; deterministic, from the observations alone."""

    _counts: dict[int, _Counts] = field(default_factory=dict, init=False)
    _rounds: int = field(default=0, init=False)

    def chance(self, grade: Grade) -> float:
        """The chance that a token of this grade holds, given that its parent does."""
        seen = self._counts.get(grade.key)
        if seen is None:
            return grade.chance
        fade = FADE ** (self._rounds - seen.last)
        return (seen.held * fade + WEIGHT * grade.chance) / (seen.tested * fade + WEIGHT)

    def observe(self, draft: Draft, grades: Sequence[Grade], nodes: Sequence[int]) -> None:
        """A round: of the draft, whose tokens have these grades, `nodes` held (a path)."""
        self._rounds += 1
        if draft.parents is None:
            for node in range(min(len(nodes) + 1, len(draft.tokens))):
                self._count(grades[node].key, node < len(nodes))
            return
        held = {-1, *nodes}
        for node, parent in enumerate(draft.parents):
            if parent in held:
                self._count(grades[node].key, node in held)

    def _count(self, key: int, held: bool) -> None:
        seen = self._counts.get(key)
        if seen is None:
            seen = self._counts[key] = _Counts()
        keep = DECAY * FADE ** (self._rounds - seen.last)
        seen.tested = seen.tested * keep + 1.0
        seen.held = seen.held * keep + float(held)
        seen.last = self._rounds
