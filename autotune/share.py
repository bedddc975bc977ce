"""A store of records that several machines share: a folder anywhere fsspec reaches.

    STORE/DEVICE/PROGRAM/SHA256.jsonl

Each file is an export of one device's records of one program, named by the hash of its bytes. So
pushes that run at the same time never write one name with two contents, nothing is overwritten,
and what a reader finds under a name is what was pushed or is passed over. What comes from a store
is as much a stranger's claim as an import is, and read with the same checks.
"""

from __future__ import annotations

import hashlib
import io
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from speccc.autotune.cache_export import json_lines
from speccc.autotune.cache_import import Limits, read_records
from speccc.autotune.record import Record
from speccc.errors import InputError, SpecccError, UnsupportedError

MEND = "pip install 'speccc[share]'"
LIMITS = Limits(file_bytes=16 << 20, records=10_000)
"""The most one file of a store may hold; a push stays below."""
PUSH = Limits(file_bytes=8 << 20, records=4096)
"""Where a push begins another file."""
MOST_BYTES = 256 << 20
"""The most a pull, or a push looking for what is there, reads of a store in all."""
NAME = re.compile(r"([0-9a-f]{16})/([0-9a-f]{16})/([0-9a-f]{64})\.jsonl\Z")
USER = re.compile(r"(?<=://)[^/@]*@")
CHAIN = "::"
RELATIVE = re.compile(r"(file|local):(//)?(?!/)")
"""A file URL has a host, which is empty, and an absolute path: `file://x` is no folder x."""

Group = tuple[str, str]
"""The folders of a record: the first digits of its device's and its program's hash."""
Notice = Callable[[str], None]
Report = Callable[[str, int, int], None]


class Files(Protocol):
    """What is used of an fsspec file system."""

    protocol: str | tuple[str, ...]

    def find(self, path: str, maxdepth: int, detail: bool) -> Mapping[str, Mapping[str, object]]:
        """Every file below a path with its facts."""

    def exists(self, path: str) -> bool:
        """Whether a path is there."""

    def open(self, path: str, mode: str) -> io.BufferedIOBase:
        """A file to read."""

    def makedirs(self, path: str, exist_ok: bool) -> None:
        """A folder, where there are such."""

    def pipe_file(self, path: str, value: bytes) -> None:
        """Writes a whole file."""

    def mv(self, path1: str, path2: str) -> None:
        """Gives a file its name."""

    def invalidate_cache(self) -> None:
        """Forgets listings."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of a store by its parts; `size` in bytes is 0 where the store does not say."""

    group: Group
    sha256: str
    size: int
    regular: bool = True

    @property
    def name(self) -> str:
        """Its path below the store."""
        return f"{self.group[0]}/{self.group[1]}/{self.sha256}.jsonl"


@dataclass(frozen=True, slots=True)
class Pushed:
    """Files and records written, and records that were there before."""

    files: int
    records: int
    there: int


@dataclass(slots=True)
class Reading:
    """What came of reading a store: files read, and those passed over with the reason."""

    files: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    strangers: int = 0
    left: int = 0


class Store:
    """The records at a URL, as fsspec spells it: `s3://bucket/tune`, `file:///mnt/tune`."""

    def __init__(self, url: str) -> None:
        """InputError for a URL that names no place, or that nothing installed can reach.

        Nothing is read yet.
        """
        if not url.strip():
            raise InputError("is empty: name a folder or file:///folder, s3://...", where="URL")
        self.where = USER.sub("", url)  # a password has no business in messages
        if RELATIVE.match(url):
            raise InputError("is relative: write file:///folder or a plain path", where=self.where)
        if CHAIN in url:
            # Files are read once and named by their hash: a cache between would only grow stale,
            # and others (dir::, zip::) find or write under other paths than they are asked for.
            last = self.where.rpartition(CHAIN)[2]
            mend = f"name {last} alone" if last else "name one place"
            raise InputError(f"is a chain of file systems ({CHAIN}): {mend}", where=self.where)
        self._files, self._root = _file_system(url, self.where)

    @property
    def lasts(self) -> bool:
        """Whether another process finds what is pushed: not in this one's memory."""
        return "memory" not in self._files.protocol

    def exists(self) -> bool:
        """Whether there is a folder; a store of objects has those that hold some."""
        with self._failures("look"):
            return self._files.exists(self._root)

    def listing(self) -> tuple[list[Remote], int]:
        """The files that have a record file's name, in order of names; how many have not.

        None where there is no folder; InputError where there is a file.
        """
        with self._failures("list"):
            self._files.invalidate_cache()
            found = self._files.find(self._root, maxdepth=3, detail=True)
        if list(found) == [self._root]:
            raise InputError("is a file: name a folder", where=self.where)
        known: list[Remote] = []
        for path, facts in found.items():
            match = NAME.search(path)
            if match and path == f"{self._root.rstrip('/')}/{match[0]}":
                size, regular = facts.get("size"), facts.get("type") == "file"
                known.append(
                    Remote(
                        (match[1], match[2]),
                        match[3],
                        size if isinstance(size, int) else 0,
                        regular,
                    )
                )
        return sorted(known, key=lambda r: r.name), len(found) - len(known)

    def read(self, remote: Remote) -> bytes:
        """The bytes of a file. InputError when they are too many, or not what its name says."""
        if not remote.regular:
            # A pipe or a device has no end to read to.
            raise InputError("is not a regular file")
        if remote.size > LIMITS.file_bytes:
            raise InputError(f"has {remote.size} bytes; {LIMITS.file_bytes} are allowed")
        with self._failures("read"), self._files.open(self._path(remote.name), "rb") as stream:
            data = stream.read(LIMITS.file_bytes + 1)
        if len(data) > LIMITS.file_bytes:
            raise InputError(f"has more than {LIMITS.file_bytes} bytes")
        if hashlib.sha256(data).hexdigest() != remote.sha256:
            raise InputError("its bytes do not have the hash of its name: torn, or tampered with")
        return data

    def write(self, group: Group, data: bytes) -> None:
        """Adds a file; it has its name only when it is whole."""
        remote = Remote(group, hashlib.sha256(data).hexdigest(), len(data))
        path = self._path(remote.name)
        # Another push may be writing the same bytes: each has a part of its own.
        part = f"{path}.{uuid.uuid4().hex[:12]}.part"
        with self._failures("write"):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(part, data)
            self._files.mv(part, path)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        """A backend raises what it likes: botocore's, aiohttp's, paramiko's errors and the OS's."""
        try:
            yield
        except SpecccError:
            raise
        except Exception as error:
            raise SpecccError(f"cannot {verb} there: {_why(error)}", where=self.where) from None


