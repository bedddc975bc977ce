"""Exports read back, T4 as its schema has it, and imports from an enemy."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_rig import SIBLING, key, record
from hypothesis import given
from hypothesis import strategies as st

from speccc.autotune.cache import TuneCache
from speccc.autotune.cache_export import json_lines, t4_document, t4_groups, t4_text
from speccc.autotune.cache_import import Limits, import_file, read_records
from speccc.autotune.record import Outcome, Record
from speccc.errors import InputError, SpecccError, UnsupportedError

RECORDS = [
    record(),
    record({"unroll": 4, "rows": 8}, (0.5,)),
    record(outcome=Outcome.WRONG),
    record(of=key(SIBLING)),
]


def exported(records: list[Record]) -> bytes:
    return "".join(f"{line}\n" for line in json_lines(records)).encode()


def read(data: bytes, limits: Limits | None = None) -> list[Record]:
    return read_records(io.BytesIO(data), "x.jsonl", limits=limits)


def test_an_export_reads_back() -> None:
    assert read(exported(RECORDS)) == RECORDS
    assert read(exported([])) == []
    assert read(exported(RECORDS).replace(b"\n", b"\r\n")) == RECORDS


def test_two_caches_merge_by_export_and_import(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with TuneCache(tmp_path / "a") as a, TuneCache(tmp_path / "b") as b:
        a.add(RECORDS[:3])
        b.add(RECORDS[2:])
        path = tmp_path / "a.jsonl"
        path.write_bytes(exported([entry.record for entry in a.entries()]))
        assert b.add(import_file(path), verified=False, origin="import") == 2
        assert b.add(import_file(path), verified=False, origin="import") == 0
        verified = {entry.identity: entry.verified for entry in b.entries()}
    assert verified == {r.identity(): r in RECORDS[2:] for r in RECORDS}


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    """An export whose one record was tampered with."""
    head, body = exported([record()]).splitlines()
    value = json.loads(body)
    change(value)
    return head + b"\n" + json.dumps(value).encode() + b"\n"


def put(*path: str, to: object) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for name in path[:-1]:
            value = value[name]
        value[path[-1]] = to

    return change


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda value: value.pop(name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("ms", to=[1.0, float("nan")]), "NaN"),
        (put("ms", to=[float("inf")]), "Infinity"),
        (put("ms", to=[-1.0]), r"ms\[0\]"),
        (put("ms", to=[0]), r"ms\[0\]"),
        (put("ms", to=["1"]), r"ms\[0\]: must be a number, not a text"),
        (put("ms", to=[True]), r"ms\[0\]"),
        (put("ms", to=[10**400]), r"ms\[0\]"),
        (put("ms", to={}), "ms: must be a list"),
        (put("ms", to=[1.0] * 5000), "ms: "),
        (put("ms", to=[]), "ms: "),
        (put("default_ms", to=None), "default_ms"),
        (put("default_ms", to=-2.0), "default_ms"),
        (put("compile_s", to=-0.1), "compile_s"),
        (put("compile_s", to=1e300), "compile_s"),
        (put("verify_s", to=[]), "verify_s"),
        (put("outcome", to="great"), "outcome"),
        (put("outcome", to=0), "outcome"),
        (put("at", to="2999-01-01T00:00:00Z"), "future"),
        (put("at", to="2026-11-29"), "at: "),
        (put("key", "kernel", to="rm_rf"), "unknown kernel 'rm_rf'"),
        (put("key", "kernel", to="../step"), "key.kernel"),
        (put("key", "program", to="../../../../etc/passwd"), "key.program"),
        (put("key", "m", to=0), "key.m"),
        (put("key", "m", to=True), "key.m"),
        (put("key", "m", to=8.0), "key.m"),
        (put("key", "m", to=10**30), "key.m"),
        (put("key", "shapes", "n", to=-1), "key.shapes"),
        (put("key", "shapes", "n", to=1.5), "key.shapes"),
        (put("key", "shapes", to=[]), "key.shapes"),
        (put("key", "device", "name", to="/dev/zero"), "device.name"),
        (put("key", "device", "name", to="x\u001b[2J"), "device.name"),
        (put("key", "device", "extra", to=1), "unknown field 'extra'"),
        (put("key", "layout", to={f"a{i}": i for i in range(99)}), "key.layout"),
        (put("key", "policy", to={"a": {"b": 1}}), "key.policy.a"),
        (put("key", to=None), "key: must be an object, not null"),
        (put("config", to={"shell": 1}), "no choice 'shell'"),
        (put("config", to={"unroll": "$(reboot)"}), "config.unroll"),
        (put("config", to={"unroll": None}), "config.unroll"),
        (put("config", to={"../unroll": 1}), "config"),
        (put("config", to={"unroll": 2**60}), "config.unroll"),
        (put("provenance", to={"host": "..\\x"}), "provenance.host"),
        (put("provenance", to={"a..b": 1}), "provenance"),
        (put("message", to="a\nerror: b"), "message"),
        (put("source", to="__import__('os')"), "unknown field 'source'"),
        (drop("verify_s"), "lacks verify_s"),
    ],
)
def test_a_tampered_record_is_refused(change: Callable[[dict[str, Any]], None], says: str) -> None:
    assert read(changed(lambda value: None)) == [record()]
    with pytest.raises(InputError, match=says) as error:
        read(changed(change))
    assert str(error.value).startswith("x.jsonl:2: ")
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


def test_a_doubled_name_is_refused() -> None:
    """Two readers could take two different values."""
    data = exported([record()])
    assert data.count(b'"m":8') == 1
    with pytest.raises(InputError, match="twice"):
        read(data.replace(b'"m":8', b'"m":8,"m":4'))


HEAD = b'{"format":"speccc-tune","records":1,"schema":1}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b'{"key":{},"key":{}}',
        b"9" * 100_000,
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"record"',
        b"",
        b"{",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x95",
    ],
)
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(InputError, match=r"^x\.jsonl:2: "):
        read(HEAD + line + b"\n")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\n",
        b"{}\n",
        b"PK\x03\x04",
        b'{"format":"other","records":0,"schema":1}\n',
        b'{"format":"speccc-tune","records":-1,"schema":1}\n',
        b'{"format":"speccc-tune","records":true,"schema":1}\n',
        b'{"format":"speccc-tune","records":1e3,"schema":1}\n',
        b'{"format":"speccc-tune","records":0,"schema":true}\n',
        b'{"format":"speccc-tune","records":99999999,"schema":1}\n',
        b'{"format":"speccc-tune","records":0,"schema":1,"more":1}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_file_without_our_header_is_refused(head: bytes) -> None:
    with pytest.raises(InputError, match=r"^x\.jsonl"):
        read(head)


def test_a_newer_export_says_so() -> None:
    with pytest.raises(UnsupportedError, match="schema 2, this speccc reads 1"):
        read(HEAD.replace(b'"schema":1', b'"schema":2'))


def test_a_file_cut_short_is_refused_whole() -> None:
    lines = exported(RECORDS).splitlines(keepends=True)
    with pytest.raises(InputError, match="ends after 3 of 4 records"):
        read(b"".join(lines[:-1]))
    with pytest.raises(InputError, match="more than the 4 records promised"):
        read(b"".join([*lines, lines[-1]]))
    with pytest.raises(InputError, match=r"x\.jsonl:5"):
        read(b"".join(lines)[:-40])


def test_sizes_are_limited_before_anything_is_read(tmp_path: Path) -> None:
    data = exported(RECORDS)
    longest = max(map(len, data.splitlines(keepends=True)))
    assert read(data, Limits(len(data), longest, 4)) == RECORDS
    for limits in (
        Limits(file_bytes=len(data) - 1),
        Limits(line_bytes=longest - 1),
        Limits(records=3),
    ):
        with pytest.raises(InputError):
            read(data, limits)
    path = tmp_path / "big.jsonl"
    path.write_bytes(HEAD)
    os.truncate(path, 1 << 40)  # sparse: takes no space
    with pytest.raises(InputError, match="1099511627776 bytes"):
        import_file(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match="is not a regular file"):
            import_file(path)


@given(st.integers(0, 400), st.binary(max_size=6))
def test_scribbles_are_refused_in_one_line_or_change_nothing_unsaid(at: int, junk: bytes) -> None:
    data = exported([record()])
    torn = data[:at] + junk + data[at + len(junk) :]
    try:
        records = read(torn)
    except SpecccError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        # What still reads is another record under another name, never the old name.
        assert (records == [record()]) == (records[0].identity() == record().identity())


def check_t4(document: dict[str, Any]) -> None:
    """The rules of the T4 schema that our documents can break."""
    assert [part.isdigit() for part in document["schema_version"].split(".")] == [True] * 3
    metadata = document["metadata"]
    assert metadata.get("compute_api", "CUDA") in ("OpenCL", "CUDA", "Vulkan")
    assert metadata["timeunit"] == "milliseconds"
    for name in ("platform", "device", "autotuner", "autotuner_version", "timestamp"):
        assert isinstance(metadata[name], str)
    for result in document["results"]:
        assert isinstance(result["configuration"], dict)
        times = result["times"]
        assert set(times) <= {"compilation_time", "runtimes", "validation"}
        assert all(isinstance(t, float) for t in times["runtimes"])
        assert result["invalidity"] in (
            "timeout", "compile", "runtime", "correctness", "constraints", "correct",
        )  # fmt: skip
        assert result["correctness"] in (0, 1)
        for measured in result["measurements"]:
            assert set(measured) == {"name", "value", "unit"}


def test_t4_says_what_the_records_say() -> None:
    failures = [record(outcome=o) for o in Outcome if o is not Outcome.OK]
    document = json.loads(t4_text([record(ms=(1.0, 1.25, 3.0)), *failures]))
    check_t4(document)
    ok = document["results"][0]
    assert ok["configuration"] == {"prefetch": 512, "unroll": 2}
    # Seconds of building and checking become milliseconds, the unit of the document.
    assert ok["times"] == {
        "compilation_time": 250.0,
        "validation": 500.0,
        "runtimes": [1.0, 1.25, 3.0],
    }
    assert ok["measurements"] == [{"name": "time", "value": 1.25, "unit": "milliseconds"}]
    assert (ok["invalidity"], ok["correctness"]) == ("correct", 1)
    told = [(r["invalidity"], r["correctness"]) for r in document["results"][1:]]
    assert told == [
        ("constraints", 0),
        ("compile", 0),
        ("runtime", 0),
        ("timeout", 0),
        ("correctness", 0),
    ]


def test_t4_is_one_key_a_document() -> None:
    groups = t4_groups(RECORDS)
    assert sorted(len(group) for group in groups.values()) == [1, 3]
    for name, group in groups.items():
        assert name.startswith("step-m8-")
        check_t4(json.loads(t4_text(group)))
    with pytest.raises(InputError, match="2 keys"):
        t4_document(RECORDS)
