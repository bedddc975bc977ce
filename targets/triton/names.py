"""Names in Triton texts: the IR's own, numbered where another thing has them."""

from __future__ import annotations

from dataclasses import dataclass, field

RESERVED = (
    "tl",
    "triton",
    "exp",
    "rint",
    "e2m1",
    "meet",
    "worker",
    "workers",
    "goal",
    "float",
    "range",
)
"""What every text says itself."""


@dataclass
class Names:
    """Names given so far, and how often each was wanted."""

    used: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESERVED, 1))

    def give(self, wanted: str) -> str:
        """A name nothing else has."""
        n = self.used.get(wanted, 0)
        self.used[wanted] = n + 1
        return wanted if n == 0 else self.give(f"{wanted}_{n}")
