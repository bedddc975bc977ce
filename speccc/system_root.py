"""A second Linux tree whose programs run here: for a Vulkan newer than this system's own.

Its programs are started through its own dynamic loader, so nothing needs privileges or a chroot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from speccc import knobs

LIBRARIES = "usr/lib/x86_64-linux-gnu"
COMPLETE = ".speccc-complete"
"""The file that `.ci/vulkan-root` writes last."""


@dataclass(frozen=True, slots=True)
class SystemRoot:
    """The tree's folder."""

    path: Path

    @property
    def libraries(self) -> Path:
        """Where its shared libraries are."""
        return self.path / LIBRARIES

    def command(self, program: Path) -> tuple[str, ...]:
        """The words that start a program made for this tree."""
        loader = self.libraries / "ld-linux-x86-64.so.2"
        return (str(loader), "--library-path", str(self.libraries), str(program))


def vulkan_root() -> SystemRoot | None:
    """The tree for Vulkan: the one SPECCC_VULKAN_ROOT names or the usual one, if it is complete."""
    path = knobs.VULKAN_ROOT.get() or _usual()
    return SystemRoot(path) if (path / COMPLETE).exists() else None


def _usual() -> Path:
    cache = knobs.XDG_CACHE_HOME.get() or Path.home() / ".cache"
    return cache / "speccc" / "vulkan-root"
