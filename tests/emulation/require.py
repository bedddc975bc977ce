"""A test's need of a toolchain: skipped without it, except in CI, where it must be there."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Literal

import pytest

from emulation.metal_stand_in import find_compiler
from emulation.sycl_cpu import has_sycl
from emulation.vulkan_root import SCRIPT, find_vulkan, validation_layers
from speccc.targets.radv_build import find_radv
from speccc.targets.sycl_build import find_ocloc

Need = Literal["vulkan", "validation", "radv", "triton", "sycl", "xe", "metal"]


def _has_triton() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("triton", "torch"))


NEEDS: dict[Need, tuple[Callable[[], bool], str]] = {
    "vulkan": (
        lambda: find_vulkan() is not None,
        f"a Vulkan driver with cooperative matrices and glslang 15.1: run {SCRIPT} as root",
    ),
    "validation": (
        lambda: validation_layers() is not None,
        f"Vulkan's validation layer (vulkan-validationlayers): run {SCRIPT} as root",
    ),
    "radv": (
        lambda: find_radv("rdna3") is not None,
        f"a RADV that compiles for a GPU that is not there: run {SCRIPT} as root",
    ),
    "sycl": (has_sycl, "dpctl and Intel's SYCL wheels: pip install -e '.[dev]' (Linux on x86-64)"),
    "xe": (
        lambda: find_ocloc() is not None,
        "Intel's ocloc: apt install intel-ocloc (Debian sid), or run .ci/xe-root as root",
    ),
    "triton": (_has_triton, "triton 3.9 and torch: pip install -e '.[dev,torch]' (Linux only)"),
    "metal": (lambda: find_compiler() is not None, "a C++ compiler, as the stand-in of Metal"),
}

OPTIONAL: frozenset[Need] = frozenset({"xe"})
"""No emulation, but a look at what a vendor's compiler makes; Debian sid may not give it today."""


def in_ci() -> bool:
    """Whether this run must have every toolchain: CI is set, on the system that has them all."""
    return os.environ.get("CI", "").lower() in ("1", "true") and sys.platform == "linux"


def require(need: Need) -> None:
    """Skip the calling test, or its module, when `need` is absent; fail instead in CI."""
    present, mend = NEEDS[need]
    if present():
        return
    if in_ci() and need not in OPTIONAL:
        pytest.fail(f"CI must have {mend}", pytrace=False)
    pytest.skip(f"needs {mend}", allow_module_level=True)
