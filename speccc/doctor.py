"""What this machine can build and run, and what to do about what it cannot."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from speccc import knobs, user_cache
from speccc.errors import SpecccError
from speccc.runtime.cores import cores
from speccc.scratch import LEAST_FREE
from speccc.targets.cpu.link import linker
from speccc.toolchains import TOOLCHAINS, Toolchain


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `needed` marks those without which nothing runs, `mend` says what to do."""

    name: str
    ok: bool
    detail: str
    mend: str = ""
    needed: bool = False


def examine() -> list[Check]:
    """Every check, each on its own: a failing one never hides the rest."""
    return [check for name, probe in PROBES.items() for check in _guarded(name, probe)]


def healthy(checks: list[Check]) -> bool:
    """Whether models can be compiled and run here."""
    return all(check.ok for check in checks if check.needed)


def _guarded(name: str, probe: Callable[[], list[Check]]) -> list[Check]:
    try:
        return probe()
    except (SpecccError, OSError, ImportError) as error:
        return [Check(name, False, str(error), needed=True)]


def _python() -> list[Check]:
    version = platform.python_version()
    ok = sys.version_info >= (3, 10)
    return [Check("python", ok, version, "" if ok else "use Python 3.10 or newer", needed=True)]


def _packages() -> list[Check]:
    return [_package(name, needed=True) for name in REQUIRED] + [
        _package(name, needed=False, extra=extra) for name, extra in OPTIONAL.items()
    ]


def _package(name: str, *, needed: bool, extra: str = "") -> Check:
    mend = f"pip install 'speccc[{extra}]'" if extra else "pip install speccc"
    try:
        return Check(name, True, importlib.metadata.version(name), needed=needed)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", mend, needed=needed)


def _cpu() -> list[Check]:
    from speccc.targets.cpu.isa import ISAS, detect, runs_here

    here = [name for name, isa in ISAS.items() if runs_here(isa)]
    return [
        Check("cpu", True, f"{cpu_name()}, {cores()} cores for this process", needed=True),
        Check("instruction sets", True, f"{', '.join(here)} (auto: {detect().name})", needed=True),
    ]


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory() -> list[Check]:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return [Check("memory", True, f"{pages * page / (1 << 30):.1f} GiB")]


def _cache() -> list[Check]:
    path = user_cache.folder()
    free = shutil.disk_usage(path).free
    ok = free > 1 << 29
    mend = "" if ok else f"free some space or set {knobs.CACHE_DIR.name}"
    return [Check("cache", ok, f"{path}, {free / (1 << 30):.1f} GiB free", mend)]


def _temporary() -> list[Check]:
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    ok = free >= LEAST_FREE
    mend = "" if ok else "set TMPDIR to another folder"
    shown = f"{place}, {free / (1 << 30):.1f} GiB free"
    return [Check("temporary files", ok, shown, mend, needed=True)]


def _linker() -> list[Check]:
    name = linker()
    found = name and shutil.which(name)
    return [
        Check("C compiler", True, found, needed=True)
        if found
        else Check("C compiler", False, "not found: kernels cannot be linked", LINKER, needed=True)
    ]


def _targets() -> list[Check]:
    return [_toolchain(chain) for chain in TOOLCHAINS]


def _toolchain(chain: Toolchain) -> Check:
    name = f"{chain.target} {chain.gives}"
    try:
        found = chain.find()
    except (SpecccError, OSError) as error:
        return Check(name, False, str(error), chain.mend)
    return Check(name, found is not None, found or "not found", "" if found else chain.mend)


def _settings() -> list[Check]:
    shown = [f"{knob.name}={os.environ[knob.name]}" for knob in knobs.KNOBS if _is_set(knob.name)]
    for knob in knobs.KNOBS:
        knob.get()
    return [Check("settings", True, " ".join(shown) or "none set")]


def _is_set(name: str) -> bool:
    return bool(os.environ.get(name))


REQUIRED = ("speccc", "numpy", "apache-tvm", "tokenizers", "jinja2", "safetensors", "gguf")
OPTIONAL = {"llama-cpp-python": "bench", "triton": "cuda", "torch": "torch"}
LINKER = "install gcc, or set CC"

PROBES: dict[str, Callable[[], list[Check]]] = {
    "python": _python,
    "packages": _packages,
    "cpu": _cpu,
    "memory": _memory,
    "cache": _cache,
    "temporary files": _temporary,
    "linker": _linker,
    "targets": _targets,
    "settings": _settings,
}
