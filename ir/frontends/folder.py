"""Files of a model folder: nothing outside it is ever opened."""

from __future__ import annotations

from pathlib import Path

from speccc.errors import InputError


def inside(folder: Path, name: str) -> Path:
    """A plain file of the folder; InputError for paths and links that lead out of it.

    Hub caches link each file into the sibling folder `blobs`; that is the one link allowed.
    """
    where = str(folder)
    if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        raise InputError(f"names the file {name!r:.80}, which is not in this folder", where=where)
    path = folder / name
    if not path.is_file():
        raise InputError(f"lacks {name}", where=where)
    target, root = path.resolve(), folder.resolve()
    if target.parent not in (root, root.parent.parent / "blobs"):
        raise InputError(f"{name} is a link that leads out of the folder", where=where)
    return path


def inside_if_any(folder: Path, name: str) -> Path | None:
    """As `inside`, but None when there is no such file."""
    return inside(folder, name) if (folder / name).exists() else None
