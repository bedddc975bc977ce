"""Lines of a text with their indentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    """Lines with their indentation."""

    def __init__(self) -> None:
        """An empty text."""
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line at the present depth."""
        self._lines.append("    " * self._depth + text if text else "")

    def lines(self, text: str) -> None:
        """A text of several lines, each at the present depth."""
        for line in text.splitlines():
            self.line(line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head {`, what is written inside, `}`."""
        self.line(f"{head} {{".strip())
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def text(self) -> str:
        """All lines, each ended."""
        return "".join(f"{line}\n" for line in self._lines)
