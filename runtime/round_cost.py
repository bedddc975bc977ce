"""What a round costs now: the measured T(m), corrected by how long the last rounds took.

A table made at compile time is off when the context has grown, another program wants the memory,
or the machine is another one. Each width keeps the logarithms ln(took / table) of its last rounds;
their lower median is that width's correction. A width that was not seen lately leans on the others
by nearness, min(w / v, v / w), and on the table. A deviation beyond what memory's moods explain is
taken for another machine's speed and holds for all widths. One slow round moves nothing by much: a
median passes it over, and the first round of a width counts at most `FIRST_TRUST` either way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from speccc.runtime.verify_cost import VerifyCost

KEPT = 9
"""Rounds of one width that are remembered: odd, so that the median is one of them."""
FADE = 0.998
"""A round's weight after each further round, of any width."""
WEATHER = 0.5
"""ln of how far memory may speed up or slow down alone: what is more holds for all widths alike."""
FIRST_TRUST = 0.5
"""ln of the most that the first round of a width may differ from what was expected of it."""
FURTHEST = 7.0
"""The most that one ln(took / table) counts for: a factor of a thousand is a broken clock."""
REFRESH = 8
"""Rounds after which the ratios are worked out anew, at the latest: 20 us are 1 % of a round."""


@dataclass(slots=True)
class _Seen:
    """The last rounds of one width: ln(took / table), and the number of the last of them."""

    logs: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: int = 0


@dataclass(slots=True)
class RoundCost:
    """Costs of the widths 1 to `most` in units of a plain round; `extra` is ms by drafted token."""

    table: VerifyCost
    most: int
    extra: float = 0.0
    _times: list[float] = field(init=False)
    _logs: list[float] = field(init=False)
    _seen: dict[int, _Seen] = field(default_factory=dict, init=False)
    _rounds: int = field(default=0, init=False)
    _fresh_until: int = field(default=-1, init=False)
    _ratios: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._times = [self.table.at(w) + self.extra * (w - 1) for w in range(1, self.most + 1)]
        self._logs = [math.log(ms) for ms in self._times]

    def serves(self, table: VerifyCost, most: int, extra: float) -> bool:
        """Whether these are costs of such rounds."""
        return (self.table, self.most, self.extra) == (table, most, extra)

    def observe(self, width: int, ms: float) -> None:
        """A round of `width` rows took `ms`."""
        self._rounds += 1
        if width > self.most or not 0.0 < ms < math.inf:
            return  # a clock too coarse to see the round says nothing
        seen = self._seen.get(width)
        if seen is None:
            seen = self._seen[width] = _Seen()
        log = math.log(ms) - self._logs[width - 1]
        seen.logs.append(min(max(log, -FURTHEST), FURTHEST))
        seen.last = self._rounds
        if width > 1 and len(seen.logs) < KEPT:
            self._fresh_until = -1

    def plain_age(self) -> int:
        """Rounds since the last that verified no draft; all of them when there was none."""
        plain = self._seen.get(1)
        return self._rounds - (plain.last if plain is not None else 0)

    def ratios(self) -> Sequence[float]:
        """Entry k: a round that verifies k drafted tokens over one that verifies none; 1 or more.

        Valid until the next `observe`.
        """
        if self._rounds > self._fresh_until:
            self._refresh()
            self._fresh_until = self._rounds + REFRESH
        return self._ratios

    def _refresh(self) -> None:
        seen = [
            (width, seen, len(seen.logs) * FADE ** (self._rounds - seen.last))
            for width, seen in list(self._seen.items())  # another request may add one meanwhile
        ]
        medians = {width: _lower_median(one.logs) for width, one, _ in seen}
        if medians:
            narrow = medians[min(medians)]
            level = narrow - min(max(narrow, -WEATHER), WEATHER)
            medians = {width: log - level for width, log in medians.items()}
        weights = {width: weight for width, _, weight in seen}
        now = [
            ms * math.exp(_correction(width, medians, weights))
            for width, ms in enumerate(self._times, start=1)
        ]
        self._ratios = [max(ms / now[0], 1.0) for ms in now]


def _correction(width: int, medians: dict[int, float], weights: dict[int, float]) -> float:
    """ln(now / table) of a width: its own rounds against what the others and the table say."""
    near, total = 0.0, 1.0  # the table counts as one round that said 0
    for other, log in medians.items():
        if other != width:
            weight = weights[other] * min(other / width, width / other)
            near += weight * log
            total += weight
    expected = near / total
    own = weights.get(width, 0.0)
    if own == 0.0:
        return expected
    log = medians[width]
    if own <= 1.0:
        log = min(max(log, expected - FIRST_TRUST), expected + FIRST_TRUST)
    return (own * log + expected) / (own + 1.0)


def _lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
