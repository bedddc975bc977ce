"""Sharing records through a store: union both ways, pushes side by side, and stores of an enemy."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_rig import SIBLING, STRANGER, key, numbered, record
from hypothesis import given, settings
from hypothesis import strategies as st

from speccc.autotune import share
from speccc.autotune.cache import TuneCache
from speccc.autotune.cache_export import json_lines
from speccc.autotune.record import Outcome, Record
from speccc.cli import run
from speccc.errors import InputError, SpecccError

RECORDS = [
    record(),
    record(outcome=Outcome.WRONG),
    record(of=key(SIBLING)),
    record(of=key(program="cd" * 32)),
]


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store's address: in memory, or a folder that is not there yet."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/tune"
    return (tmp_path / "far" / "tune").as_uri()


def quiet(work: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def pushed(url: str, records: list[Record], *, dry_run: bool = False) -> share.Pushed:
    notices: list[str] = []
    done = share.push(
        share.Store(url), records, notice=notices.append, report=quiet, dry_run=dry_run
    )
    assert notices == []
    return done


def pulled(url: str, first: str = "") -> tuple[list[Record], share.Reading, list[str]]:
    reading, notices = share.Reading(), list[str]()
    found = share.pull(
        share.Store(url), first=first, reading=reading, notice=notices.append, report=quiet
    )
    records = [record for file in found for record in file]
    return records, reading, notices


def ids(records: list[Record]) -> list[str]:
    return sorted(record.identity() for record in records)


def test_what_is_pushed_is_pulled(url: str) -> None:
    assert pushed(url, RECORDS) == share.Pushed(files=3, records=4, there=0)
    records, reading, notices = pulled(url)
    assert (ids(records), reading.files, reading.refused, notices) == (ids(RECORDS), 3, {}, [])


def test_a_push_adds_only_what_is_not_there(url: str) -> None:
    pushed(url, RECORDS[:2])
    assert pushed(url, RECORDS[:2]) == share.Pushed(0, 0, 2)
    before = {remote.name for remote in share.Store(url).listing()[0]}
    assert pushed(url, [*RECORDS, record(ms=(7.0,))]) == share.Pushed(3, 3, 2)
    assert before < {remote.name for remote in share.Store(url).listing()[0]}
    records, _, _ = pulled(url)
    assert ids(records) == ids([*RECORDS, record(ms=(7.0,))])


def test_a_dry_run_writes_nothing(url: str) -> None:
    assert pushed(url, RECORDS, dry_run=True) == share.Pushed(3, 4, 0)
    assert share.Store(url).listing() == ([], 0)
    with pytest.raises(InputError, match="no such folder"):
        pulled(url)


def test_an_empty_folder_is_an_empty_store(tmp_path: Path) -> None:
    assert pulled(tmp_path.as_uri())[0] == []
    assert pulled(str(tmp_path))[0] == []


def test_own_records_come_first(url: str) -> None:
    pushed(url, [record(of=key(device)) for device in (SIBLING, STRANGER)] + [record()])
    for device in (SIBLING, STRANGER):
        assert pulled(url, device.digest())[0][0].key.device == device


def test_large_groups_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    records = [numbered(1, i) for i in range(7)]
    monkeypatch.setattr(share, "PUSH", share.Limits(file_bytes=1 << 20, records=3))
    assert pushed(url, records) == share.Pushed(3, 7, 0)
    line = len(next(share._lines_of(records[:1])))
    monkeypatch.setattr(share, "PUSH", share.Limits(file_bytes=2 * line, records=99))
    assert [data.count(b"\n") - 1 for data in share.exports(records)] == [2, 2, 2, 1]
    assert ids(pulled(url)[0]) == ids(records)


PUSHER = """
import sys
from cache_rig import numbered
from speccc.autotune import share
me = int(sys.argv[2])
for i in range(6):
    records = [numbered(0, i), numbered(me, i)]
    share.push(share.Store(sys.argv[1]), records, notice=print, report=lambda *a: None)
"""


def test_pushes_side_by_side_lose_nothing(tmp_path: Path) -> None:
    url = (tmp_path / "tune").as_uri()
    here = str(Path(__file__).parent)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", PUSHER, url, str(me)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": here},
        )
        for me in (1, 2, 3)
    ]
    assert [writer.communicate(timeout=60)[0] for writer in writers] == [b""] * 3
    assert [writer.returncode for writer in writers] == [0] * 3
    records, reading, _ = pulled(url)
    assert set(ids(records)) == {numbered(w, i).identity() for w in range(4) for i in range(6)}
    assert (reading.refused, reading.strangers) == ({}, 0)


def test_the_same_records_pushed_at_the_same_moment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another push writes and names the same file between our writing and our naming it."""
    mine, other = share.Store(url), share.Store(url)
    group, data = share.group_of(record()), export([record()])
    name = mine._files.mv

    def late(one: str, two: str) -> None:
        monkeypatch.undo()
        other.write(group, data)
        name(one, two)

    monkeypatch.setattr(mine._files, "mv", late)
    mine.write(group, data)
    assert pulled(url)[0] == [record()]
    assert mine.listing()[1] == 0


