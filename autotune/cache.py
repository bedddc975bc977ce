"""The tuning cache: records of every device that came by, in one SQLite file, never overwritten.

One row a record, with all its samples. Adding is a union: a record is known by the hash of its
content, so the same one twice is one. Rows of other devices stay for their owners.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from speccc.autotune import cache_file
from speccc.autotune.cache_file import Notice
from speccc.autotune.key import Device, TuneKey
from speccc.autotune.record import Record
from speccc.autotune.record_json import dump_record, parse_record
from speccc.autotune.winner import Entry
from speccc.errors import InputError, SpecccError

T = TypeVar("T")
Row = tuple[str, int, str]
COLUMNS = "id, verified, body"


class Tier(Enum):
    """How near the device of a hit is."""

    EXACT = "exact device"
    FAMILY = "same family"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Found:
    """What the cache knows of a key: entries of this very device, and of its family."""

    exact: tuple[Entry, ...]
    family: tuple[Entry, ...]

    @property
    def tier(self) -> Tier:
        """The nearest device with a usable time."""
        tiers = ((Tier.EXACT, self.exact), (Tier.FAMILY, self.family))
        return next((t for t, e in tiers if any(x.record.ms for x in e)), Tier.NOTHING)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of that tier: what `choose` takes.

        Another device's times are a hint and its numerics were checked there, not here.
        """
        hints = tuple(replace(e, verified=e.verified and not e.record.ms) for e in self.family)
        return {Tier.EXACT: self.exact, Tier.FAMILY: hints, Tier.NOTHING: ()}[self.tier]


