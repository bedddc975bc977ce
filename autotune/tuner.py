"""The tuning loop: it owns the budget and the cache; what is tried next is the search's business.

Every record is in the cache before the next candidate starts, so a tuning that is killed loses
the candidate it was at, and the next one goes on from there.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Protocol

from speccc.autotune.cache import TuneCache
from speccc.autotune.facts import Facts, facts
from speccc.autotune.key import TuneKey
from speccc.autotune.measure import Measured, OutOfTime
from speccc.autotune.prior import Prior
from speccc.autotune.record import Outcome, Record, now
from speccc.autotune.search import Known, Search
from speccc.autotune.step_space import DEFAULT, StepSpace
from speccc.autotune.winner import (
    BAND,
    Choice,
    Entry,
    barred,
    choose,
    clearly_faster,
    pooled,
    simplest,
)

RACE = 0.4
"""Seconds a candidate is timed; five rounds at least, whatever they take."""
CONFIRM = 1.2
"""Seconds the winner is timed again: the best of many is the luckiest, too."""
CONFIRMED = 3
"""Races a winner other than the default runs, budget permitting; with fewer than two it is not
kept: among many candidates one is lucky once."""
RESERVE = (0.2, 4.0)
"""Of the budget, and at most seconds, kept for confirming."""


class Measurer(Protocol):
    """What measures: `Worker`, or a replay of records."""

    def measure(self, config: Facts, *, seconds: float, deadline: float) -> Measured:
        """One configuration beside the default; OutOfTime at the deadline."""


@dataclass(frozen=True)
class Problem:
    """What is tuned: the keys of its records by width, its space, and what to expect."""

    keys: Mapping[int, TuneKey]
    space: StepSpace
    prior: Prior


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a tuning has come: seconds, configurations tried, the best time over the default."""

    spent: float
    budget: float
    tried: int
    best: float
    trying: Facts


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice, and how it was come by. `exhausted`: nothing was left to try."""

    choice: Choice
    tried: int
    outcomes: Mapping[str, int]
    seconds: float
    exhausted: bool


Tell = Callable[[Progress], None]


@dataclass
class _Session:
    """One tuning: what it writes into the cache, and what is known so far."""

    problem: Problem
    cache: TuneCache
    tell: Tell
    clock: Callable[[], float]
    budget: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    outcomes: Counter[str] = field(default_factory=Counter)
    begun: float = 0.0

    def entries(self) -> list[Entry]:
        """What may be built upon."""
        return usable_entries(self.problem, self.cache)

    def run(self, measurer: Measurer) -> Tuned:
        self.begun = self.clock()
        end = self.begun + self.budget
        search = Search(self.problem.space, self.problem.prior, seeds(self.cache, self.problem))
        exhausted = False
        with suppress(OutOfTime):
            exhausted = self._explore(search, measurer, end)
        with suppress(OutOfTime):
            self._confirm(measurer, end)
        if not self.entries():
            self._note_the_end()
        choice = best_known(self.entries())
        tried, spent = sum(self.outcomes.values()), self.clock() - self.begun
        # The end, however early it comes.
        self.tell(Progress(spent, spent, tried, choice.ratio, choice.config))
        return Tuned(choice, tried, dict(self.outcomes), spent, exhausted)

    def _explore(self, search: Search, measurer: Measurer, end: float) -> bool:
        """Measures what the search proposes; whether it ran out of proposals."""
        until = end - min(RESERVE[0] * self.budget, RESERVE[1])
        while self.clock() < until:
            known = known_ratios(self.entries())
            config = search.propose(known)
            if config is None:
                return True
            best = min((r for r in known.values() if r is not None), default=1.0)
            self._tell(min(best, 1.0), config)
            # The first one builds and checks the default too: it may use the reserve.
            self._measure(measurer, config, RACE, until if known else end)
        return False

    def _confirm(self, measurer: Measurer, end: float) -> None:
        """Races what looks fastest again, until that has won often enough to be believed."""
        while self.clock() < end:
            timed = pooled(self.entries())
            leader = min(
                (choice for config, choice in timed.items() if config != DEFAULT),
                key=lambda c: (c.ratio, simplest(c.config)),
                default=None,
            )
            if leader is None or leader.races >= CONFIRMED or leader.ratio * (1 + BAND) >= 1.0:
                return
            self._tell(leader.ratio, leader.config)
            self._measure(measurer, leader.config, CONFIRM, end)

    def _measure(self, measurer: Measurer, config: Facts, seconds: float, end: float) -> None:
        measured = measurer.measure(config, seconds=seconds, deadline=end)
        self.outcomes[measured.outcome.value] += 1
        number = sum(self.outcomes.values())
        self.cache.add(records(self.problem.keys, config, measured, self.name, number))

    def _note_the_end(self) -> None:
        """Keeps that the budget was too short for the default: it was spent, and will not be
        spent again by everyone who only wants what is known."""
        why = Measured(Outcome.TIMEOUT, message=f"the budget of {self.budget:g} s ended first")
        self.cache.add(records(self.problem.keys, DEFAULT, why, self.name, 0))

    def _tell(self, best: float, config: Facts) -> None:
        spent = self.clock() - self.begun
        self.tell(Progress(spent, self.budget, sum(self.outcomes.values()), best, config))


def tune(
    problem: Problem,
    cache: TuneCache,
    measurer: Measurer,
    budget: float,
    *,
    tell: Tell | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Tunes for `budget` seconds and returns the choice of all that is known by then.

    DefaultFails when not even the untuned default works.
    """
    return _Session(problem, cache, tell or (lambda p: None), clock, budget).run(measurer)


