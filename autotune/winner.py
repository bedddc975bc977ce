"""Which configuration to use, given all that was measured: the same answer every time.

Times of different sessions are compared through the default, which races in each of them:
a record counts as its samples over the default's median of its own session. Records of several
widths count together: the mean over the widths of T(m) / T_default(m).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from speccc.autotune.facts import Facts
from speccc.autotune.key import canonical
from speccc.autotune.record import Outcome, Record

BAND = 0.02
"""Candidates this close to the best are equal: two percent is what a quiet machine repeats."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as the cache keeps it; `verified` only after its numerics were checked here."""

    record: Record
    verified: bool
    identity: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, its time over the default's, and whether it may run unchecked.

    `ratio` is a median, `at_most` what its true value hardly exceeds, `samples` those of a width,
    `races` how often it was measured anew.
    """

    config: Facts
    ratio: float
    verified: bool
    samples: int
    at_most: float = 1.0
    races: int = 0


def choose(
    entries: Iterable[Entry], default: Facts, *, band: float = BAND, races: int = 1
) -> Choice:
    """The winner among records of one problem; `default` when nothing is clearly faster.

    The records may be of several widths. Samples of a configuration are pooled. One takes part
    only if it ran that many races and its samples make it `clearly_faster` than the default. Those
    within `band` of the best are equal, and of equals the default comes first, then the `simplest`.
    A configuration that was ever wrong here never wins; one whose last verified record is a failure
    does not either.
    """
    fit = [c for c in pooled(entries).values() if clearly_faster(c) and c.races >= races]
    choices = {**{c.config: c for c in fit}, default: Choice(default, 1.0, True, 0)}
    limit = min(choice.ratio for choice in choices.values()) * (1.0 + band)
    equal = {config for config, choice in choices.items() if choice.ratio <= limit}
    return choices[default if default in equal else min(equal, key=simplest)]


def clearly_faster(choice: Choice) -> bool:
    """Whether noise alone would hardly make the default look so much slower."""
    return choice.at_most < 1.0


def simplest(config: Facts) -> tuple[int, str]:
    """The fixed order among equals: fewest choices named, then the canonical text."""
    return len(config), canonical(dict(config))


def barred(entries: Iterable[Entry]) -> frozenset[Facts]:
    """Configurations not to try again: what failed here. A stranger's failures bar nothing."""
    last: dict[Facts, Record] = {}
    wrong: set[Facts] = set()
    for record in sorted((e.record for e in entries if e.verified), key=_age):
        last[record.config] = record
        if record.outcome is Outcome.WRONG:
            wrong.add(record.config)
    failed = {config for config, record in last.items() if record.outcome is not Outcome.OK}
    return frozenset(failed | wrong)


def _age(record: Record) -> tuple[str, bool]:
    # Within one second a failure is the last word.
    return record.at, record.outcome is not Outcome.OK


def pooled(entries: Iterable[Entry]) -> dict[Facts, Choice]:
    """The configurations that were timed and may be used, each with the samples of all sessions.

    One that was not timed at every width there are records of is left out.
    """
    entries = list(entries)
    out = barred(entries)
    ratios: dict[Facts, dict[int, list[float]]] = {}
    raced: Counter[tuple[Facts, int]] = Counter()
    checked: set[Facts] = set()
    for entry in entries:
        record = entry.record
        if record.config in out or record.default_ms is None or not record.ms:
            continue
        widths = ratios.setdefault(record.config, {})
        raced[record.config, record.key.m] += 1
        widths.setdefault(record.key.m, []).extend(s / record.default_ms for s in record.ms)
        if entry.verified:
            checked.add(record.config)
    every = {m for widths in ratios.values() for m in widths}
    return {
        config: Choice(
            config,
            mean(median(values) for values in widths.values()),
            config in checked,
            min(len(values) for values in widths.values()),
            mean(upper_bound(values) for values in widths.values()),
            min(raced[config, m] for m in widths),
        )
        for config, widths in ratios.items()
        if widths.keys() == every
    }


def upper_bound(values: Sequence[float]) -> float:
    """What the true median is not above in 99 of 100 cases; the largest value if there are few.

    An order statistic: of n samples, n / 2 +- sqrt(n) / 2 lie below the median, and 2.33 deviations
    of a binomial distribution are exceeded so often.
    """
    n = len(values)
    return sorted(values)[min(n, math.ceil(n / 2 + 1.165 * math.sqrt(n))) - 1]
