"""What is at a path, before anybody opens it."""

from __future__ import annotations

from pathlib import Path

from speccc.errors import InputError


def check_place(path: Path) -> None:
    """InputError unless there is a file or a folder; opening a pipe would wait for its writer."""
    if not path.exists():
        raise InputError("no such file or directory", where=str(path))
    if not (path.is_file() or path.is_dir()):
        raise InputError(
            "is no model file but a device or a pipe: name a GGUF file or a model folder",
            where=str(path),
        )
