"""SPIR-V -> machine code of an AMD GPU, by Mesa's driver RADV and without the GPU.

RADV of Mesa 25 shows a device of any architecture when RADV_FORCE_FAMILY names it; nothing runs on
it, but its compiler is whole. Newer ones do not: then a GPU of that architecture must be there. The
pipeline is made by the runtime's own code (`vulkan/pipeline_report.c`), so it is the one that runs.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from speccc.errors import UnsupportedError
from speccc.system_root import vulkan_root
from speccc.targets.build_error import BuildError
from speccc.targets.spirv import interface
from speccc.vulkan_home import VulkanHome, find_vulkan

PROGRAM = Path(__file__).with_name("vulkan") / "pipeline_report.c"
ROOT_DRIVER = "opt/radv/radeon_icd.json"
"""In the tree of `.ci/vulkan-root`: the last Mesa whose RADV needs no device, beside the newer."""
TIMEOUT_S = 120.0
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "vega20": ("VEGA20",),
    "rdna3": ("NAVI31", "NAVI32", "NAVI33", "PHOENIX", "PHOENIX2"),
    "rdna3.5": ("GFX1151", "GFX1150", "GFX1152", "GFX1153", "STRIX_HALO"),
    "rdna4": ("GFX1200", "GFX1201", "NAVI44", "NAVI48"),
}
"""An architecture's chips as RADV calls them, the one that is asked for first.

Mesa 25.0 makes RDNA 4's matrix instructions, though it does not yet offer them to programs.
"""
STATISTICS = {"registers": "VGPRs", "shared_bytes": "LDS size"}
ASSEMBLY = "Assembly"


@dataclass(frozen=True, slots=True)
class Radv:
    """A driver that compiles for one architecture, and how to start the program that asks it."""

    home: VulkanHome
    environment: Mapping[str, str]
    device: str
    version: str


@dataclass(frozen=True, slots=True)
class AmdCode:
    """Instructions as text, each with its bytes; what the compiler counted, by its own names."""

    text: str
    statistics: Mapping[str, int]
    subgroup: int

    def facts(self) -> Mapping[str, object]:
        """Vector registers and bytes spilled and private of an invocation, bytes of LDS."""
        count = self.statistics
        return {
            **{name: count.get(said) for name, said in STATISTICS.items()},
            # Scalar registers spill into lanes of vector registers.
            "spills": 4 * count.get("Spilled VGPRs", 0),
            "stack_bytes": count.get("Scratch size", 0) // self.subgroup,
            "statistics": dict(count),
        }


@cache
def find_radv(arch: str) -> Radv | None:
    """The tree's RADV, else this system's, when it offers that architecture; else None."""
    families = FAMILIES.get(arch)
    home = find_vulkan()
    if families is None or home is None:
        return None
    forced = {"RADV_FORCE_FAMILY": families[0]}
    root = vulkan_root()
    if root is not None:
        driver = root.path / ROOT_DRIVER
        tries = [{"VK_DRIVER_FILES": str(driver), **forced}] if driver.exists() else []
    else:
        tries = [forced, {}]
    return next(filter(None, (_probe(home, families, more) for more in tries)), None)


def _probe(home: VulkanHome, families: tuple[str, ...], more: Mapping[str, str]) -> Radv | None:
    # What is compiled here need not be kept, nor a count come from an older version's cache.
    found = Radv(home, {**home.environment(), **more, "MESA_SHADER_CACHE_DISABLE": "1"}, "", "")
    try:
        device, version, _ = _ask(found, b"", 0, 0, 0, "RADV")
    except (BuildError, UnsupportedError):
        return None
    if not any(f"(RADV {family})" in device for family in families):
        return None
    return Radv(home, found.environment, device, version)


def compile_amd(spirv: bytes, radv: Radv, subgroup: int, *, name: str = "kernel") -> AmdCode:
    """Code of a shader for subgroups of that size. BuildError when the driver refuses it."""
    takes = interface(spirv)
    _, _, told = _ask(radv, spirv, 4 * takes.pushed, subgroup, takes.bindings, name)
    text = told.pop(ASSEMBLY, "")
    # Beside what it counted, the compiler tells hashes of its own.
    counts = {k: int(v) for k, v in told.items() if v.isdecimal() and "hash" not in k.lower()}
    return AmdCode(_closer(text), counts, subgroup)


def _closer(text: str) -> str:
    """Assembly without the blanks before each instruction's bytes."""
    parts = (line.split("; ") for line in text.splitlines())
    return "".join("\t; ".join(part.rstrip() for part in line) + "\n" for line in parts)


def _ask(
    radv: Radv, spirv: bytes, push: int, subgroup: int, bindings: int, name: str
) -> tuple[str, str, dict[str, str]]:
    """Device, driver, and what the driver's compiler says of a shader."""
    request = struct.pack("<I", len(spirv)) + spirv
    request += struct.pack("<4I", push, subgroup, min(1, bindings), bindings)
    command = (*radv.home.command(radv.home.build(PROGRAM)), "RADV")
    try:
        done = subprocess.run(
            command,
            input=request,
            capture_output=True,
            env=dict(radv.environment),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"no answer in {TIMEOUT_S:.0f} s from RADV", where=name) from None
    except OSError as error:
        raise BuildError(f"cannot be started: {error.strerror}", where=command[0]) from None
    said = done.stderr.decode(errors="replace").strip()[-400:]
    if not done.stdout:
        raise BuildError(f"RADV ended with status {done.returncode}: {said}", where=name)
    reply = _words(done.stdout[4:])
    if done.stdout[0]:
        raise BuildError(f"RADV: {next(reply)} {said}".strip(), where=name)
    device, version, *told = reply
    return device, version.strip(), dict(zip(told[::2], told[1::2], strict=True))


def _words(data: bytes) -> Iterator[str]:
    """Each text of a reply: its length, then its bytes."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : at + 4 + size].decode(errors="replace")
        at += 4 + size