def group_of(record: Record) -> Group:
    """The folders a record belongs in."""
    return record.key.device.digest()[:16], record.key.program[:16]


def push(
    store: Store,
    records: Iterable[Record],
    *,
    notice: Notice,
    report: Report,
    dry_run: bool = False,
) -> Pushed:
    """Adds to the store what it lacks. `report` is told of groups done."""
    groups: dict[Group, dict[str, Record]] = {}
    for record in records:
        groups.setdefault(group_of(record), {})[record.identity()] = record
    remotes, _ = store.listing()
    files = written = there = 0
    for number, (group, mine) in enumerate(sorted(groups.items()), 1):
        wanted = [remote for remote in remotes if remote.group == group]
        known = {r.identity() for found in _readable(store, wanted, Reading(), notice)
                 for r in found}  # fmt: skip
        new = [record for identity, record in sorted(mine.items()) if identity not in known]
        for data in exports(new):
            files += 1
            if not dry_run:
                store.write(group, data)
        written, there = written + len(new), there + len(mine) - len(new)
        report("push", number, len(groups))
    return Pushed(files, written, there)


def pull(
    store: Store, *, first: str, reading: Reading, notice: Notice, report: Report
) -> Iterator[list[Record]]:
    """The records of each file that is sound; those of the device `first` (its digest) first.

    What was passed over is told by `notice` and kept in `reading`. Nothing a file holds can stop
    the files after it, but for what they hold together: after `MOST_BYTES` the rest is left.
    InputError where there is no folder.
    """
    remotes, reading.strangers = store.listing()
    if not (remotes or reading.strangers or store.exists()):
        raise InputError("no such folder", where=store.where)
    remotes.sort(key=lambda remote: remote.group[0] != first[:16])
    for number, records in enumerate(_readable(store, remotes, reading, notice), 1):
        report("pull", number, len(remotes))
        yield records
    report("pull", len(remotes), len(remotes))


def exports(records: Sequence[Record]) -> Iterator[bytes]:
    """The records as exports, none larger than `PUSH`."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        length = len(next(_lines_of([record])))
        if chunk and (len(chunk) == PUSH.records or size + length > PUSH.file_bytes):
            yield b"".join((_header(chunk), *_lines_of(chunk)))
            chunk, size = [], 0
        chunk.append(record)
        size += length
    if chunk:
        yield b"".join((_header(chunk), *_lines_of(chunk)))


def _header(records: Sequence[Record]) -> bytes:
    return f"{next(json_lines(records))}\n".encode()


def _lines_of(records: Sequence[Record]) -> Iterator[bytes]:
    lines = json_lines(records)
    next(lines)
    return (f"{line}\n".encode() for line in lines)


def _readable(
    store: Store, remotes: Sequence[Remote], reading: Reading, notice: Notice
) -> Iterator[list[Record]]:
    """The records of the sound files, one list a file, and a notice for each of the others."""
    total = 0
    for number, remote in enumerate(remotes):
        if total >= MOST_BYTES:
            reading.left = len(remotes) - number
            notice(f"{store.where}: {total} bytes read; {reading.left} files are left unread")
            return
        try:
            data = store.read(remote)
            total += len(data)
            records = _records(data, remote.group)
        except SpecccError as error:
            reading.refused[remote.name] = str(error)
            notice(f"{store.where}: {remote.name[:46]}... passed over: {error}")
            continue
        reading.files += 1
        yield records


def _records(data: bytes, group: Group) -> list[Record]:
    records = read_records(io.BytesIO(data), "line", limits=LIMITS)
    if any(group_of(record) != group for record in records):
        raise InputError("holds records of another device or program than its folders say")
    return records


def _file_system(url: str, where: str) -> tuple[Files, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UnsupportedError(f"sharing needs fsspec: {MEND}", where=where) from None
    try:
        files, root = url_to_fs(url)
    except (ImportError, ValueError) as error:  # a backend that is not installed, or is unknown
        raise InputError(f"cannot be reached: {_why(error)}", where=where) from None
    except Exception as error:  # some connect at once
        raise SpecccError(f"cannot be reached: {_why(error)}", where=where) from None
    return files, str(root)


def _why(error: Exception) -> str:
    """One printable line: a server may have written it."""
    text = USER.sub("", f"{type(error).__name__}: {error}")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
