"""The folder of an emit: what may be replaced by one, and how a whole one takes its place."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speccc.errors import InputError
from speccc.runtime.devices.built_kernels import FOLDER as KERNELS
from speccc.runtime.devices.launch_plan import FILE as LAUNCH_PLAN

REPORT = "report.json"
UNFINISHED = ".speccc-emit-"
"""How the name of a folder begins that is being written."""
MOST_JSON = 1 << 26
"""Bytes of a report; ours have thousands."""
OVERTAKEN = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
"""What a rename says when another emit came first."""


def emit_destination(folder: Path) -> Path:
    """The folder to write, links followed. InputError unless it is new, empty or an older one."""
    real, where = folder.resolve(), str(folder)
    if not real.parent.is_dir():
        raise InputError("its folder does not exist; make it first", where=where)
    if not real.exists():
        return real
    if not real.is_dir():
        raise InputError("is a file; name a folder with -o", where=where)
    # Another folder takes its place, which neither a disk nor a shell would follow.
    if os.path.ismount(real):
        raise InputError("is where a disk is mounted; name a folder in it with -o", where=where)
    if Path.cwd().is_relative_to(real):
        raise InputError("is the folder this runs in; name another with -o", where=where)
    other = _foreign(real)
    if other:
        raise InputError(f"holds other files ({other}); name a new folder with -o", where=where)
    return real


def read_report(folder: Path) -> dict[str, Any]:
    """An emitted folder's report. InputError when it is absent or not one of ours."""
    path = folder / REPORT
    if not path.is_file():
        raise InputError("no such file; is this a folder of `speccc emit`?", where=str(path))
    if path.stat().st_size > MOST_JSON:
        raise InputError("is too large to be ours", where=str(path))
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):
        raise InputError("is not JSON: emit it again", where=str(path)) from None
    if not isinstance(value, dict):
        raise InputError("holds no object: emit it again", where=str(path))
    return value


def _foreign(folder: Path) -> str | None:
    """The first entry that no emit wrote, all of which go when the folder is replaced."""
    found = _contents(folder)
    if not found:
        return None
    try:
        ours = _entries(read_report(folder))
    except InputError:
        ours = set()
    return next((name for name in found if name not in ours), None)


def _contents(folder: Path) -> list[str]:
    """What is in it, by path. OSError when one of its folders does not show what it holds."""

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for here, folders, files in os.walk(folder, onerror=refuse):
        found += [Path(here, name).relative_to(folder).as_posix() for name in (*folders, *files)]
    return sorted(found)


def _entries(report: Mapping[str, Any]) -> set[str]:
    """Everything in the folder of a report; nothing when it is no report of an emit."""
    kernels = report.get("kernels")
    if not (isinstance(report.get("schema"), int) and isinstance(report.get("target"), str)):
        return set()
    try:
        built = {f"{KERNELS}/{k['name']}.{ext}" for k in kernels or () for ext in k["files"]}
    except (TypeError, KeyError):
        return set()
    return {KERNELS, LAUNCH_PLAN, REPORT, *built} if built else set()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the system refuses is the user's folder's, not a hidden one's."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot be written ({why})", where=str(folder)) from error


def publish(made: Path, destination: Path, work: Path) -> None:
    """`made` becomes `destination`; what was there goes aside, and comes back if that fails.

    Other emits may do so at the same time: the last one's stays.
    """
    made.chmod(0o755)
    for turn in itertools.count():
        aside = work / f"old-{turn}"
        try:
            if destination.exists():
                destination.rename(aside)
            made.rename(destination)
        except BaseException as error:
            # Also for Ctrl-C: what is aside goes with the temporary folder.
            if aside.exists() and not destination.exists():
                aside.rename(destination)
            overtaken = isinstance(error, OSError) and error.errno in OVERTAKEN
            if not (overtaken and made.exists()):
                raise
        else:
            return
