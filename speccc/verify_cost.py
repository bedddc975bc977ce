"""T(m): the time a compiled step takes to verify m tokens, measured on the machine at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
CONTEXT = 128
"""Tokens of the session to measure with."""
PROMPT = 64
ROUNDS = (3, 25)
"""Least and most times each width is measured."""


class Measured(Protocol):
    """The part of a session that is measured."""

    length: int

    def forward(self, tokens: Sequence[int]) -> object:
        """Appends tokens."""

    def truncate(self, length: int) -> None:
        """Forgets all but the first tokens."""


def measure(
    session: Measured,
    room: int,
    *,
    budget: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Milliseconds by width: medians within about `budget` seconds, made non-decreasing.

    `room` is the session's context. Widths take turns, so that a slow moment hits all alike.
    """
    prompt = min(PROMPT, room // 2)
    widths = [w for w in WIDTHS if prompt + w <= room]
    if prompt:
        session.forward([0] * prompt)
    samples: dict[int, list[float]] = {w: [] for w in widths}
    _round(session, samples, prompt, clock)  # the first calls wake threads and touch memory
    for taken in samples.values():
        taken.clear()
    begun = clock()
    for n in range(ROUNDS[1]):
        if n >= ROUNDS[0] and clock() - begun > budget:
            break
        _round(session, samples, prompt, clock)
    return rising({w: statistics.median(taken) for w, taken in samples.items()})


def _round(
    session: Measured, samples: dict[int, list[float]], prompt: int, clock: Callable[[], float]
) -> None:
    for width, taken in samples.items():
        ids = [0] * width
        begun = clock()
        session.forward(ids)
        taken.append(clock() - begun)
        session.truncate(prompt)


def rising(seconds: dict[int, float]) -> dict[str, float]:
    """The table in ms with text keys; no width takes less than a smaller one (noise would say so).

    A clock too coarse to see a step still gives a time above 0.
    """
    out: dict[str, float] = {}
    least = 1e-6
    for width in sorted(seconds):
        least = max(least, 1000 * seconds[width])
        out[str(width)] = round(least, 6)
    return out
