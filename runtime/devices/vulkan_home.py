"""Where Vulkan is: this system's own, or a Linux tree with a newer one; and the worker for it.

The worker is a small C program. It is compiled when it is first needed, against the headers of the
Vulkan it will use.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from speccc.errors import UnsupportedError
from speccc.scratch import Scratch
from speccc.system_root import SystemRoot, vulkan_root

SOURCE = Path(__file__).with_name("worker") / "vulkan_worker.c"
HEADER = Path("/usr/include/vulkan/vulkan.h")
CPU_DRIVER = "usr/share/vulkan/icd.d/lvp_icd.json"
BUILD_S = 60.0


@dataclass(frozen=True, slots=True)
class VulkanHome:
    """A Vulkan; `root` is None for this system's own."""

    root: SystemRoot | None = None

    def command(self, program: Path) -> tuple[str, ...]:
        """The words that start a program made by `build_worker`."""
        return (str(program),) if self.root is None else self.root.command(program)

    def environment(self) -> dict[str, str]:
        """Variables of the worker. Of the tree, the driver for the CPU alone."""
        out = dict(os.environ)
        if self.root is not None:
            out["VK_DRIVER_FILES"] = str(self.root.path / CPU_DRIVER)
        return out

    def build_worker(self) -> Path:
        """The worker, compiled once a process. UnsupportedError says what is missing."""
        return _worker(self)


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
def _worker(home: VulkanHome) -> Path:
    name = "worker" if home.root is None else "worker_in_root"
    program = _folder().path / name
    words = _own_compiler(program) if home.root is None else _root_compiler(home.root, program)
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:400]
        raise UnsupportedError(f"the Vulkan worker does not compile: {said}")
    return program


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _own_compiler(program: Path) -> tuple[str, ...]:
    return (_compiler() or "cc", "-O1", "-o", str(program), str(SOURCE), "-lvulkan")


def _root_compiler(root: SystemRoot, program: Path) -> tuple[str, ...]:
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
        str(SOURCE),
        *(str(lib / name) for name in libraries),
    )
