"""The container of an artifact: an uncompressed zip whose entries start on page boundaries.

Reading checks everything before anything is mapped: entry names, sizes, offsets, overlaps and the
SHA-256 that the manifest gives for each entry. The archive's comment is the SHA-256 of all bytes
that are no entry's, so that no byte of the file may change.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError
from speccc.runtime.aligned import aligned
from speccc.runtime.destination import ZIP_MAGIC
from speccc.scratch import hold, published

MANIFEST = "manifest.json"
SCHEMA = 3
PAGE = 4096
MAX_MANIFEST = 64 << 20
MAX_ENTRIES = 4096
SEAL = hashlib.sha256().digest_size
_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_CRC = 14
"""Where a local header has the CRC-32 of its entry."""
_PAD_ID = 0xD935  # the id that Android's zipalign uses for padding
# What zipfile and the checks below raise for a file that is not as it should be.
_DAMAGE = (OSError, ValueError, zipfile.BadZipFile, struct.error, RuntimeError, EOFError,
           OverflowError, LookupError, zlib.error)  # fmt: skip
Bytes = npt.NDArray[np.uint8]
_PIECE = 16 << 20


@dataclass(frozen=True)
class Entries:
    """A validated artifact: its manifest and its entries, mapped copy-on-write."""

    path: Path
    manifest: dict[str, Any]
    data: Mapping[str, Bytes]
    mapped: mmap.mmap

    def forget(self) -> None:
        """Gives back the pages that reading made resident; they come back from the file cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)

    def load(self, name: str) -> Bytes:
        """A copy of an entry in pages of its own, huge ones where the system has them.

        The file's pages are given back as the copy grows: at no time is more than a piece of the
        entry in memory twice.
        """
        entry = self.data[name]
        out = aligned(entry.shape, np.uint8)
        for at in range(0, entry.size, _PIECE):
            out[at : at + _PIECE] = entry[at : at + _PIECE]
            self.forget()
        return out

    def text(self, name: str) -> str:
        """An entry as UTF-8; InputError if it is missing or not text."""
        if name not in self.data:
            raise InputError(
                f"entry {name} is missing: compile the model again", where=str(self.path)
            )
        try:
            return bytes(self.data[name]).decode()
        except UnicodeDecodeError as e:
            raise InputError(f"entry {name} is not UTF-8", where=str(self.path)) from e


