"""T(m): the milliseconds that verifying m rows takes, as a table measured once and kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from speccc.errors import InputError


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Measured widths with their times; linear between them and, by the last slope, beyond."""

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
        right = min(max(bisect_left(widths, width), 1), len(widths) - 1)
        span = widths[right] - widths[right - 1]
        slope = (times[right] - times[right - 1]) / span
        floor = min(times)  # a falling last slope must not reach 0
        return max(times[right] + slope * (width - widths[right]), floor)


FLAT_GUESS = VerifyCost((1, 2), (1.0, 1.1))
"""Used when nothing was measured: a memory-bound device, in no unit; rounds correct it. With a
flatter guess, a device that is steep would pay for long drafts first."""
