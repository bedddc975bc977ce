"""How many drafted tokens to verify: the number with the most expected tokens per second.

With S_d the chance that the first d guesses hold, T(m) the time to verify m rows and k drafted
tokens that reach depth D(k), the rate is (1 + S_1 + ... + S_D(k)) / T(1 + k); k = 0 is plain
decoding and wins ties. The choice depends on the observations alone, never on the clock, and it
cannot change the text: with verification by equality a shorter draft is always safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from speccc.errors import InputError
from speccc.runtime.drafter import Draft


class Controller(Protocol):
    """Chooses draft lengths; may learn across the requests of one session."""

    def limit(self) -> int:
        """The most tokens worth asking the drafter for."""

    def choose(self, draft: Draft) -> int:
        """How many of the draft's tokens to verify, 0 to all."""

    def observe(self, draft: Draft, accepted: int) -> None:
        """The draft as verified, and to what depth it held."""


@dataclass(frozen=True, slots=True)
class FixedController:
    """Always k tokens, or as many as the drafter has."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 0:
            raise InputError(f"must be 0 or more, not {self.k}", where="draft length")

    def limit(self) -> int:
        return self.k

    def choose(self, draft: Draft) -> int:
        return min(self.k, len(draft.tokens))

    def observe(self, draft: Draft, accepted: int) -> None:
        """A fixed length learns nothing."""


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """T(m) in milliseconds: measured widths, linear between them and, by the last slope, beyond."""

    widths: tuple[int, ...]
    milliseconds: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.widths, self.widths[1:], strict=False))
        if not self.widths or self.widths[0] != 1 or not rising:
            raise InputError("widths must start at 1 and rise", where="verify cost")
        if len(self.milliseconds) != len(self.widths) or not all(
            0.0 < ms < float("inf") for ms in self.milliseconds
        ):
            raise InputError("each width needs a time above 0", where="verify cost")

    @classmethod
    def from_table(cls, table: Mapping[int, float]) -> VerifyCost:
        """From width -> milliseconds."""
        widths = tuple(sorted(table))
        return cls(widths, tuple(table[width] for width in widths))

    def at(self, width: int) -> float:
        """Milliseconds to verify `width` rows."""
        widths, times = self.widths, self.milliseconds
        if len(widths) == 1:
            return times[0]
        right = next((i for i in range(1, len(widths)) if widths[i] >= width), len(widths) - 1)
        span = widths[right] - widths[right - 1]
        slope = (times[right] - times[right - 1]) / span
        floor = min(times)  # a falling last slope must not reach 0
        return max(times[right] + slope * (width - widths[right]), floor)


FLAT_GUESS = VerifyCost((1, 2), (1.0, 1.03))
"""Used when nothing was measured: a memory-bound device with a small slope."""


@dataclass(slots=True)
class _Bucket:
    """Decayed counts by depth: how often depth d was tested and held, given d - 1 held.

    And the probing of drafts of this trust: rounds held back, and how many to wait for.
    """

    wait: int
    held_back: int = 0
    probe: int = 0  # depth of the probe under way

    tested: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)


@dataclass(slots=True)
class AdaptiveController:
    """Maximises the expected rate from T(m) and the acceptance seen so far, by bucket and depth.

    `draft_ms` is the drafter's time per token: 0 for a lookup, whose draft is seen before the
    choice; otherwise `limit` chooses, as the time is spent once the draft is there.

    When the choice stays short, every `probe_every` rounds of a bucket one goes up to twice as deep
    (at least 1); a probe that holds is repeated at once, one that fails doubles the wait, up to
    `probe_longest` rounds.
    """

    cost: VerifyCost = FLAT_GUESS
    max_draft: int = 15
    draft_ms: float = 0.0
    decay: float = 0.95
    prior: float = 0.6
    prior_weight: float = 1.0
    probe_every: int = 16
    probe_longest: int = 256
    _seen: dict[int, _Bucket] = field(default_factory=dict, init=False)
    _times: list[float] = field(default_factory=list, init=False)
    _last_bucket: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.max_draft < 0:
            raise InputError(f"must be 0 or more, not {self.max_draft}", where="draft length")
        self._times = [self.cost.at(width) for width in range(1, self.max_draft + 2)]

    def limit(self) -> int:
        """All of `max_draft` for a free drafter; else what pays for its drafting time too."""
        if self.draft_ms == 0.0:
            return self.max_draft
        depths = range(1, self.max_draft + 1)
        best = self._best(self._last_bucket, depths, self.draft_ms)
        return self._explore(self._last_bucket, best, self.max_draft)

    def choose(self, draft: Draft) -> int:
        most = min(len(draft.tokens), self.max_draft)
        if self.draft_ms:
            return most
        best = self._best(draft.bucket, draft.depths()[:most], 0.0)
        return self._explore(draft.bucket, best, most)

    def observe(self, draft: Draft, accepted: int) -> None:
        if not draft.tokens:
            return
        self._last_bucket = draft.bucket
        seen = self._bucket(draft.bucket)
        deepest = max(draft.depths())
        for depth in range(min(accepted + 1, deepest)):
            if depth == len(seen.tested):
                seen.tested.append(0.0)
                seen.held.append(0.0)
            seen.tested[depth] = seen.tested[depth] * self.decay + 1.0
            seen.held[depth] = seen.held[depth] * self.decay + float(depth < accepted)
        if seen.probe:
            held = accepted >= min(seen.probe, deepest)
            longer = min(max(2 * seen.wait, self.probe_every), self.probe_longest)
            seen.wait = 1 if held else longer
            seen.probe = 0

    def acceptance(self, depth: int, bucket: int = 0) -> float:
        """The estimate of P(depth holds | depth - 1 held), depth from 1.

        A depth never tested is taken to hold as often as the one before it.
        """
        return self._rates(bucket, depth)[-1]

    def _rates(self, bucket: int, deepest: int) -> list[float]:
        seen = self._bucket(bucket)
        rates: list[float] = []
        rate = self.prior
        for depth in range(deepest):
            if depth < len(seen.tested):
                mass = seen.tested[depth] + self.prior_weight
                rate = (seen.held[depth] + self.prior_weight * rate) / mass
            rates.append(rate)
        return rates

    def _best(self, bucket: int, depths: Sequence[int], draft_ms: float) -> int:
        rates = self._rates(bucket, max(depths, default=0))
        best, best_rate = 0, 1.0 / self._times[0]
        tokens, survival, deepest = 1.0, 1.0, 0
        for count, depth in enumerate(depths, start=1):
            if depth > deepest:
                deepest = depth
                survival *= rates[depth - 1]
                tokens += survival
            rate = tokens / (self._times[count] + draft_ms * count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best

    def _explore(self, bucket: int, best: int, most: int) -> int:
        if best >= most:
            return best
        seen = self._bucket(bucket)
        seen.held_back += 1
        if seen.held_back < seen.wait:
            return best
        seen.held_back = 0
        seen.probe = min(most, max(1, 2 * best))
        return seen.probe

    def _bucket(self, bucket: int) -> _Bucket:
        if bucket not in self._seen:
            self._seen[bucket] = _Bucket(wait=self.probe_every)
        return self._seen[bucket]
