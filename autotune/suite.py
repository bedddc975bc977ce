"""What the worker process measures: a suite builds candidates, runs them and knows what is right.

A suite is named by `module:function`; the function takes the payload the tuner sent and is called
in the worker only, so that what it does can crash or hang without harm.
"""

from __future__ import annotations

from typing import Any, Protocol

from speccc.autotune.facts import Facts


class Candidate(Protocol):
    """One built configuration."""

    def bits(self) -> bytes:
        """Runs the check case anew; a hash of every result bit of it."""

    def run(self, m: int) -> float:
        """Runs the whole step once with m rows; seconds."""


class Suite(Protocol):
    """Everything the worker needs to know of a tuning problem."""

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of rows that are timed."""

    def build(self, config: Facts) -> Candidate:
        """Builds a configuration. InputError, UnsupportedError or VerifyError when it is not
        legal, any other SpecccError when it cannot be built."""

    def golden(self, default: Any, bits: bytes) -> str:
        """Compares the untuned default, one of its own candidates, and what its `bits` gave, with
        the golden model; what differs, or nothing."""
