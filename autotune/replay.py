"""A recorded space in place of a device: what a search would have found, without measuring.

The recording is an export of the tuning cache; time is what the recorded measurements took.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from speccc.autotune.facts import Facts
from speccc.autotune.measure import Measured, OutOfTime
from speccc.autotune.record import Outcome, Record
from speccc.autotune.search import Search
from speccc.autotune.winner import Entry, pooled

UNKNOWN = Measured(Outcome.INVALID, message="not in the recording")


@dataclass
class Replay:
    """Answers as the worker did when the records were made. Its clock starts at 0."""

    entries: Sequence[Entry]
    now: float = 0.0
    measured: dict[Facts, Measured] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[Facts, list[Record]] = {}
        for entry in self.entries:
            found.setdefault(entry.record.config, []).append(entry.record)
        self.measured = {config: _measured(records) for config, records in found.items()}

    def clock(self) -> float:
        """Seconds of measuring replayed so far."""
        return self.now

    def ratios(self) -> dict[Facts, float]:
        """Time over the default's of all that was timed."""
        return {config: choice.ratio for config, choice in pooled(self.entries).items()}

    def measure(self, config: Facts, *, seconds: float, deadline: float) -> Measured:
        """What was measured then; OutOfTime when that took longer than there is time now."""
        found = self.measured.get(config, UNKNOWN)
        end = self.now + _cost(found)
        if end > deadline:
            self.now = deadline
            raise OutOfTime
        self.now = end
        return found


def recorded(records: Iterable[Record]) -> Replay:
    """A replay of records, which it takes for checked."""
    return Replay([Entry(record, True, record.identity()) for record in records])


def progress(search: Search, replay: Replay, steps: int) -> list[float]:
    """The best time over the default's after each of the search's first `steps` proposals."""
    ratios = replay.ratios()
    known: dict[Facts, float | None] = {}
    best: list[float] = []
    for _ in range(steps):
        config = search.propose(known)
        if config is None:
            break
        known[config] = ratios.get(config)
        best.append(min([1.0, *(r for r in known.values() if r is not None)]))
    return best


def random_progress(ratios: Sequence[float], steps: int) -> list[float]:
    """The same for a random order of all configurations, on average over all orders, exactly.

    Of n ratios in rising order the r-th (from 0) is the best of k drawn with probability
    C(n - r - 1, k - 1) / C(n, k).
    """
    rising = sorted(min(r, 1.0) for r in ratios)
    n = len(rising)
    out = []
    for k in range(1, min(steps, n) + 1):
        chance, mean = k / n, 0.0
        for r, ratio in enumerate(rising):
            mean += chance * ratio
            # C(n - r - 2, k - 1) / C(n - r - 1, k - 1)
            chance *= (n - r - k) / (n - r - 1) if n - r > 1 else 0.0
        out.append(mean)
    return out


def _measured(records: Sequence[Record]) -> Measured:
    bad = next((r for r in records if r.outcome is not Outcome.OK), None)
    if bad is not None:
        return Measured(bad.outcome, compile_s=bad.compile_s, message=bad.message)
    widths = {r.key.m: r for r in records}
    first = records[0]
    return Measured(
        Outcome.OK,
        {m: r.ms for m, r in widths.items()},
        {m: r.default_ms for m, r in widths.items() if r.default_ms is not None},
        first.compile_s,
        first.verify_s,
    )


def _cost(measured: Measured) -> float:
    """Seconds: building, checking, and each sample with the default's run beside it."""
    race = sum(2e-3 * sum(samples) for samples in measured.ms.values())
    return measured.compile_s + measured.verify_s + race
