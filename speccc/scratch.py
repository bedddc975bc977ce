"""Temporary folders that a killed process leaves behind only until the next one.

Each holds a file that its process keeps locked, under a lock that the system lets go of when the
process ends, however it ends. So who can take the lock may remove the folder.

Every package may import this module; it imports nothing of the project.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import tempfile
from contextlib import suppress
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


class Scratch:
    """A folder of mode 0700; as a context, its path. It is gone after `close`, at the latest when
    the process ends or, if that is killed, when another makes one beside it.

    `prefix` begins its name; `base` is the folder it is in, the system's for temporary files
    unless given. OSError when it cannot be made.
    """

    def __init__(self, prefix: str = PREFIX, base: Path | None = None) -> None:
        """Makes it, after removing what was left behind beside it."""
        place = Path(tempfile.gettempdir()) if base is None else base
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
    """Removes the folders of processes that are no more, once a process."""
    if not _LOCKS:
        return
    for folder in base.glob(f"{prefix}*"):
        with suppress(OSError):  # it has an owner, is another user's, or is gone by now
            _remove_left(folder)


def _remove_left(folder: Path) -> None:
    """Removes a folder of ours whose owner's lock can be taken; OSError when it cannot."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        return
    owner = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(owner)
