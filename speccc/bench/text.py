"""The real text that prefill, verify cost and quality are measured on."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from speccc.errors import InputError


def bench_text(path: Path | None = None) -> str:
    """A UTF-8 file of the user's, else ours (prose and code, written for this purpose)."""
    if path is None:
        return files("speccc.bench").joinpath("text.txt").read_text(encoding="utf-8")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error}", where=str(path)) from None
