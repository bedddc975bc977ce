"""The user's cache: where fetched models and compiled artifacts are kept between runs.

A folder only its owner can read (0700). A file appears in it whole or not at all: it is written
under another name in the same folder, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from speccc import knobs
from speccc.errors import InputError
from speccc.scratch import published


def folder(*parts: str) -> Path:
    """A folder of the cache, made when missing. InputError when it is not ours alone."""
    root = knobs.CACHE_DIR.get()
    if root is None:
        home = knobs.XDG_CACHE_HOME.get()
        # XDG: a relative path in the variable is to be ignored.
        base = home if home is not None and home.is_absolute() else Path.home() / ".cache"
        root = base / "speccc"
    _make(root)
    path = root
    for part in parts:
        path = path / part
        _make(path)
    return path


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise InputError(
            f"cannot keep files here ({error.strerror}); set {knobs.CACHE_DIR.name} to a folder",
            where=str(path),
        ) from None
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise InputError(
            f"belongs to another user; set {knobs.CACHE_DIR.name} to a folder of yours",
            where=str(path),
        )
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise InputError("can be written by others; chmod 700 it", where=str(path))


def write_whole(path: Path, text: str) -> None:
    """Writes a text file, UTF-8, so that no reader and no interrupt sees half of it."""
    with published(path) as part:
        part.write_text(text, encoding="utf-8")
        part.chmod(0o644)  # as a file of the user's own, not of the cache


def artifact_path(fingerprint: str, options: Mapping[str, object]) -> Path:
    """Where the artifact of a model with these options belongs; the compiler is part of the key."""
    key = {"model": fingerprint, "compiler": compiler_fingerprint(), "options": dict(options)}
    text = json.dumps(key, sort_keys=True)
    return folder("artifacts") / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.speccc"


def compiler_fingerprint() -> str:
    """SHA-256 in hex over the sources that decide what an artifact holds."""
    import speccc.ir
    import speccc.passes
    import speccc.runtime
    import speccc.targets

    return sources_fingerprint(speccc, speccc.ir, speccc.passes, speccc.runtime, speccc.targets)


def sources_fingerprint(*packages: ModuleType) -> str:
    """SHA-256 in hex over the names and contents of all Python files in these packages."""
    total = hashlib.sha256()
    for package in packages:
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*.py")):
            total.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()
