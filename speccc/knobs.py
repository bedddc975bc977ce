"""Every environment variable the project reads, in one table; no other module touches them.

Every package may import this module; of the project it imports only the errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from speccc.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """One variable: its name, how its text is read, and whether it can change what is compiled."""

    name: str
    parse: Callable[[str], T]
    doc: str
    affects_output: bool = False

    def get(self, environ: Mapping[str, str] | None = None) -> T | None:
        """The value, or None when unset or empty. InputError for a text that cannot be read."""
        text = (os.environ if environ is None else environ).get(self.name, "")
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            raise InputError(str(error), where=self.name) from None


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ValueError(f"must be 0 or 1, not {text!r}")
    return known[text.lower()]


def _threads(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"must be a number of threads, 1 or more, not {text!r}")
    return int(text)


def _path(text: str) -> Path:
    return Path(text).expanduser()


DEBUG = Knob("SPECCC_DEBUG", _flag, "1 shows the traceback of an error")
SMOLLM2 = Knob("SPECCC_SMOLLM2", _path, "the SmolLM2 GGUF file to use instead of fetching one")
CACHE_DIR = Knob("SPECCC_CACHE_DIR", _path, "where models and artifacts are kept")
THREADS = Knob("SPECCC_THREADS", _threads, "threads of a session unless -t says otherwise")
VULKAN_ROOT = Knob("SPECCC_VULKAN_ROOT", _path, "a Linux tree with a newer Vulkan and glslang")
XE_ROOT = Knob("SPECCC_XE_ROOT", _path, "a Linux tree with Intel's ocloc for Xe GPUs")
XDG_CACHE_HOME = Knob("XDG_CACHE_HOME", _path, "the user's cache; we use its folder speccc")

KNOBS: tuple[Knob[bool] | Knob[Path] | Knob[int], ...] = (
    DEBUG,
    SMOLLM2,
    CACHE_DIR,
    THREADS,
    VULKAN_ROOT,
    XE_ROOT,
    XDG_CACHE_HOME,
)
