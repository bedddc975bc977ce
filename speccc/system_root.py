"""A second Linux tree whose programs run here: for a Vulkan newer than this system's own.

Its programs are started through its own dynamic loader, so nothing needs privileges or a chroot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from speccc import knobs
from speccc.errors import InputError

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
    """The tree for Vulkan: the one SPECCC_VULKAN_ROOT names, else the usual one if there is one.

    InputError when the one that is named is not whole.
    """
    named = knobs.VULKAN_ROOT.get()
    path = named or _usual()
    if (path / COMPLETE).exists():
        return SystemRoot(path)
    if named is None:
        return None
    raise InputError(
        f"is no whole Vulkan tree; unset {knobs.VULKAN_ROOT.name} or run .ci/vulkan-root",
        where=str(named),
    )


def _usual() -> Path:
    cache = knobs.XDG_CACHE_HOME.get() or Path.home() / ".cache"
    return cache / "speccc" / "vulkan-root"
