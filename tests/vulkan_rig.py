"""What the tests of Vulkan sessions share: tiny models compiled for lavapipe once a process."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from cpu_rig import Spec, model_file, unmeasured
from models import Tiny

from speccc.api import Model
from speccc.runtime.devices.vulkan_session import VulkanSession

LAVAPIPE = "vulkan:lavapipe"
# 4-bit and float weights, a half and an int8 cache, a tied and an untied head.
SPECS = {
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160), "q4_1"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
}
NAMES = tuple(SPECS)


@functools.cache
def _folder(which: str) -> tempfile.TemporaryDirectory[str]:
    """Kept, and so removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="speccc-")


@functools.cache
def file_of(which: str) -> Path:
    """The model's file."""
    return model_file(SPECS[which], Path(_folder(which).name))


@functools.cache
def model_of(which: str) -> Model:
    """The compiled model."""
    return unmeasured(file_of(which), target=LAVAPIPE, kv=SPECS[which].kv)


@functools.cache
def session_of(which: str) -> VulkanSession:
    """One session for all tests of a model, emptied by each: a driver compiles for each anew."""
    session = model_of(which).session(context=64, threads=3)
    assert isinstance(session, VulkanSession)
    return session
