"""T(m): the time a compiled step takes to verify m tokens, measured on the machine at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from speccc.column_split import Split, split_columns, worthwhile

WIDTHS = (*range(1, 17), 24, 32, 64)
CONTEXT = 160
"""Tokens of the session to measure with."""
PROMPT = 64
BUDGET = 1.5
"""Seconds, as far as `VISITS` allow."""
VISITS = (3, 40)
"""Least and most times each width is measured."""
WARM_UP = 16
"""Up to this width a pass before the measured one finds the caches as other widths left them."""
NOISY = 0.2
"""Above this share of the median, the middle half of the times shows a busy machine."""
LEAST_MS = 1e-6
"""A clock too coarse to see a step still gives a time above 0."""

Samples = Mapping[int, Sequence[float]]
"""Milliseconds by width."""


class Measured(Protocol):
    """The part of a session that is measured."""

    length: int

    def pick(self, tokens: Sequence[int]) -> object:
        """Appends tokens."""

    def truncate(self, length: int) -> None:
        """Forgets all but the first tokens."""


@dataclass(frozen=True)
class VerifyTable:
    """The samples in ms by width, and what follows from them."""

    samples: Samples

    @cached_property
    def measured(self) -> dict[int, float]:
        """Median ms by measured width."""
        return {w: max(statistics.median(ms), LEAST_MS) for w, ms in self.samples.items()}

    @cached_property
    def fastest(self) -> dict[int, float]:
        """Least ms by measured width."""
        return {w: max(min(ms), LEAST_MS) for w, ms in self.samples.items()}

    @cached_property
    def splits(self) -> dict[int, Split]:
        """The cheapest passes for every number of rows up to the widest measured."""
        return split_columns(self.measured)

    @property
    def planned(self) -> dict[str, float]:
        """ms by measured width as text, each width run the cheapest way: it never falls."""
        return {str(w): round(self.splits[w].ms, 6) for w in sorted(self.measured)}

    @cached_property
    def spread(self) -> dict[int, float]:
        """The middle half of the times of each width, as a share of its median."""
        return {w: _middle_half(ms) / self.measured[w] for w, ms in self.samples.items()}

    @property
    def noisy(self) -> bool:
        """Whether the times vary so much that no width can be told to be dear."""
        return bool(self.spread) and statistics.median(self.spread.values()) > NOISY

    def document(self) -> dict[str, object]:
        """Ready for the manifest; `splits` holds the widths of the passes where they are not m."""
        worth = {} if self.noisy else worthwhile(self.splits, self.measured, self.fastest)
        return {
            "measured_ms": {str(w): round(ms, 6) for w, ms in self.measured.items()},
            "spread": {str(w): round(share, 3) for w, share in self.spread.items()},
            "noisy": self.noisy,
            "splits": {str(m): list(split.widths) for m, split in worth.items()},
        }


def measure(
    session: Measured,
    room: int,
    *,
    budget: float = BUDGET,
    clock: Callable[[], float] = time.perf_counter,
) -> VerifyTable:
    """Samples within about `budget` seconds; `room` is the session's context.

    The width that took the least time so far goes next, so that narrow widths, whose times are
    short and vary most, are measured often, and a slow moment hits all alike.
    """
    prompt = min(PROMPT, room // 2)
    widths = [w for w in WIDTHS if prompt + w <= room]
    if prompt:
        session.pick([0] * prompt)
    samples: dict[int, list[float]] = {w: [] for w in widths}
    spent = dict.fromkeys(widths, 0.0)
    begun = clock()
    while widths:
        width = _next(samples, spent, clock() - begun > budget)
        if width is None:
            break
        visited = clock()
        samples[width].append(1000 * _visit(session, width, prompt, clock))
        spent[width] += clock() - visited
    return VerifyTable(samples)


def _next(
    samples: Mapping[int, Sequence[float]], spent: Mapping[int, float], late: bool
) -> int | None:
    least, most = VISITS
    fewest = min(len(taken) for taken in samples.values())
    if fewest < least:
        return next(w for w, taken in samples.items() if len(taken) == fewest)
    open_widths = [w for w, taken in samples.items() if len(taken) < most]
    return None if late or not open_widths else min(open_widths, key=lambda w: spent[w])


def _visit(session: Measured, width: int, prompt: int, clock: Callable[[], float]) -> float:
    ids = [0] * width
    if width <= WARM_UP:
        session.pick(ids)
        session.truncate(prompt)
    begun = clock()
    session.pick(ids)
    took = clock() - begun
    session.truncate(prompt)
    return took


def _middle_half(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
