"""How a kernel's tile program is laid on a machine: choices that never change a result bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices for one kernel; the defaults work untuned.

    `rows`: tallest row tile. `unroll`: K blocks of a scaled dot written out per trip.
    `prefetch`: bytes ahead in the weight stream that are fetched, 0 for none. `far`: the same from
    memory into the second cache, where a loaded memory answers later than `prefetch` reaches.
    `deal`: "runs" gives a worker consecutive units, "turns" gives them out in turn.
    """

    rows: int = 8
    unroll: int = 1
    prefetch: int = 2048
    far: int = 8192
    deal: str = "runs"


Schedules = Mapping[str, Schedule]
"""By kernel name; a kernel that is not named takes `Schedule()`."""
