"""Kernels and whole steps that were built once, as files in the user's cache.

A file is named by the hash of everything that decides its bytes and holds a hash of those, so that
a damaged one is noticed and built anew. A cache that cannot be used costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from speccc import user_cache
from speccc.autotune.cache import warn
from speccc.errors import InputError
from speccc.scratch import published
from speccc.targets.cpu.object_store import MemoryObjects, ObjectStore

Notice = Callable[[str], None]
MOST_BYTES = 256 << 20
"""What the folder may hold; the files used longest ago go first."""
HOUR = 3600.0
"""Seconds after which a file that is not whole yet has lost its writer."""


def open_kernel_cache(notice: Notice = warn) -> ObjectStore:
    """The user's store; one that is forgotten, and a notice, where there can be none."""
    try:
        return DiskObjects(user_cache.folder("kernels"), notice=notice)
    except InputError as error:
        notice(f"kernels are not kept: {error}")
        return MemoryObjects()


class DiskObjects:
    """An object store in a folder; any number of threads and processes may share it."""

    def __init__(
        self, folder: Path, *, most_bytes: int = MOST_BYTES, notice: Notice = warn
    ) -> None:
        """`folder` exists and is ours. `notice` is told what goes wrong."""
        self.folder, self.most_bytes = folder, most_bytes
        self._notice = notice
        self._writes = True

    def get(self, key: str) -> bytes | None:
        """What was kept, or None; a damaged file is None, a notice, and removed."""
        path = self.folder / key
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._notice(f"{path}: {error.strerror}; built anew")
            return None
        size = hashlib.sha256().digest_size
        data = raw[size:]
        if raw[:size] != _digest(key, data):
            self._notice(f"{path}: is damaged; built anew")
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # when it was last used, where that can be noted
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps an object; where that is not possible, a notice the first time."""
        if not self._writes:
            return
        try:
            with published(self.folder / key) as part:
                part.write_bytes(_digest(key, data) + data)
            self._trim()
        except OSError as error:
            self._writes = False
            self._notice(f"{self.folder}: kernels are not kept ({error.strerror or error})")

    def _trim(self) -> None:
        """Removes what was used longest ago until the rest fits."""
        files = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # another process was faster
                info = entry.stat()
                being_written = entry.name.startswith(".") and info.st_mtime > time.time() - HOUR
                if not being_written:
                    files.append((info.st_mtime_ns, info.st_size, entry.path))
        over = sum(size for _, size, _ in files) - self.most_bytes
        for _, size, path in sorted(files):
            if over <= 0:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            over -= size


def _digest(key: str, data: bytes) -> bytes:
    # With the key: a file under another one's name is as wrong as a damaged one.
    return hashlib.sha256(key.encode() + b"\0" + data).digest()
