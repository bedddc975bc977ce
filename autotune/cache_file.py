"""Opening the cache's database so that no state of the file is fatal and no file is destroyed.

A file that is torn or is somebody else's is renamed aside; one of a newer version is left as it
is and a file of this version is used beside it. Either way the user is told and the cache is
merely empty.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum
from pathlib import Path

from speccc.errors import InputError, SpecccError
from speccc.scratch import Scratch

FILE_NAME = "tune.sqlite"
LOCK_NAME = "tune.lock"
APPLICATION_ID = 0x53504343  # "SPCC", in the header of our files
SCHEMA = 1
BUSY_S = 60.0
UNFINISHED = f".{FILE_NAME}."
"""How the name of a folder begins in which a file is being made."""
COMPANIONS = ("", "-wal", "-shm", "-journal")

TABLES = """
CREATE TABLE record (
    id TEXT PRIMARY KEY, problem TEXT NOT NULL, device TEXT NOT NULL, family TEXT NOT NULL,
    kernel TEXT NOT NULL, m INTEGER NOT NULL, outcome TEXT NOT NULL, median_ms REAL,
    at TEXT NOT NULL, verified INTEGER NOT NULL, origin TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX record_device ON record (problem, device);
CREATE INDEX record_family ON record (problem, family);
"""

Notice = Callable[[str], None]


class State(Enum):
    """What a file of the cache's name turned out to be."""

    MISSING = "missing"
    OURS = "ours"
    NEWER = "made by a newer version"
    FOREIGN = "not a cache of ours"
    TORN = "damaged"


def open_database(folder: Path, notice: Notice) -> tuple[sqlite3.Connection, Path]:
    """A connection to the folder's cache, made when missing, and the file it is in.

    SpecccError when the folder cannot be written or stays locked for a minute.
    """
    try:
        with _locked(folder / LOCK_NAME):
            path = _usable(folder, notice)
            return connect(path), path
    except sqlite3.Error as error:
        raise SpecccError(f"the cache cannot be opened ({error})", where=str(folder)) from None
    except OSError as error:
        raise InputError(
            f"the cache cannot be opened ({error.strerror})", where=str(folder)
        ) from None


def connect(path: Path) -> sqlite3.Connection:
    """A connection that waits for others and commits to the disk before it says so."""
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def examine(path: Path) -> State:
    """What the file is, found without changing it."""
    try:
        info = path.stat()
    except FileNotFoundError:
        return State.MISSING
    if not stat.S_ISREG(info.st_mode):
        raise InputError("is not a file; move it away", where=str(path))
    # Only SQLite may open the file: closing another handle would drop this process's locks on it.
    try:
        with closing(connect(path)) as db:
            return _examine(db)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return State.TORN
        raise
    except sqlite3.DatabaseError as error:
        return State.FOREIGN if "not a database" in str(error) else State.TORN


def set_aside(path: Path) -> Path:
    """Rename the file and its companions to a name nobody has; the new name of the file."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(10_000):
        name = f"{path.name}.aside-{stamp}-{number}"
        if not any(path.with_name(name + end).exists() for end in COMPANIONS):
            break
    for end in COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(path.with_name(name + end))
    return path.with_name(name)


def aside_files(folder: Path) -> list[Path]:
    """Files set aside earlier, oldest first."""
    return sorted(p for p in folder.glob(f"{FILE_NAME[:4]}*.aside-*") if p.is_file())


def _usable(folder: Path, notice: Notice) -> Path:
    # The file of our own version comes second: it exists only where a newer one came before.
    for name in (FILE_NAME, f"tune-schema{SCHEMA}.sqlite"):
        path = folder / name
        state = examine(path)
        if state is State.NEWER:
            notice(f"{path}: {state.value} of speccc; left as it is and not used")
            continue
        if state in (State.FOREIGN, State.TORN):
            kept = set_aside(path)
            notice(f"{path}: {state.value}; kept as {kept.name}, starting with an empty cache")
        if state is not State.OURS:
            _create(path)
        return path
    raise InputError("every cache file is newer than this speccc; upgrade it", where=str(folder))


def _examine(db: sqlite3.Connection) -> State:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID or version < 1:
        return State.FOREIGN
    if version > SCHEMA:
        return State.NEWER
    if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        return State.TORN
    db.execute("SELECT id, body FROM record LIMIT 1").fetchone()
    return State.OURS


def _create(path: Path) -> None:
    """The empty database, whole or not at all; only its owner may read it."""
    for end in COMPANIONS[1:]:  # left by a file that is gone: not ours to replay or delete
        if path.with_name(path.name + end).exists():
            set_aside(path)
    with Scratch(UNFINISHED, path.parent) as work:
        made = work / path.name
        made.touch(0o600)
        with closing(connect(made)) as db:
            # A file system without shared memory keeps its rollback journal: slower, as safe.
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA}; {TABLES} COMMIT;"
            )
        os.replace(made, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the system lets go when the holder dies."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system: opening is then guarded by renames alone
        yield
        return
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SpecccError(
                        f"another process held it for {BUSY_S:.0f} s", where=str(path)
                    ) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(handle)
