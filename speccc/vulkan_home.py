"""Where Vulkan is: this system's own, or a Linux tree with a newer one; and C programs for it.

A program is compiled when it is first needed, against the headers of the Vulkan it will use.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from speccc.errors import UnsupportedError
from speccc.scratch import Scratch
from speccc.system_root import SystemRoot, vulkan_root

HEADER = Path("/usr/include/vulkan/vulkan.h")
CPU_DRIVER = "usr/share/vulkan/icd.d/lvp_icd.json"
BUILD_S = 60.0


@dataclass(frozen=True, slots=True)
class VulkanHome:
    """A Vulkan; `root` is None for this system's own."""

    root: SystemRoot | None = None

    def command(self, program: Path) -> tuple[str, ...]:
        """The words that start a program made by `build`."""
        return (str(program),) if self.root is None else self.root.command(program)

    def environment(self) -> dict[str, str]:
        """Variables of a program. Of the tree, the driver for the CPU alone."""
        out = dict(os.environ)
        if self.root is not None:
            out["VK_DRIVER_FILES"] = str(self.root.path / CPU_DRIVER)
        return out

    def build(self, source: Path) -> Path:
        """A program of one C file, compiled once a process. UnsupportedError says why not."""
        return _program(self, source)


def find_vulkan() -> VulkanHome | None:
    """The tree when there is one, else this system's Vulkan if its headers are here, else None."""
    root = vulkan_root()
    if root is not None:
        return VulkanHome(root)
    return VulkanHome() if HEADER.exists() and _compiler() else None


def need_vulkan() -> VulkanHome:
    """As `find_vulkan`; UnsupportedError says what to install."""
    home = find_vulkan()
    if home is None:
        raise UnsupportedError(
            "the target vulkan runs through a small C program: "
            "apt install gcc libvulkan-dev mesa-vulkan-drivers (or the vendor's driver)"
        )
    return home


@functools.cache
def _folder() -> Scratch:
    """Kept, and so removed when the process ends."""
    return Scratch()


@functools.cache
def _program(home: VulkanHome, source: Path) -> Path:
    root, name = home.root, hashlib.sha256(f"{home} {source}".encode()).hexdigest()[:16]
    program = _folder().path / name
    words = _own_compiler(source, program)
    if root is not None:
        words = _root_compiler(root, source, program)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        late = f"{source.name}: no answer in {BUILD_S:.0f} s from {words[0]}"
        raise UnsupportedError(late) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:400]
        raise UnsupportedError(f"{source.name} does not compile: {said}")
    return program


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _own_compiler(source: Path, program: Path) -> tuple[str, ...]:
    return (_compiler() or "cc", "-O1", "-o", str(program), str(source), "-lvulkan")


def _root_compiler(root: SystemRoot, source: Path, program: Path) -> tuple[str, ...]:
    """The tree's tcc, against the tree's C library alone: this system's may be older."""
    lib, include = root.libraries, root.path / "usr/include"
    folders = (lib / "tcc/include", include, include / "x86_64-linux-gnu")
    objects = ("crt1.o", "crti.o")
    libraries = ("libvulkan.so.1", "libc.so.6", "libc_nonshared.a", "crtn.o")
    return (
        *root.command(root.path / "usr/bin/tcc"),
        f"-B{lib / 'tcc'}",
        "-nostdinc",
        *(f"-I{folder}" for folder in folders),
        "-nostdlib",
        f"-L{lib}",
        "-o",
        str(program),
        *(str(lib / name) for name in objects),
        str(source),
        *(str(lib / name) for name in libraries),
    )
