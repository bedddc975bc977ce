"""Tokens in, pieces of text out: cut at stops, whole characters, counts that match the text."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from speccc.runtime.stops import StopScanner

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to append, the tokens it accounts for, and why the generation ended, on the last."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None


class Utf8Stream:
    """Decodes bytes to text; a character split between calls waits for its rest.

    Bytes that can never become UTF-8 turn into U+FFFD, as in `bytes.decode(errors="replace")`. A
    character still incomplete at the end is dropped: it is half a character, not a wrong one.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """The text completed by `data`."""
        return self._decoder.decode(data)


class TextStream:
    """The delivered side of one generation.

    `push` takes committed tokens in order. A stop token is not delivered. A stop string cuts the
    text where it starts, and the tokens after those that the remaining text needs are taken back,
    whichever round they came from. Within `budget` a stop wins; at `budget` the length does.
    """

    def __init__(self, budget: int, stop_strings: Sequence[str], stop_ids: Collection[int]) -> None:
        """Raises InputError for an empty stop string."""
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = "length" if budget < 1 else None
        self._budget = budget
        self._stop_ids = frozenset(stop_ids)
        self._scanner = StopScanner(stop_strings)
        self._text = Utf8Stream()
        self._pieces: list[str] = []
        self._starts: list[int] = []  # byte offset where each token starts
        self._end = 0  # byte offset where the last token ends
        self._released = 0  # bytes that left the scanner
        self._taken = 0  # tokens already handed out by `take`

    def push(self, token: int, data: bytes) -> FinishReason | None:
        """Deliver a token and its bytes; the reason when that ends the generation."""
        if token in self._stop_ids:
            return self._finish("stop", self._scanner.flush())
        self.tokens.append(token)
        self._starts.append(self._end)
        self._end += len(data)
        released = self._scanner.feed(data)
        if self._scanner.stopped:
            self._finish("stop", released)
            self._retract()
        elif len(self.tokens) >= self._budget:
            self._finish("length", released + self._scanner.flush())
        else:
            self._release(released)
        return self.finish_reason

    def take(self) -> Piece | None:
        """What became certain since the last call; None when there is no text and no end."""
        text = "".join(self._pieces)
        if not text and self.finish_reason is None:
            return None
        self._pieces.clear()
        certain = len(self.tokens)
        if self.finish_reason is None:
            certain = self._covering(self._released, self._taken)
        tokens = tuple(self.tokens[self._taken : certain])
        self._taken = certain
        return Piece(text, tokens, self.finish_reason)

    def _finish(self, reason: FinishReason, data: bytes) -> FinishReason:
        self._release(data)
        self.finish_reason = reason
        return reason

    def _release(self, data: bytes) -> None:
        self._released += len(data)
        text = self._text.feed(data)
        if text:
            self._pieces.append(text)

    def _retract(self) -> None:
        count = self._covering(self._released, 0)
        del self.tokens[count:], self._starts[count:]

    def _covering(self, size: int, count: int) -> int:
        """The number of tokens, `count` or more, that start before byte `size`."""
        while count < len(self._starts) and self._starts[count] < size:
            count += 1
        return count
