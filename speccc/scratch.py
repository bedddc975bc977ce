"""Temporary folders and part files that a killed process leaves behind only until the next one.

A folder holds a file that its process keeps locked, a part file is one itself, under a lock that
the system lets go of when the process ends, however it ends. So who can take the lock may remove
the folder or the file.

Every package may import this module; it imports nothing of the project.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # no such lock on this system: what a killed process leaves stays
    _LOCKS = False
else:
    _LOCKS = True

PREFIX = "speccc-"
OWNER = ".owner"
"""The locked file of a folder."""
PART = ".speccc-part-"
"""How the name of a part file begins."""
LEAST_FREE = 4 << 20
"""Bytes that the system's folder for temporary files must have: a kernel's files and some."""


class Scratch:
    """A folder of mode 0700; as a context, its path. It is gone after `close`, at the latest when
    the process ends or, if that is killed, when another makes one beside it.

    `prefix` begins its name; `base` is the folder it is in, the system's for temporary files
    unless given. OSError when it cannot be made, or when that of the system is full.
    """

    def __init__(self, prefix: str = PREFIX, base: Path | None = None) -> None:
        """Makes it, after removing what was left behind beside it."""
        place = _system_place() if base is None else base
        _sweep(place, PREFIX if base is None else prefix)
        # What a worker that was killed with it still writes must not turn a success into an error.
        self._folder = tempfile.TemporaryDirectory(
            prefix=prefix, dir=place, ignore_cleanup_errors=True
        )
        self.path = Path(self._folder.name)
        self._owner = _claim(self.path)

    def close(self) -> None:
        """Removes it; may be called again."""
        self._folder.cleanup()
        owner, self._owner = self._owner, None
        if owner is not None:
            os.close(owner)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _system_place() -> Path:
    """The system's folder for temporary files. OSError when a tool could write nothing there.

    Tools that fill it fail in ways that say something else, or write half a file and succeed.
    """
    place = Path(tempfile.gettempdir())
    if shutil.disk_usage(place).free < LEAST_FREE:
        why = f"less than {LEAST_FREE >> 20} MiB free for temporary files"
        raise OSError(errno.ENOSPC, f"{why}; set TMPDIR to another folder", str(place))
    return place


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; on success it becomes `path`, on any exception it is gone.

    What a killed process left of its own goes when another writes there. OSError when the folder
    takes no file; the file is of mode 0600.
    """
    _sweep(path.parent, PART)
    part, owner = _new_part(path.parent)
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(owner)


def hold(descriptor: int) -> None:
    """Locks a file until its descriptor is closed, where there are locks: nobody takes it for left.

    It may wait for who is just looking whether it was.
    """
    if _LOCKS:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _new_part(folder: Path) -> tuple[Path, int]:
    """A new file and the descriptor that holds its lock, where there are locks."""
    while True:
        owner, name = tempfile.mkstemp(dir=folder, prefix=PART)
        hold(owner)
        # Before it was locked, another process may have taken it for one that was left.
        if _is_file_of(Path(name), owner):
            return Path(name), owner
        os.close(owner)


def _is_file_of(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _claim(folder: Path) -> int | None:
    """The descriptor that holds the lock; None where there are no locks."""
    if not _LOCKS:
        return None
    # It gets its name when it is locked: no one may find it without.
    unnamed = folder / f"{OWNER}-new"
    owner = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(folder / OWNER)
    except OSError:  # a file system without locks
        os.close(owner)
        return None
    return owner


@functools.cache
def _sweep(base: Path, prefix: str) -> None:
    """Removes the folders and files of processes that are no more, once a process."""
    if not _LOCKS:
        return
    for left in base.glob(f"{prefix}*"):
        with suppress(OSError):  # it has an owner, is another user's, or is gone by now
            _remove_left(left, prefix)


def _remove_left(left: Path, prefix: str) -> None:
    """Removes a folder or part file of ours whose owner's lock can be taken, else OSError."""
    info = left.lstat()
    if info.st_uid != os.getuid():
        return
    if stat.S_ISDIR(info.st_mode):
        locked = left / OWNER
    elif stat.S_ISREG(info.st_mode) and prefix == PART:
        locked = left
    else:
        return
    owner = os.open(locked, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if locked is not left:
            shutil.rmtree(left)
        elif _is_file_of(left, owner):
            left.unlink()
    finally:
        os.close(owner)