def export(records: list[Record]) -> bytes:
    return "".join(f"{line}\n" for line in json_lines(records)).encode()


def planted(root: Path, of: Record, data: bytes, name: str | None = None) -> Path:
    """A file that a stranger put where records of `of` belong, by default under its right name."""
    path = root.joinpath(*share.group_of(of), f"{name or hashlib.sha256(data).hexdigest()}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "name", "says"),
    [
        (export([record()])[:-20], hashlib.sha256(export([record()])).hexdigest(), "torn"),
        (b"", "0" * 64, "torn"),
        (b"", None, "is no export"),
        (export([record()])[:-20], None, "line:2"),
        (export([record(of=key(STRANGER))]), None, "another device"),
        (export([record(of=key(program="cd" * 32))]), None, "another device or program"),
        (export([record()]).replace(b'"unroll"', b'"shell"'), None, "no choice 'shell'"),
        (export([record()]).replace(b"[1.0,", b"[NaN,"), None, "NaN"),
        (b"cos\nsystem\n(S'true'\ntR.", None, "is no export"),
    ],
)
def test_a_bad_file_costs_a_notice_and_no_more(
    data: bytes, name: str | None, says: str, tmp_path: Path
) -> None:
    planted(tmp_path, record(), data, name)
    pushed_elsewhere = [record(of=key(SIBLING))]
    pushed(tmp_path.as_uri(), pushed_elsewhere)
    records, reading, notices = pulled(tmp_path.as_uri())
    assert records == pushed_elsewhere
    assert len(reading.refused) == len(notices) == 1
    assert says in notices[0]
    assert "\n" not in notices[0]


def test_a_push_mends_what_a_torn_file_lost(tmp_path: Path) -> None:
    pushed(tmp_path.as_uri(), RECORDS[:1])
    (path,) = tmp_path.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:100])
    notices: list[str] = []
    done = share.push(
        share.Store(tmp_path.as_uri()), RECORDS[:1], notice=notices.append, report=quiet
    )
    assert (done, len(notices)) == (share.Pushed(1, 1, 0), 1)
    assert pulled(tmp_path.as_uri())[0] == RECORDS[:1]


def never_read(self: share.Store, path: str) -> str:
    raise AssertionError("read what is too large")


def test_sizes_are_limited_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(planted(tmp_path, record(), b"", "1" * 64), 1 << 40)  # sparse: takes no space
    with monkeypatch.context() as patch:
        patch.setattr(share.Store, "_path", never_read)
        records, reading, notices = pulled(tmp_path.as_uri())
    assert (records, len(reading.refused)) == ([], 1)
    assert "1099511627776 bytes" in notices[0]


def test_a_store_that_lies_about_sizes_is_read_no_further_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = share.Store(f"memory://{uuid.uuid4().hex}")
    data = export([record()])
    store.write(share.group_of(record()), data)
    monkeypatch.setattr(share, "LIMITS", share.Limits(file_bytes=len(data) - 1))
    (remote,), _ = store.listing()
    with pytest.raises(InputError, match=f"has {len(data)} bytes"):
        store.read(remote)
    lying = share.Remote(remote.group, remote.sha256, 0)
    with pytest.raises(InputError, match=f"more than {len(data) - 1} bytes"):
        store.read(lying)


