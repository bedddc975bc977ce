"""Device profiles: what each GPU can do, every figure with its source."""

from __future__ import annotations

import difflib

from speccc.errors import UnsupportedError
from speccc.targets.devices import (
    amd,
    any_vulkan,
    apple,
    intel,
    intel_cpu,
    lavapipe,
    nvidia,
)
from speccc.targets.devices.profile import Arch, Device, Profile

DEFAULTS = {
    "cuda": "sm_90",
    "rocm": "gfx1100",
    "vulkan": "lavapipe",
    "sycl": "bmg",
    "metal": "m4",
}
"""What a bare backend's name stands for."""

VENDORS = (nvidia, amd, intel, intel_cpu, apple, lavapipe, any_vulkan)
ARCHS: dict[str, Arch] = {str(a): a for vendor in VENDORS for a in vendor.ARCHS}
DEVICES: dict[str, Device] = {d.name: d for vendor in VENDORS for d in vendor.DEVICES}


def _table() -> dict[str, Profile]:
    table = {name: Profile(arch) for name, arch in ARCHS.items()}
    for device in DEVICES.values():
        for arch in device.archs:
            made = Profile(ARCHS[arch], device)
            # lavapipe is a product and an architecture of one name: the figures belong to both.
            table[made.name] = made
    return table


PROFILES: dict[str, Profile] = _table()


def profile_names() -> tuple[str, ...]:
    """Every name, by backend, architectures before products."""
    order = list(DEFAULTS)
    return tuple(sorted(PROFILES, key=lambda n: order.index(PROFILES[n].backend)))


def meant(name: str) -> str:
    """A question with the names that this one is short for or close to; empty without any."""
    whole = name.strip().casefold()
    backend, _, device = whole.rpartition(":")
    names = [n for n in profile_names() if not backend or n.startswith(f"{backend}:")]
    parts = {n: n.partition(":")[2] for n in names}
    found = [n for n in names if parts[n] == device]
    if not found and len(device) >= SHORTEST:
        found = [n for n in names if device in parts[n]]
    found = found or difflib.get_close_matches(whole, names if device else (), n=1)
    return f"did you mean {' or '.join(found[:MOST_NAMES])}?" if found else ""


SHORTEST = 3
"""Letters that a part of a name must have to be taken for it."""
MOST_NAMES = 3


def profile(name: str) -> Profile:
    """The profile of a target's name. UnsupportedError says what is close, or what there is."""
    if name in DEFAULTS:
        name = f"{name}:{DEFAULTS[name]}"
    if name in PROFILES:
        return PROFILES[name]
    backend = name.partition(":")[0]
    if backend not in DEFAULTS:
        hint = meant(name) or f"backends are {', '.join(DEFAULTS)}"
        raise UnsupportedError(f"is no target; {hint}", where=f"--target {name}")
    here = ", ".join(n for n in profile_names() if n.startswith(f"{backend}:"))
    hint = meant(name) or f"choose one of {here}"
    raise UnsupportedError(f"no such device; {hint}", where=f"--target {name}")
