"""Which passes verify m rows in the least time: one of m, one of more, or several of fewer.

A row's bits do not depend on the rows beside it, so a dear width may be run as cheaper ones
(5 = 4 + 1), or with a row to spare that is thrown away (15 as 16).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORTH = 0.95
"""Passes replace the one of m rows only below this share of its time: less may be noise."""


@dataclass(frozen=True, slots=True)
class Split:
    """The cheapest way to m rows: its time and the widths of its passes, widest first.

    The widths add up to m or more; what is more belongs to the last pass.
    """

    ms: float
    widths: tuple[int, ...]


def split_columns(measured: Mapping[int, float]) -> dict[int, Split]:
    """The best split of each m from 1 to the widest measured, by dynamic programming.

    `measured` gives milliseconds by width, from 1; between widths they are interpolated. The times
    never fall with m: m rows may be run as m + 1, and a split of m + 1 with a row less.
    """
    known = sorted(measured)
    widest = known[-1] if known else 0
    best: list[Split] = [Split(0.0, ())] * (widest + 1)
    for m in range(widest, 0, -1):
        alone = Split(_between(measured, known, m), (m,))
        wider = best[m + 1] if m < widest else alone
        best[m] = min(alone, wider, key=lambda split: split.ms)
    for m in range(2, widest + 1):
        for a in range(1, m // 2 + 1):
            one, other = best[a], best[m - a]
            if one.ms + other.ms < best[m].ms:
                widths = sorted(one.widths + other.widths, reverse=True)
                best[m] = Split(one.ms + other.ms, tuple(widths))
    return {m: best[m] for m in range(1, widest + 1)}


def worthwhile(
    splits: Mapping[int, Split], measured: Mapping[int, float], fastest: Mapping[int, float]
) -> dict[int, Split]:
    """Those that beat the one pass of m rows by more than noise.

    They must do so in the `fastest` times as well: other work on the machine makes some medians
    longer than others, but no pass faster than it is.
    """
    return {
        m: split
        for m, split in splits.items()
        if split.widths != (m,)
        and all(
            sum(_between(times, sorted(times), w) for w in split.widths)
            < WORTH * _between(times, sorted(times), m)
            for times in (measured, fastest)
        )
    }


def _between(measured: Mapping[int, float], known: Sequence[int], m: int) -> float:
    if m in measured:
        return measured[m]
    right = bisect_left(known, m)
    low, high = known[right - 1], known[right]
    share = (m - low) / (high - low)
    return measured[low] * (1 - share) + measured[high] * share
