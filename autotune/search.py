"""The order in which configurations of a step are tried: a pure function of what is known.

Nothing is kept between calls, so a search that was killed goes on from the records of the cache.
The best configuration so far is the base of all further ones:

1. the default, then configurations that were good elsewhere;
2. a choice that won in one kernel, in all kernels that have it;
3. in turn: the schedule of one kernel with most to gain by the prior, and a neighbour of the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from speccc.autotune.facts import Fact, Facts
from speccc.autotune.prior import Prior
from speccc.autotune.step_space import DEFAULT, StepSpace
from speccc.autotune.winner import BAND, simplest

UNKNOWN = 0.1
"""Of a kernel's time, what a schedule may gain or lose that the prior does not foresee."""

Known = Mapping[Facts, "float | None"]
"""Time over the default's by configuration; None for one that failed."""


@dataclass(frozen=True)
class Search:
    """What is to be searched, and what is known before anything is measured."""

    space: StepSpace
    prior: Prior
    seeds: Sequence[Facts] = ()
    order: Sequence[tuple[str, Facts]] = field(init=False)
    """Single schedules of all kernels, most to gain first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", self._ordered())

    def _ordered(self) -> list[tuple[str, Facts]]:
        """By what the prior expects, and of what it does not know a part of the kernel's share,
        which shrinks as the kernel's list is used up."""
        moves = []
        for kernel in self.space.kernels:
            alone = set(self.space.moves(DEFAULT, kernel)) - {DEFAULT}
            expected = sorted((self.prior.ratio(c), simplest(c), c) for c in alone)
            unknown = UNKNOWN * self.prior.share(kernel)
            moves += [
                (ratio - unknown / (1 + place), kernel, place, config)
                for place, (ratio, _, config) in enumerate(expected)
            ]
        return [(kernel, config) for _, kernel, _, config in sorted(moves)]

    def propose(self, known: Known) -> Facts | None:
        """The next configuration to measure; None when there is nothing left to try."""
        best = self.best(known)
        sources = [iter((DEFAULT,)), self._legal_seeds(), self._spread(best)]
        near, far = self._near(best), self._by_prior(best)
        sources += [near, far] if len(known) % 2 else [far, near]
        for source in sources:
            for config in source:
                if config not in known and self.space.why_not(config) is None:
                    return config
        return None

    def best(self, known: Known) -> Facts:
        """What to build on: the simplest of those that are as fast as the fastest, as
        `winner.choose` has it; a difference that is only noise leads nowhere."""
        timed = {c: ratio for c, ratio in known.items() if ratio is not None}
        limit = min((1.0, *timed.values())) * (1.0 + BAND)
        return min(
            (c for c, ratio in timed.items() if ratio <= limit), key=simplest, default=DEFAULT
        )

    def _legal_seeds(self) -> Iterator[Facts]:
        return (seed for seed in self.seeds if self.space.why_not(seed) is None)

    def _spread(self, best: Facts) -> Iterator[Facts]:
        """Each choice of the best in every kernel that may have it; then all of them together."""
        choices = {(name.rpartition(".")[2], value) for name, value in best}
        if not choices:
            return
        for chosen in (*([c] for c in sorted(choices, key=str)), sorted(choices, key=str)):
            config = best
            for choice, value in chosen:
                config = self._everywhere(config, choice, value)
            yield config

    def _everywhere(self, config: Facts, choice: str, value: Fact) -> Facts:
        for kernel, own in self.space.kernels.items():
            changed = self.space.config(config, kernel)
            if choice in changed and not isinstance(value, float):
                changed[choice] = value
                if own.why_not(changed) is None:
                    config = self.space.replace(config, kernel, changed)
        return config

    def _by_prior(self, best: Facts) -> Iterator[Facts]:
        for kernel, alone in self.order:
            yield self.space.replace(best, kernel, self.space.config(alone, kernel))

    def _near(self, best: Facts) -> Iterator[Facts]:
        near = [] if best == DEFAULT else list(self.space.neighbors(best))
        return iter(sorted(near, key=lambda c: (self.prior.ratio(c), simplest(c))))