@dataclass(frozen=True, slots=True)
class Fault:
    """A row, or the file when `identity` is empty, that is not what was written."""

    identity: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of records, and the bytes of the files."""

    records: int
    unverified: int
    keys: int
    outcomes: dict[str, int]
    devices: dict[str, int]
    kernels: dict[str, int]
    bytes: int
    aside: tuple[str, ...]


def warn(text: str) -> None:
    """A notice on stderr: what a cache says unless it is given something else to say it with."""
    print(f"notice: {text}", file=sys.stderr)


class TuneCache:
    """The records in `folder`. Use it in one thread; any number of processes may share it."""

    def __init__(self, folder: Path, *, notice: Notice = warn) -> None:
        """Opens or makes the cache; a file that cannot be used is an empty cache and a notice."""
        self.folder = folder
        self._notice = notice
        self._db, self.path = cache_file.open_database(folder, notice)
        self._inode = self.path.stat().st_ino

    def __enter__(self) -> TuneCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file. Nothing is lost without it."""
        self._db.close()

    def add(
        self, records: Iterable[Record], *, verified: bool = True, origin: str = "local"
    ) -> int:
        """Adds those not there yet, all or none; how many were new.

        A record that is there unverified becomes verified when it is added as such.
        """
        rows = [_row(record, verified, origin) for record in records]

        def work(db: sqlite3.Connection) -> int:
            before = db.total_changes
            db.executemany(f"INSERT OR IGNORE INTO record VALUES ({', '.join('?' * 12)})", rows)
            added = db.total_changes - before
            if verified:
                _verify(db, [str(row[0]) for row in rows])
            return added

        return self._write(work)

    def mark_verified(self, identities: Iterable[str]) -> int:
        """Says that the numerics of these records were checked on this machine; how many."""
        known = list(identities)
        return self._write(lambda db: _verify(db, known))

    def lookup(self, key: TuneKey) -> Found:
        """All records of the key's problem, from this device and from its family."""
        rows = self._read(
            f"SELECT device, {COLUMNS} FROM record WHERE problem = ? AND (device = ? OR"
            " family = ?) ORDER BY id",
            (key.problem(), key.device.digest(), _family(key.device)),
        )
        exact: list[Entry] = []
        family: list[Entry] = []
        for device, *row in rows:
            entry = self._entry((str(row[0]), int(str(row[1])), str(row[2])))
            if entry is not None:
                (exact if device == key.device.digest() else family).append(entry)
        return Found(tuple(exact), tuple(family))

    def entries(self, *, kernel: str | None = None, identity: str = "") -> Iterator[Entry]:
        """Every record, oldest first, of one kernel or whose identity starts so if given."""
        rows = self._read(
            f"SELECT {COLUMNS} FROM record WHERE kernel = coalesce(?, kernel)"
            " AND substr(id, 1, ?) = ? ORDER BY at, id",
            (kernel, len(identity), identity),
        )
        for found, verified, body in rows:
            entry = self._entry((str(found), int(str(verified)), str(body)))
            if entry is not None:
                yield entry

    def stats(self) -> Stats:
        """Counts by outcome, device and kernel; sizes on the disk."""
        ((records, unverified, keys),) = self._read(
            "SELECT count(*), total(verified = 0), count(DISTINCT problem || device) FROM record"
        )
        parts = [self.path.with_name(self.path.name + end) for end in cache_file.COMPANIONS]
        return Stats(
            records=int(str(records)),
            unverified=int(float(str(unverified))),
            keys=int(str(keys)),
            outcomes=self._count("outcome"),
            devices=self._count("family"),
            kernels=self._count("kernel"),
            bytes=sum(part.stat().st_size for part in parts if part.exists()),
            aside=tuple(path.name for path in cache_file.aside_files(self.folder)),
        )

    def check(self) -> list[Fault]:
        """Every fault of the file and of its rows; none when all is as it was written."""
        faults = [
            Fault("", str(text)) for (text,) in self._read("PRAGMA integrity_check") if text != "ok"
        ]
        for identity, _, body in self._read(f"SELECT {COLUMNS} FROM record ORDER BY id"):
            try:
                _parse(str(identity), str(body))
            except InputError as error:
                faults.append(Fault(str(identity), str(error)))
        return faults

    def remove(
        self,
        *,
        before: str | None = None,
        only_unverified: bool = False,
        damaged: Iterable[str] = (),
        keep: Callable[[Record], bool] = lambda record: False,
        dry_run: bool = False,
    ) -> int:
        """Drops records made before a time (if given) that `keep` does not want, and the damaged
        rows named; how many. Disk space is given back when no one else is using it."""
        identities = list(damaged)
        if before is not None or only_unverified:
            identities += [
                entry.identity
                for entry in self.entries()
                if (before is None or entry.record.at < before)
                and not (only_unverified and entry.verified)
                and not keep(entry.record)
            ]
        if identities and not dry_run:
            many = [(identity,) for identity in identities]
            self._write(lambda db: db.executemany("DELETE FROM record WHERE id = ?", many))
            with suppress(sqlite3.OperationalError):
                self._db.execute("VACUUM")
        return len(identities)

    def _count(self, column: str) -> dict[str, int]:
        rows = self._read(f"SELECT {column}, count(*) FROM record GROUP BY 1 ORDER BY 1")
        return {str(name): int(str(count)) for name, count in rows}

    def _entry(self, row: Row) -> Entry | None:
        """The row's entry; a row that is not what was written is a miss with a notice."""
        identity, verified, body = row
        try:
            return Entry(_parse(identity, body), bool(verified), identity)
        except InputError as error:
            self._notice(f"{self.path}: record {identity[:12]} is damaged, passed over ({error})")
            return None

    def _read(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        return self._run(lambda db: db.execute(sql, values).fetchall())

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def transaction(db: sqlite3.Connection) -> T:
            # IMMEDIATE takes the write lock first: a reader that turns writer cannot wait for it.
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            return result

        self._follow()
        return self._run(transaction)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The work's result; a file found damaged is set aside and the work done on a new one."""
        try:
            return work(self._db)
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise  # a bug of ours: the file is fine
        except sqlite3.OperationalError as error:
            raise self._failure(error) from None
        except sqlite3.DatabaseError as error:
            damage = error
        self._reopen()
        try:
            return work(self._db)
        except sqlite3.Error:
            raise self._failure(damage) from None

    def _failure(self, error: sqlite3.Error) -> SpecccError:
        return SpecccError(f"the cache cannot be used ({error})", where=str(self.path))

    def _follow(self) -> None:
        """If another process set our file aside, goes on with the new one."""
        try:
            same = os.stat(self.path).st_ino == self._inode
        except OSError:
            same = False
        if not same:
            self._reopen()

    def _reopen(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()
        self._db, self.path = cache_file.open_database(self.folder, self._notice)
        self._inode = self.path.stat().st_ino


def _family(device: Device) -> str:
    return f"{device.kind} {device.family}"


def _row(record: Record, verified: bool, origin: str) -> tuple[object, ...]:
    key = record.key
    return (
        record.identity(), key.problem(), key.device.digest(), _family(key.device), key.kernel,
        key.m, record.outcome.value, record.median_ms(), record.at, int(verified), origin,
        dump_record(record),
    )  # fmt: skip


def _verify(db: sqlite3.Connection, identities: list[str]) -> int:
    before = db.total_changes
    many = [(identity,) for identity in identities]
    db.executemany("UPDATE record SET verified = 1 WHERE id = ? AND verified = 0", many)
    return db.total_changes - before


def _parse(identity: str, body: str) -> Record:
    record = parse_record(body)
    if record.identity() != identity:
        raise InputError("its content does not have its hash")
    return record
