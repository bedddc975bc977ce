"""Target names -> targets; a backend's module is loaded when one of its targets is asked for."""

from __future__ import annotations

import importlib
import importlib.util

from speccc.errors import UnsupportedError
from speccc.targets.base import Target
from speccc.targets.devices import DEFAULTS, profile, profile_names

MODULES = {
    "cuda": "speccc.targets.cuda.target",
    "rocm": "speccc.targets.rocm.target",
    "vulkan": "speccc.targets.vulkan.target",
    "sycl": "speccc.targets.sycl.target",
    "metal": "speccc.targets.metal.target",
}
"""Each with `make(profile: Profile) -> Target`."""


def backends() -> tuple[str, ...]:
    """The backends whose code generators this version has."""
    return tuple(name for name, module in MODULES.items() if _exists(module))


def target(name: str) -> Target:
    """The target of a name such as "cuda:sm_90", "vulkan:rtx4090" or "metal" (its default).

    UnsupportedError names the closest, or lists the backend's.
    """
    found = profile(name)
    module = MODULES[found.backend]
    if not _exists(module):
        raise UnsupportedError(f"this version generates no code for {found.backend}", where=name)
    made: Target = importlib.import_module(module).make(found)
    return made


def target_names() -> tuple[str, ...]:
    """Every name there is code for, architectures before products."""
    here = backends()
    return tuple(n for n in profile_names() if n.partition(":")[0] in here)


def default(backend: str) -> str:
    """The name a bare backend stands for."""
    return f"{backend}:{DEFAULTS[backend]}"


def _exists(module: str) -> bool:
    package = module.rpartition(".")[0]
    return importlib.util.find_spec(package) is not None and (
        importlib.util.find_spec(module) is not None
    )
