"""Where objects that were built once are found again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class ObjectStore(Protocol):
    """Bytes by the hash of everything that decides them. Threads may use one store at once."""

    def get(self, key: str) -> bytes | None:
        """What was kept, or None when it is not here."""

    def put(self, key: str, data: bytes) -> None:
        """Keeps an object; may decline."""


@dataclass(frozen=True, slots=True)
class MemoryObjects:
    """Objects kept as long as this is: for many builds in one process."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def get(self, key: str) -> bytes | None:
        """What was kept, or None when it is not here."""
        return self.kept.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Keeps an object."""
        self.kept[key] = data
