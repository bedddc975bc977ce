"""What a generation cost and how well its drafts held.

Formulas as in vLLM and llama.cpp: mean acceptance length = 1 + accepted / steps, acceptance at
position i = drafts that held to i / steps, where a step is a round that verified a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """One verify round: the first output token it gave, tokens drafted, depth, depth accepted."""

    start: int
    drafted: int
    depth: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one generation; times in seconds. Accepted tokens are only those delivered."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    rounds: int
    steps: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]
    histogram: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of a round that had a draft, the target's own included; 1 without drafts."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of the steps whose draft held at least to each position."""
        return tuple(count / self.steps for count in self.accepted_at)

    @property
    def tokens_per_round(self) -> float:
        """Delivered tokens per pass of the target, rounds without a draft included."""
        return self.completion_tokens / self.rounds if self.rounds else 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second, cached ones left out; 0 when nothing was timed."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Delivered tokens per second; 0 when nothing was timed."""
        return _rate(self.completion_tokens, self.decode_seconds)


def summarize(
    rounds: Sequence[Round],
    *,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int = 0,
    prefill_seconds: float = 0.0,
    decode_seconds: float = 0.0,
) -> Stats:
    """The counts of `rounds`, an accepted token counting only if it was delivered."""
    steps = [round_ for round_ in rounds if round_.drafted]
    kept = [max(0, min(step.accepted, completion_tokens - step.start)) for step in steps]
    deepest = max((step.depth for step in steps), default=0)
    return Stats(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        rounds=len(rounds),
        steps=len(steps),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(kept),
        accepted_at=tuple(sum(count > at for count in kept) for at in range(deepest)),
        histogram=tuple(kept.count(n) for n in range(deepest + 1)) if steps else (),
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else 0.0
