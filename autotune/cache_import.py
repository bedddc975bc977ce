"""Reading an export that may come from anybody: data only, and all of it checked before any is
kept.

What is accepted is still only a claim: the cache marks it unverified until the numerics of the
configuration were checked here, and times are raced against the default before they count.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import BinaryIO

from speccc.autotune.cache_export import FORMAT
from speccc.autotune.record import SCHEMA, Record, check_stamp
from speccc.autotune.record_json import MOST_BYTES, parse_json, record_from_json
from speccc.autotune.vocabulary import VOCABULARY, Vocabulary, check_known
from speccc.errors import InputError, UnsupportedError

HEADER = {"format", "schema", "records"}
CLOCK_SLACK = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most an import may hold: bytes of the file, bytes of a line, records."""

    file_bytes: int = 256 << 20
    line_bytes: int = MOST_BYTES
    records: int = 200_000


def import_file(
    path: Path, *, vocabulary: Vocabulary = VOCABULARY, limits: Limits | None = None
) -> list[Record]:
    """The records of a JSON lines export; InputError names the line and field that is wrong.

    All or nothing: one bad line refuses the file.
    """
    limits = limits or Limits()
    try:
        info = path.stat()
        # A pipe or a device has no size to check and may have no end.
        if not stat.S_ISREG(info.st_mode):
            raise InputError("is not a regular file", where=str(path))
        if info.st_size > limits.file_bytes:
            raise InputError(
                f"has {info.st_size} bytes; {limits.file_bytes} are allowed", where=str(path)
            )
        with path.open("rb") as stream:
            return read_records(stream, str(path), vocabulary=vocabulary, limits=limits)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from None


def read_records(
    stream: BinaryIO,
    name: str,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    limits: Limits | None = None,
) -> list[Record]:
    """The records of an open export; `name` stands before the line number in errors."""
    limits = limits or Limits()
    lines = _lines(stream, name, limits)
    promised = _header(next(lines, (1, "")), name, limits)
    latest = datetime.now(timezone.utc) + CLOCK_SLACK
    records: dict[str, Record] = {}
    count = 0
    for number, line in lines:
        count += 1
        if count > promised:
            raise InputError(f"more than the {promised} records promised", where=f"{name}:{number}")
        try:
            record = record_from_json(parse_json(line))
            check_known(record, vocabulary)
            if check_stamp(record.at) > latest:
                raise InputError("lies in the future", where="at")
        except InputError as error:
            raise InputError(str(error), where=f"{name}:{number}") from None
        records[record.identity()] = record
    if count < promised:
        raise InputError(f"ends after {count} of {promised} records", where=name)
    return list(records.values())


def _lines(stream: BinaryIO, name: str, limits: Limits) -> Iterator[tuple[int, str]]:
    total = number = 0
    while raw := stream.readline(limits.line_bytes + 1):
        number += 1
        total += len(raw)
        where = f"{name}:{number}"
        if len(raw) > limits.line_bytes:
            raise InputError(f"is longer than {limits.line_bytes} bytes", where=where)
        if total > limits.file_bytes:
            raise InputError(f"has more than {limits.file_bytes} bytes", where=name)
        try:
            yield number, raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError("is not UTF-8 text", where=where) from None


def _header(line: tuple[int, str], name: str, limits: Limits) -> int:
    """How many records follow; the header also tells a truncated file from a whole one."""
    number, text = line
    try:
        header = parse_json(text)
    except InputError:
        header = None
    mend = "make one with `speccc cache export`"
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"is no export of a tuning cache; {mend}", where=name)
    schema, count = header.get("schema"), header.get("records")
    if schema != SCHEMA or isinstance(schema, bool):
        raise UnsupportedError(
            f"has schema {str(schema)[:20]}, this speccc reads {SCHEMA}", where=name
        )
    if set(header) != HEADER or isinstance(count, bool) or not isinstance(count, int):
        raise InputError("the header has format, schema and records", where=f"{name}:{number}")
    if not 0 <= count <= limits.records:
        raise InputError(f"may have 0 to {limits.records} records", where=f"{name}:{number}")
    return count
