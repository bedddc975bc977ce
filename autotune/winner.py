"""Which configuration to use, given all that was measured: the same answer every time.

Times of different sessions are compared through the default, which races in each of them:
a record counts as its samples over the default's median of its own session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

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
    """A configuration, its time over the default's, and whether it may run unchecked."""

    config: Facts
    ratio: float
    verified: bool
    samples: int


def choose(entries: Iterable[Entry], default: Facts, *, band: float = BAND) -> Choice:
    """The winner among records of one key; `default` when nothing is clearly faster.

    Samples of a configuration are pooled. Those within `band` of the best are equal, and of
    equals the default comes first, then the order of their canonical texts. A configuration that
    was ever wrong here never wins; one whose last verified record is a failure does not either.
    """
    pooled = _pool(entries)
    pooled[canonical(dict(default))] = Choice(default, 1.0, True, 0)
    limit = min(choice.ratio for choice in pooled.values()) * (1.0 + band)
    equal = {text: choice for text, choice in pooled.items() if choice.ratio <= limit}
    return next((c for c in equal.values() if c.config == default), equal[min(equal)])


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


def _pool(entries: Iterable[Entry]) -> dict[str, Choice]:
    entries = list(entries)
    out = barred(entries)
    ratios: dict[Facts, list[float]] = {}
    checked: set[Facts] = set()
    for entry in entries:
        record = entry.record
        if record.config in out or record.default_ms is None:
            continue
        ratios.setdefault(record.config, []).extend(s / record.default_ms for s in record.ms)
        if entry.verified:
            checked.add(record.config)
    return {
        canonical(dict(config)): Choice(config, median(values), config in checked, len(values))
        for config, values in ratios.items()
        if values
    }
