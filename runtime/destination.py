"""Where an output file goes: what may be replaced by it and what may not."""

from __future__ import annotations

import stat
from pathlib import Path

from speccc.errors import InputError

ZIP_MAGIC = b"PK\x03\x04"


def artifact_destination(path: Path, source: Path | None = None) -> Path:
    """The file an artifact is written to: `path` with links followed.

    A missing file or an older artifact may be replaced. InputError for anything else: a folder, a
    device or pipe, another kind of file, the model itself, or a folder that does not exist.
    """
    where = str(path)
    real = path.resolve()
    if not real.parent.is_dir():
        raise InputError("its folder does not exist; make it first", where=where)
    try:
        mode = real.stat().st_mode
    except FileNotFoundError:
        return real
    if stat.S_ISDIR(mode):
        raise InputError("is a folder; name a file with -o", where=where)
    if not stat.S_ISREG(mode):
        raise InputError("is a device or pipe; name a regular file with -o", where=where)
    if source is not None and source.exists() and real.samefile(source):
        raise InputError("is the model itself; choose another -o", where=where)
    with real.open("rb") as file:
        magic = file.read(len(ZIP_MAGIC))
    if magic not in (b"", ZIP_MAGIC):
        raise InputError("is a file of another kind; choose another -o", where=where)
    return real
