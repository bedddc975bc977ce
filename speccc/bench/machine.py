"""The machine a bench ran on, and how much of it others took meanwhile."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
STEAL = 7
"""Which number of /proc/stat's `cpu` line counts the ticks that the hypervisor gave to others."""
BUSY_LOAD = 0.5
BUSY_STEAL = 2.0


def load() -> float | None:
    """Processes that want a core, over the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


@dataclass(frozen=True, slots=True)
class Ticks:
    """Clock ticks of all cores since the start of the system."""

    total: int
    stolen: int


def ticks(path: Path = STAT) -> Ticks | None:
    """Now; None where the system does not count them."""
    try:
        fields = path.read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    if len(fields) <= STEAL + 1 or fields[0] != "cpu":
        return None
    numbers = [int(text) for text in fields[1:9]]  # guests are counted in user time already
    return Ticks(sum(numbers), numbers[STEAL])


def stolen_percent(begun: Ticks | None, ended: Ticks | None) -> float | None:
    """Percent of the machine's time that the hypervisor gave to others; None if unknown."""
    if begun is None or ended is None or ended.total <= begun.total:
        return None
    return 100 * (ended.stolen - begun.stolen) / (ended.total - begun.total)


def noise_note(load_before: float | None, stolen: float | None) -> str | None:
    """One line when the figures suffered from others, else None."""
    told = []
    if load_before is not None and load_before > BUSY_LOAD:
        told.append(f"{load_before:.1f} other processes wanted the cores before")
    if stolen is not None and stolen > BUSY_STEAL:
        told.append(f"{stolen:.1f}% of the time went to other machines")
    return f"note: not a quiet machine: {', '.join(told)}" if told else None


def device(threads: int, load_before: float | None) -> dict[str, object]:
    """What the numbers were measured on; `load_average` is the one before the bench."""
    from speccc.doctor import cpu_name
    from speccc.runtime.cores import cores

    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": threads,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": load_before,
    }
