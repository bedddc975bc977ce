"""Numbers on the command line: finite ones, and lists of whole ones as `1-16,24,32`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

MOST_RANGE = 4096
Callback = Callable[[click.Context, click.Parameter, str], tuple[int, ...]]


class Finite(click.FloatRange):
    """A float within bounds. `nan`, which no bound excludes, and infinity are usage errors."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def number_list(least: int, most: int) -> Callback:
    """A callback for an option of text: numbers and ranges, joined by commas.

    Gives a rising tuple without doubles, empty for ''. A usage error names the bad part.
    """

    def convert(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
        try:
            return numbers(text, least, most)
        except ValueError as error:
            raise click.BadParameter(str(error), context, option) from None

    return convert


def numbers(text: str, least: int, most: int) -> tuple[int, ...]:
    """The numbers of a list, all within least..most; ValueError says what is wrong."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, dash, last = (end.strip() for end in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
            raise ValueError(f"{part!r} is no number or range such as 1-16")
        low, high = (int(end) for end in ends)
        if not least <= low <= high <= most:
            raise ValueError(f"{part!r} is not within {least} to {most}")
        if high - low > MOST_RANGE:
            raise ValueError(f"{part!r} has more than {MOST_RANGE} numbers")
        found.update(range(low, high + 1))
    return tuple(sorted(found))
