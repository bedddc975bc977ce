"""A step as files, alike in an emitted folder and in an artifact: a launch plan, and its kernels.

launch-plan.json
kernels/NAME.EXT     the text of a kernel and everything built of it; a driver loads one of them
kernels/NAME.json    what a driver must know and the code does not say, where there is any
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from speccc.errors import InputError, UnsupportedError
from speccc.runtime.devices.drivers import binary_ending
from speccc.runtime.devices.gpu_step import Code
from speccc.runtime.devices.launch_plan import FILE, LaunchPlan, read_launch_plan

FOLDER = "kernels"
MOST_SHARED = 1 << 24
"""Bytes of shared memory; the largest devices have a quarter of a million."""

Files = Mapping[str, Any]
"""Contents by name."""


def read_plan(files: Files, where: str) -> LaunchPlan:
    """The launch plan among the files. InputError when it is missing or damaged."""
    if FILE not in files:
        raise InputError(f"{FILE} is missing: make it again", where=where)
    try:
        document = json.loads(bytes(files[FILE]))
    except (ValueError, RecursionError):
        raise InputError(f"{FILE} is not JSON: make it again", where=where) from None
    return read_launch_plan(document, where)


def code_files(files: Files, plan: LaunchPlan, backend: str, where: str) -> tuple[str, ...]:
    """The names of what a backend's driver loads, in the plan's order.

    UnsupportedError when a kernel was not built for it.
    """
    ending = binary_ending(backend)
    names: list[str] = []
    for kernel in plan.entries:
        code, told = f"{FOLDER}/{kernel}.{ending}", f"{FOLDER}/{kernel}.json"
        # A name is a part of a path here: it may not lead out of the folder.
        if "/" in kernel or "\\" in kernel or code not in files:
            raise UnsupportedError(f"kernel {kernel} has no {ending} file", where=where)
        names += [code, told] if told in files else [code]
    return tuple(names)


def read_codes(files: Files, plan: LaunchPlan, backend: str, where: str) -> dict[str, Code]:
    """The code of each kernel by name; errors as those of `code_files`."""
    code_files(files, plan, backend, where)
    ending = binary_ending(backend)
    return {
        name: Code(bytes(files[f"{FOLDER}/{name}.{ending}"]), entry, _shared(files, name, where))
        for name, entry in plan.entries.items()
    }


def sealed_code(files: Files, backend: str, where: str = "") -> bytes:
    """The hashes of the launch plan and of everything that is loaded: what binds them together."""
    names = (FILE, *code_files(files, read_plan(files, where), backend, where))
    return b"".join(hashlib.sha256(files[n]).digest() for n in names)


def _shared(files: Files, kernel: str, where: str) -> int:
    """Bytes of shared memory to ask for at launch."""
    told = f"{FOLDER}/{kernel}.json"
    if told not in files:
        return 0
    try:
        count = json.loads(bytes(files[told])).get("shared_bytes", 0)
        if type(count) is not int or not 0 <= count <= MOST_SHARED:
            raise ValueError
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"{told} is damaged: make it again", where=where) from None
    return count