def write_entries(
    path: Path, manifest: dict[str, Any], data: Mapping[str, bytes | Bytes]
) -> dict[str, Any]:
    """Writes an artifact under another name beside `path`, then renames it: all of it or nothing.

    Returns the manifest as written. InputError when the folder cannot be written or is full.
    """
    entries = {name: {"size": len(raw), "sha256": "0" * 2 * SEAL} for name, raw in data.items()}
    sealed = {**manifest, "schema": SCHEMA, "entries": entries}
    try:
        with (
            _published(path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as out,
            ThreadPoolExecutor(1) as beside,
        ):
            # Entries are written while their hashes, in the manifest before them, are computed.
            hashes = beside.map(lambda raw: hashlib.sha256(_view(raw)).hexdigest(), data.values())
            _add(out, MANIFEST, _manifest_text(sealed))
            for name, raw in data.items():
                _add(out, name, raw)
            for entry, digest in zip(entries.values(), hashes, strict=True):
                entry["sha256"] = digest
            _rewrite(file, out.getinfo(MANIFEST), _manifest_text(sealed))
            _seal(out, file)
    except OSError as e:
        raise InputError(f"cannot be written ({e.strerror or e})", where=str(path)) from e
    return sealed


@contextmanager
def _published(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets the name `path` when the block ends without an exception."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    nameless = _open_nameless(path.parent)
    if nameless is None:
        with published(path) as part, part.open("w+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o644)
        return
    # Until it is complete the file has no name at all: even a killed process leaves nothing.
    with os.fdopen(nameless, "w+b") as file:
        yield file
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        hold(file.fileno())
        with published(path) as part:
            part.unlink()
            # With a src_dir_fd (not used by an absolute path) Python follows the link.
            os.link(f"/proc/self/fd/{file.fileno()}", part, src_dir_fd=file.fileno())


def _open_nameless(folder: Path) -> int | None:
    """A file without a name in `folder`, where the system and the file system have such files."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    with suppress(OSError):
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    return None


def _data_offset(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where an entry's bytes begin; ValueError unless its header is where the directory says."""
    file.seek(info.header_offset)
    fields = _LOCAL.unpack(file.read(_LOCAL.size))
    if fields[0] != b"PK\3\4":
        raise ValueError(f"entry {info.filename!r} is not where the directory says")
    return int(info.header_offset + _LOCAL.size + fields[9] + fields[10])


def _seal(out: zipfile.ZipFile, file: IO[bytes]) -> None:
    """Closes an archive; its comment, the last bytes, becomes the hash of what is no entry's."""
    out.comment = bytes(SEAL)
    spans = [(_data_offset(file, i), i.file_size) for i in out.infolist()]
    out.close()
    total = file.seek(0, os.SEEK_END)
    digest = _frame_hash(file, spans, total)
    file.seek(total - SEAL)
    file.write(digest)


def _frame_hash(file: IO[bytes], spans: Iterable[tuple[int, int]], total: int) -> bytes:
    """SHA-256 of the bytes before the comment that belong to no entry: headers and directory."""
    out, at = hashlib.sha256(), 0
    for start, size in (*sorted(spans), (total - SEAL, 0)):
        if not 0 <= start - at <= MAX_MANIFEST:
            raise ValueError(f"{start - at} bytes between entries")
        file.seek(at)
        out.update(file.read(start - at))
        at = start + size
    return out.digest()


def _manifest_text(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def _rewrite(file: IO[bytes], info: zipfile.ZipInfo, raw: bytes) -> None:
    """Other bytes, as many, for an entry of an archive that is not closed yet."""
    if len(raw) != info.file_size:
        raise ValueError(f"{info.filename}: {len(raw)} bytes in the place of {info.file_size}")
    end = file.tell()
    start = _data_offset(file, info)
    info.CRC = zlib.crc32(raw)  # as the directory will have it
    file.seek(info.header_offset + _LOCAL_CRC)
    file.write(struct.pack("<I", info.CRC))
    file.seek(start)
    file.write(raw)
    file.seek(end)


def _view(raw: bytes | Bytes) -> memoryview:
    return memoryview(raw) if isinstance(raw, bytes) else raw.data


def _add(out: zipfile.ZipFile, name: str, raw: bytes | Bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    fp = out.fp
    if fp is None:
        raise ValueError("the archive is closed")
    zip64 = 20  # the local header's size field, forced below
    start = fp.tell() + _LOCAL.size + len(name) + zip64 + 4
    pad = -start % PAGE
    info.extra = struct.pack("<HH", _PAD_ID, pad) + bytes(pad)
    with out.open(info, "w", force_zip64=True) as entry:
        entry.write(_view(raw))


def read_entries(path: Path) -> Entries:
    """Validates an artifact and maps its entries; InputError names the file and what is wrong."""
    where = str(path)
    try:
        spans, crc = _spans(path)
        with open(path, "rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    except _DAMAGE as e:
        raise InputError(_damage(path, e), where=where) from e
    whole = np.frombuffer(mapped, np.uint8)
    data = {name: whole[at : at + size] for name, (at, size) in spans.items()}
    manifest = _manifest(data.pop(MANIFEST, None), crc, where)
    _check_entries(manifest, data, where)
    entries = Entries(path, manifest, data, mapped)
    entries.forget()  # checking read all of it
    return entries


def _damage(path: Path, error: Exception) -> str:
    """What is wrong with a path that could not be read as an artifact."""
    if not path.exists():
        return "no such file"
    magic = ZIP_MAGIC
    with suppress(OSError), path.open("rb") as file:
        magic = file.read(len(ZIP_MAGIC))
    if path.is_dir() or magic != ZIP_MAGIC:
        return "is no artifact: `speccc compile` (speccc.compile) makes one of a model"
    said = " ".join(str(error).split())
    return f"is not a whole speccc artifact ({said}): compile it again"


def _spans(path: Path) -> tuple[dict[str, tuple[int, int]], int | None]:
    """Offset and size of each entry and the manifest's CRC-32; ValueError for anything odd.

    The CRC-32 is None when the archive's comment is not the hash of what is no entry's.
    """
    if not path.is_file():
        raise ValueError("no such file")
    total = path.stat().st_size
    spans: dict[str, tuple[int, int]] = {}
    crc = 0
    with zipfile.ZipFile(path) as z, open(path, "rb") as f:
        infos = z.infolist()
        if len(infos) > MAX_ENTRIES:
            raise ValueError(f"{len(infos)} entries")
        for info in infos:
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                raise ValueError(f"entry {info.filename!r} is compressed")
            at = _data_offset(f, info)
            if at + info.file_size > total or at % PAGE:
                raise ValueError(f"entry {info.filename!r} is not where the directory says")
            if info.filename in spans or not info.filename.isprintable():
                raise ValueError(f"entry {info.filename!r} appears twice or has a bad name")
            spans[info.filename] = (at, info.file_size)
            crc = info.CRC if info.filename == MANIFEST else crc
        _check_overlap(spans)
        framed = _frame_hash(f, spans.values(), total)
    return spans, crc if framed == z.comment else None


def _check_overlap(spans: Mapping[str, tuple[int, int]]) -> None:
    end, before = 0, ""
    for name, (at, size) in sorted(spans.items(), key=lambda s: s[1]):
        if at < end:
            raise ValueError(f"entries {before!r} and {name!r} overlap")
        end, before = at + size, name


def _manifest(raw: Bytes | None, crc: int | None, where: str) -> dict[str, Any]:
    if raw is None or len(raw) > MAX_MANIFEST:
        raise InputError("has no manifest: it is not a speccc artifact", where=where)
    try:
        manifest = json.loads(bytes(raw))
    except (ValueError, RecursionError) as e:
        raise InputError("manifest.json is damaged: compile the model again", where=where) from e
    if not isinstance(manifest, dict) or not isinstance(manifest.get("entries"), dict):
        raise InputError("manifest.json is damaged: compile the model again", where=where)
    if manifest.get("schema") != SCHEMA:
        found = str(manifest.get("schema"))[:40]
        raise InputError(
            f"has schema {found}, this version reads {SCHEMA}: compile the model again", where=where
        )
    if crc is None or zlib.crc32(_view(raw)) != crc:
        raise InputError("its directory or manifest is damaged: compile it again", where=where)
    return manifest


def _check_entries(manifest: dict[str, Any], data: Mapping[str, Bytes], where: str) -> None:
    listed = manifest["entries"]
    if set(listed) != set(data):
        odd = sorted(set(listed) ^ set(data))[0]
        raise InputError(f"entry {odd} is not as the manifest lists it", where=where)
    for name, raw in data.items():
        facts = listed[name]
        if not isinstance(facts, dict) or facts.get("size") != len(raw):
            raise InputError(f"entry {name} has not the size the manifest gives", where=where)
        if hashlib.sha256(_view(raw)).hexdigest() != facts.get("sha256"):
            raise InputError(f"entry {name} is damaged: compile the model again", where=where)
