"""This machine's CPU as a cache key sees it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from speccc.autotune.facts import Fact, facts, plain_text
from speccc.autotune.key import Device
from speccc.targets.cpu.isa import by_name

CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
IDENTITY = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU revision")
UNITS = {"K": 1, "M": 1024}


def host_device(isa: str = "auto") -> Device:
    """The CPU: its family runs the same instructions, its details are what changes times."""
    fields = _cpu_fields()
    details: dict[str, Fact] = {"cpus": os.cpu_count() or 1}
    details.update(_cache_sizes())
    # A hypervisor may hide the model's name; its numbers remain.
    for field in IDENTITY:
        if fields.get(field):
            details[field.lower().replace(" ", "_")] = plain_text(fields[field])
    family = f"{platform.machine()} {by_name(isa).name}"
    name = fields.get("model name") or platform.processor() or platform.machine()
    return Device("cpu", plain_text(family), plain_text(name), facts(details))


def _cpu_fields() -> dict[str, str]:
    """What Linux says of the first CPU."""
    try:
        lines = CPU_INFO.read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cache_sizes() -> dict[str, Fact]:
    """KiB of each level of data cache that the first CPU reaches."""
    sizes: dict[str, Fact] = {}
    for index in sorted(CACHES.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and size[:-1].isdigit() and size[-1:] in UNITS:
            sizes[f"l{level}_kib"] = int(size[:-1]) * UNITS[size[-1]]
    return sizes
