"""What each target needs on this machine: to build its kernels, and to run them.

A finder says what it found in a few words, or None. It looks; it starts at most a tool that prints
its version.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from speccc.targets.sycl_build import INSTALL_OCLOC

Finder = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One need of a target: what it gives, how it is found, and what to do when it is not."""

    target: str
    gives: str
    find: Finder
    mend: str


def package(name: str) -> Finder:
    """Finds an installed Python package."""

    def find() -> str | None:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            return None

    return find


def program(name: str) -> Finder:
    """Finds a program on PATH."""
    return lambda: shutil.which(name)


def package_and_library(name: str, library: str) -> Finder:
    """Finds a Python package, and the vendor's library that it calls."""

    def find() -> str | None:
        found, driver = package(name)(), ctypes.util.find_library(library)
        return f"{found}, {driver}" if found and driver else None

    return find


def _glslang() -> str | None:
    from speccc.targets.glsl_build import find_glsl_tools, glslang_version

    tools = find_glsl_tools()
    if tools is None:
        return None
    return f"glslang {'.'.join(map(str, glslang_version(tools)))}, {tools.glslang[-1]}"


def _radv() -> str | None:
    from speccc.targets.radv_build import FAMILIES, find_radv

    found = [radv for radv in map(find_radv, FAMILIES) if radv is not None]
    return f"RADV of {found[0].version}" if found else None


def _vulkan() -> str | None:
    from speccc.vulkan_home import find_vulkan

    home = find_vulkan()
    if home is None:
        return None
    return "this system's driver" if home.root is None else f"lavapipe in {home.root.path}"


def _sycl() -> str | None:
    from speccc.targets.sycl_build import find_sycl_compiler

    found = find_sycl_compiler()
    return None if found is None else f"{found.name} {found.version}"


def _ocloc() -> str | None:
    from speccc.targets.sycl_build import find_ocloc, ocloc_version

    ocloc = find_ocloc()
    return None if ocloc is None else f"ocloc {ocloc_version(ocloc)}, {ocloc[-1]}"


def _pip(extra: str) -> str:
    return f"pip install 'speccc[{extra}]'"


TOOLCHAINS: tuple[Toolchain, ...] = (
    Toolchain("cuda", "builds PTX, cubin", package("triton"), f"{_pip('cuda')} (Linux)"),
    Toolchain(
        "cuda",
        "runs",
        package_and_library("cuda-bindings", "cuda"),
        f"install NVIDIA's driver, then {_pip('cuda')}",
    ),
    Toolchain("rocm", "builds hsaco", package("triton"), f"{_pip('rocm')} (Linux)"),
    Toolchain(
        "rocm",
        "runs",
        package_and_library("hip-python", "amdhip64"),
        "install ROCm, then the hip-python of its version",
    ),
    Toolchain(
        "vulkan", "builds SPIR-V", _glslang, "apt install glslang-tools spirv-tools (15.1 or newer)"
    ),
    Toolchain(
        "vulkan",
        "builds AMD code",
        _radv,
        "run .ci/vulkan-root, or have gcc, libvulkan-dev and the mesa-vulkan-drivers of Mesa 25.0",
    ),
    Toolchain(
        "vulkan",
        "runs",
        _vulkan,
        "apt install gcc libvulkan-dev, and the vendor's driver or mesa-vulkan-drivers",
    ),
    Toolchain("sycl", "builds SPIR-V", _sycl, f"{_pip('sycl')}, or oneAPI"),
    Toolchain("sycl", "builds Xe code", _ocloc, INSTALL_OCLOC),
    Toolchain(
        "sycl",
        "runs",
        package("dpctl"),
        f"{_pip('sycl')}, and the vendor's OpenCL or Level Zero driver",
    ),
    Toolchain("metal", "builds metallib", program("xcrun"), "on a Mac: xcode-select --install"),
    Toolchain(
        "metal",
        "runs",
        package("pyobjc-framework-Metal"),
        f"on a Mac: {_pip('metal')}",
    ),
)
