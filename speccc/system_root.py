"""A second Linux tree whose programs run here: for tools newer than this system's own.

Its programs are started through its own dynamic loader, so nothing needs privileges or a chroot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from speccc import knobs
from speccc.errors import InputError

LIBRARIES = "usr/lib/x86_64-linux-gnu"
COMPLETE = ".speccc-complete"
"""The file that `.ci/vulkan-root` and `.ci/xe-root` write last."""
LINKS = 8
"""Of a program's name, one after the other, at most."""


@dataclass(frozen=True, slots=True)
class SystemRoot:
    """The tree's folder."""

    path: Path

    @property
    def libraries(self) -> Path:
        """Where its shared libraries are."""
        return self.path / LIBRARIES

    def program(self, name: str) -> Path | None:
        """The file of one of its programs, or None. A link that begins with / begins there."""
        path = self.path / "usr/bin" / name
        for _ in range(LINKS):
            if not path.is_symlink():
                return path if path.exists() else None
            to = path.readlink()
            path = self.path / to.relative_to("/") if to.is_absolute() else path.parent / to
        return None

    def command(self, program: Path) -> tuple[str, ...]:
        """The words that start a program made for this tree."""
        loader = self.libraries / "ld-linux-x86-64.so.2"
        return (str(loader), "--library-path", str(self.libraries), str(program))


def vulkan_root() -> SystemRoot | None:
    """The tree for Vulkan: the one SPECCC_VULKAN_ROOT names, else the usual one if there is one.

    InputError when the one that is named is not whole.
    """
    return _root("Vulkan", knobs.VULKAN_ROOT, "vulkan-root")


def xe_root() -> SystemRoot | None:
    """The tree for Intel's ocloc, by SPECCC_XE_ROOT; as `vulkan_root`."""
    return _root("Xe", knobs.XE_ROOT, "xe-root")


def _root(title: str, knob: knobs.Knob[Path], script: str) -> SystemRoot | None:
    """The tree that `.ci/SCRIPT` makes."""
    named = knob.get()
    path = named or _cache() / script
    if (path / COMPLETE).exists():
        return SystemRoot(path)
    if named is None:
        return None
    raise InputError(
        f"is no whole {title} tree; unset {knob.name} or run .ci/{script}", where=str(named)
    )


def _cache() -> Path:
    return (knobs.XDG_CACHE_HOME.get() or Path.home() / ".cache") / "speccc"
