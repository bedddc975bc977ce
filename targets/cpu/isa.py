"""What the CPUs we build for can do, and which one this machine is."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from speccc.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set we have an integer-dot rule for; `mcpu` and `attrs` are LLVM's."""

    name: str
    arch: str
    mcpu: str
    attrs: tuple[str, ...]
    flags: frozenset[str]
    dot: str


ISAS: dict[str, Isa] = {
    i.name: i
    for i in (
        Isa(
            "avx512vnni",
            "x86_64",
            "x86-64-v4",
            ("+avx512vnni",),
            frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}),
            "vpdpbusd",
        ),
        Isa(
            "avxvnni",
            "x86_64",
            "x86-64-v3",
            ("+avxvnni",),
            frozenset({"avx2", "fma", "f16c", "avx_vnni"}),
            "vpdpbusd_ymm",
        ),
        Isa("avx2", "x86_64", "x86-64-v3", (), frozenset({"avx2", "fma", "f16c"}), "maddubs"),
        Isa(
            "dotprod",
            "aarch64",
            "generic",
            ("+dotprod", "+fullfp16"),
            frozenset({"asimddp", "asimdhp"}),
            "sdot",
        ),
        Isa("portable", "", "", (), frozenset(), "portable"),
    )
}


def cpu_flags() -> frozenset[str]:
    """The feature flags Linux reports for this machine's CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def runs_here(isa: Isa) -> bool:
    """Whether this machine can execute code built for `isa`."""
    return isa.arch in ("", platform.machine()) and isa.flags <= cpu_flags()


def detect() -> Isa:
    """The best instruction set this machine has."""
    return next(isa for isa in ISAS.values() if runs_here(isa))


def by_name(name: str) -> Isa:
    """The named instruction set, `auto` for the best one here; UnsupportedError lists the names."""
    if name == "auto":
        return detect()
    if name not in ISAS:
        raise UnsupportedError(f"--isa {name}: choose one of auto, {', '.join(ISAS)}")
    return ISAS[name]