def usable_entries(problem: Problem, cache: TuneCache) -> list[Entry]:
    """The records of a problem made on this very device, checked on it, and of its space."""
    found = [entry for key in problem.keys.values() for entry in cache.lookup(key).exact]
    return [e for e in found if e.verified and problem.space.why_not(e.record.config) is None]


def best_known(entries: Iterable[Entry]) -> Choice:
    """The choice among records: it was believed only after it won again."""
    return choose(entries, DEFAULT, races=2)


def known_ratios(entries: Iterable[Entry]) -> Known:
    """Time over the default's by configuration; None for those that failed.

    What is not clearly faster than the default is not taken for faster: on a busy machine the
    search would follow the noise. The default is as fast as itself, whatever a race of it with
    itself says.
    """
    entries = list(entries)
    known: dict[Facts, float | None] = dict.fromkeys(barred(entries))
    for config, choice in pooled(entries).items():
        known[config] = choice.ratio if clearly_faster(choice) else max(choice.ratio, 1.0)
    return {**known, DEFAULT: 1.0} if DEFAULT in known else known


def seeds(cache: TuneCache, problem: Problem) -> list[Facts]:
    """Configurations that were faster than the default for others, best first.

    Their times are a hint, and their numerics were not checked here: they race as any candidate.
    """
    found = [cache.lookup(key) for key in problem.keys.values()]
    others = [e for f in found for e in (*f.family, *(x for x in f.exact if not x.verified))]
    by_device: dict[str, list[Entry]] = {}
    for entry in others:
        by_device.setdefault(entry.record.key.device.digest(), []).append(entry)
    good: dict[Facts, float] = {}
    for entries in by_device.values():
        for config, choice in pooled(entries).items():
            if choice.ratio < 1.0:
                good[config] = min(choice.ratio, good.get(config, 1.0))
    return sorted(good, key=lambda config: (good[config], simplest(config)))


def records(
    keys: Mapping[int, TuneKey], config: Facts, measured: Measured, session: str, number: int
) -> list[Record]:
    """The records of a session's n-th measurement, one a width; a failure is of no width and is
    kept once. The number tells two races apart that came out the same."""
    widths = list(keys) if measured.outcome is Outcome.OK else [min(keys)]
    provenance = facts({"session": session, "number": number, "speccc": metadata.version("speccc")})
    return [
        Record(
            key=keys[m],
            config=config,
            outcome=measured.outcome,
            ms=measured.ms.get(m, ()),
            default_ms=measured.default_ms.get(m),
            compile_s=measured.compile_s,
            verify_s=measured.verify_s,
            at=now(),
            provenance=provenance,
            message=measured.message,
        )
        for m in widths
    ]
