"""A list of whole numbers on the command line: `1-16,24,32`."""

from __future__ import annotations

import click


class NumberList(click.ParamType):
    """Numbers and ranges, joined by commas -> a rising tuple without doubles; empty for ''."""

    name = "numbers"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The tuple; a usage error names the part that is no number in the range."""
        if isinstance(value, tuple):
            return value
        numbers: set[int] = set()
        for part in str(value).split(",") if value else ():
            first, dash, last = (text.strip() for text in part.partition("-"))
            ends = (first, last if dash else first)
            if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in ends):
                self.fail(f"{part!r} is no number or range such as 1-16", param, ctx)
            low, high = (int(text) for text in ends)
            if not self.least <= low <= high <= self.most:
                self.fail(f"{part!r} is not within {self.least} to {self.most}", param, ctx)
            if high - low > _MOST_RANGE:
                self.fail(f"{part!r} has more than {_MOST_RANGE} numbers", param, ctx)
            numbers.update(range(low, high + 1))
        return tuple(sorted(numbers))


_MOST_RANGE = 4096
