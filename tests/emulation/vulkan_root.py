"""Where a Vulkan with cooperative matrices is on this machine: in its own folders or in a root.

The root is a whole Debian tree made by `.ci/vulkan-root`. Its programs are started through its own
dynamic loader, so nothing here needs privileges, a chroot, or /proc inside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from speccc.targets.glsl_build import GlslTools, find_glsl_tools

WORKER_SOURCE = Path(__file__).with_name("vulkan_worker.c")
SCRIPT = ".ci/vulkan-root"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
DRIVER = "usr/share/vulkan/icd.d/lvp_icd.json"


@dataclass(frozen=True, slots=True)
class VulkanHome:
    """The tools, and how to compile and start a program against this Vulkan."""

    tools: GlslTools
    root: Path | None  # None: the machine itself

    def start(self, program: Path) -> tuple[str, ...]:
        """The command that runs a program built by `build_worker`."""
        return (str(program),) if self.root is None else _inside(self.root, program)

    def environment(self) -> dict[str, str]:
        """Variables of the worker: one driver, and no cache that outlives it."""
        out = dict(os.environ, MESA_SHADER_CACHE_DISABLE="true")
        driver = Path("/", DRIVER) if self.root is None else self.root / DRIVER
        if self.root is not None or driver.exists():
            out["VK_DRIVER_FILES"] = str(driver)
        return out

    def build_worker(self, folder: Path) -> Path:
        """Compile the worker into `folder`. RuntimeError with the compiler's words."""
        program = folder / "vulkan_worker"
        command = _host_cc(program) if self.root is None else _root_cc(self.root, program)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the Vulkan worker does not compile: {done.stderr.strip()}")
        return program


def default_root() -> Path:
    """The folder that `.ci/vulkan-root` fills unless told otherwise."""
    if named := os.environ.get("SPECCC_VULKAN_ROOT"):
        return Path(named)
    cache_home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache_home, "speccc", "vulkan-root")


@cache
def find_vulkan() -> VulkanHome | None:
    """The root when it is complete, else the machine's own Vulkan, else None."""
    root = default_root()
    if (root / ".speccc-complete").exists():
        return VulkanHome(_root_tools(root), root)
    tools = find_glsl_tools()
    headers = Path("/usr/include/vulkan/vulkan.h")
    if tools and shutil.which("cc") and headers.exists() and Path("/", DRIVER).exists():
        return VulkanHome(tools, None)
    return None


def _inside(root: Path, program: Path) -> tuple[str, ...]:
    libraries = root / LIBRARIES
    loader = libraries / "ld-linux-x86-64.so.2"
    return (str(loader), "--library-path", str(libraries), str(program))


def _root_tools(root: Path) -> GlslTools:
    programs = root / "usr/bin"
    return GlslTools(
        _inside(root, programs / "glslang"),
        _inside(root, programs / "spirv-val"),
        _inside(root, programs / "spirv-dis"),
    )


def _host_cc(program: Path) -> tuple[str, ...]:
    return ("cc", "-O1", "-o", str(program), str(WORKER_SOURCE), "-lvulkan")


def _root_cc(root: Path, program: Path) -> tuple[str, ...]:
    """tcc of the root, against the root's C library alone: the machine's own may be older."""
    lib, include = root / LIBRARIES, root / "usr/include"
    folders = (lib / "tcc/include", include, include / "x86_64-linux-gnu")
    objects = ("crt1.o", "crti.o")
    libraries = ("libvulkan.so.1", "libc.so.6", "libc_nonshared.a", "crtn.o")
    return (
        *_inside(root, root / "usr/bin/tcc"),
        f"-B{lib / 'tcc'}",
        "-nostdinc",
        *(f"-I{folder}" for folder in folders),
        "-nostdlib",
        f"-L{lib}",
        "-o",
        str(program),
        *(str(lib / name) for name in objects),
        str(WORKER_SOURCE),
        *(str(lib / name) for name in libraries),
    )