def test_a_flood_is_left_unread_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    pushed(url, RECORDS)
    monkeypatch.setattr(share, "MOST_BYTES", 1)
    records, reading, notices = pulled(url, RECORDS[0].key.device.digest())
    # Our own device's come first, so a flood of others cannot push them out.
    assert {r.key.device for r in records} == {RECORDS[0].key.device}
    assert (reading.files, reading.left) == (1, 2)
    assert "2 files are left unread" in notices[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_what_is_no_file_or_has_no_name_of_ours_is_not_read(tmp_path: Path) -> None:
    pushed(tmp_path.as_uri(), [record()])
    folder = tmp_path.joinpath(*share.group_of(record()))
    os.mkfifo(folder / f"{'2' * 64}.jsonl")
    (folder / "\x1b[2J\nnotice: all is well.jsonl").write_text("x")
    (folder / f"{'3' * 64}.jsonl.1234.part").write_text("x")
    (tmp_path / "README").write_text("x")
    records, reading, notices = pulled(tmp_path.as_uri())
    assert records == [record()]
    assert (reading.strangers, list(reading.refused.values())) == (3, ["is not a regular file"])
    assert "\x1b" not in "".join(notices)


@given(st.integers(0, 400), st.binary(max_size=6), st.booleans())
@settings(max_examples=40)
def test_scribbles_are_passed_over_or_are_other_records(at: int, junk: bytes, named: bool) -> None:
    data = export([record()])
    torn = data[:at] + junk + data[at + len(junk) :]
    store = share.Store(f"memory://{uuid.uuid4().hex}")
    store.write(share.group_of(record()), data)
    (remote,), _ = store.listing()
    name = hashlib.sha256(torn if named else data).hexdigest()
    path = store._path(share.Remote(remote.group, name, 0).name)
    store._files.pipe_file(path, torn)
    records, reading, notices = pulled(store.where)
    assert len(notices) == len(reading.refused)
    assert (record() in records) == (named or torn == data)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nosuch://x/y", "nosuch://x/y: cannot be reached: ValueError: Protocol not known: nosuch"),
        ("ftp://me:secret@127.0.0.1:1/x", "ftp://127.0.0.1:1/x: cannot be reached"),
    ],
)
def test_an_address_that_leads_nowhere_is_one_line(address: str, says: str) -> None:
    with pytest.raises(SpecccError) as error:
        share.Store(address)
    assert str(error.value).startswith(says)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("address", "mend"),
    [
        ("simplecache::s3://me:secret@bucket/tune", "name s3://bucket/tune alone"),
        ("dir::file:///tmp/x", "name file:///tmp/x alone"),
        ("zip://a::simplecache::memory://b", "name memory://b alone"),
        ("::", "name one place"),
    ],
)
def test_a_chain_of_file_systems_is_refused(address: str, mend: str) -> None:
    with pytest.raises(InputError) as error:
        share.Store(address)
    where = address.replace("me:secret@", "")
    assert str(error.value) == f"{where}: is a chain of file systems (::): {mend}"


def test_without_fsspec_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InputError, match=r"needs fsspec: pip install 'speccc\[share\]'"):
        share.Store("memory://x")


def test_a_failing_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tune").write_text("a file where the store should be")
    with pytest.raises(InputError, match="tune: is a file: name a folder"):
        pushed((tmp_path / "tune").as_uri(), RECORDS)
    with pytest.raises(SpecccError, match="cannot write there"):
        pushed((tmp_path / "tune" / "below").as_uri(), RECORDS)


Command = Callable[..., dict[str, object]]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`speccc cache ...` with the cache of a machine; its JSON."""

    def call(machine: str, *args: str) -> dict[str, object]:
        monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / machine))
        capsys.readouterr()
        assert run(["cache", *args, "--json"]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    return call


def test_two_machines_share(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = (tmp_path / "far" / "tune").as_uri()
    for machine, records in (("a", RECORDS[:2]), ("b", RECORDS[1:])):
        command(machine, "stats")
        with TuneCache(tmp_path / machine / "tune") as cache:
            cache.add(records)
    dry = {"files": 1, "records": 2, "there": 0, "dry_run": True}
    assert command("a", "push", url, "--dry-run") == dry
    assert command("a", "push", url) == dry | {"dry_run": False}
    read = {"refused": {}, "strangers": 0, "left": 0}
    want = {"records": 2, "added": 1, "files": 1} | read
    assert command("b", "pull", url, "-n") == want | {"dry_run": True}
    assert command("b", "pull", url) == want | {"dry_run": False}
    assert command("b", "push", url) == {"files": 2, "records": 2, "there": 2, "dry_run": False}
    command("a", "pull", url)
    # A union on both sides; only what was measured here counts as checked.
    for machine, own in (("a", RECORDS[:2]), ("b", RECORDS[1:])):
        with TuneCache(tmp_path / machine / "tune") as cache:
            checked = {entry.identity: entry.verified for entry in cache.entries()}
        assert checked == {r.identity(): r in own for r in RECORDS}
    assert run(["cache", "pull", url]) == 0
    assert capsys.readouterr().err == "4 records in 3 files, 0 of them are new\n"


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_wrong_address_is_exit_code_2(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["cache", verb, "nosuch://x"]) == 2
    assert capsys.readouterr().err.startswith("error: nosuch://x: cannot be reached")
