"""Finds stop strings in a stream of bytes and holds back what may be the start of one.

The stop that is *completed* first wins (of those completed at the same byte, the longest), so that
the cut depends on the text alone and not on how it was split into tokens. Stops match on UTF-8
bytes; as UTF-8 synchronises itself, that equals a match on characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from speccc.errors import InputError


class StopScanner:
    """Feed bytes, get back those that may be shown; `stopped` says that a stop string came."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raises InputError for an empty stop string, which would match everywhere."""
        if any(not stop for stop in stops):
            raise InputError("a stop string must not be empty", where="stop")
        self._stops = tuple(stop.encode() for stop in stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = b""
        self.stopped = False

    def feed(self, data: bytes) -> bytes:
        """The bytes released by `data`: none of them can belong to a stop string."""
        if not self._stops:
            return data
        held = self._held + data
        cut = self._first_stop(held)
        if cut is not None:
            self.stopped = True
            self._held = b""
            return held[:cut]
        release = len(held) - self._partial(held)
        self._held = held[release:]
        return held[:release]

    def flush(self) -> bytes:
        """What is still held back, once no more bytes can come."""
        held, self._held = self._held, b""
        return held

    def _first_stop(self, text: bytes) -> int | None:
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _partial(self, text: bytes) -> int:
        """Length of the longest end of `text` that begins some stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
