"""`speccc cache`: what each subcommand prints, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cache_rig import STRANGER, key, record

from speccc.autotune.cache import TuneCache
from speccc.autotune.host import host_device
from speccc.autotune.record import Outcome
from speccc.cli import run

OLD = "2020-01-01T00:00:00Z"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache" / "tune").mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o700)
    return tmp_path / "cache" / "tune"


@pytest.fixture
def filled(folder: Path) -> Path:
    with TuneCache(folder) as cache:
        cache.add([record(), record(outcome=Outcome.TIMEOUT), record(of=key(kernel="head"))])
    return folder


def out(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    capsys.readouterr()
    assert run(["cache", *args]) == code
    captured = capsys.readouterr()
    assert captured.err.count("error:") == (code != 0)
    return captured.out


def error(capsys: pytest.CaptureFixture[str], *args: str, code: int) -> str:
    capsys.readouterr()
    assert run(["cache", *args]) == code
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_ls(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(out(capsys, "ls", "--json"))
    assert len(listed) == 3
    one = next(item for item in listed if item["id"] == record().identity())
    assert (one["ms"], one["verified"], one["key"]["m"]) == ([1.0, 1.25], True, 8)
    assert len(json.loads(out(capsys, "ls", "--kernel", "head", "--json"))) == 1
    assert len(json.loads(out(capsys, "ls", "--id", record().identity()[:12], "--json"))) == 1
    text = out(capsys, "ls")
    assert record().identity()[:12] in text
    assert "prefetch=512 unroll=2" in text


def test_stats(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(out(capsys, "stats", "--json"))
    assert (facts["records"], facts["kernels"]) == (3, {"head": 1, "step": 2})
    assert "kernels: head" in out(capsys, "stats")


def test_verify_then_gc(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(out(capsys, "verify", "--json")) == {"records": 3, "faults": []}
    with TuneCache(filled) as cache:
        cache._db.execute(
            "UPDATE record SET body = replace(body, '1.25', '0.25') WHERE id = ?",
            (record().identity(),),
        )
    assert "gc --damaged" in error(capsys, "verify", code=1)
    assert json.loads(out(capsys, "gc", "--damaged", "--json"))["records"] == 1
    assert json.loads(out(capsys, "verify", "--json")) == {"records": 2, "faults": []}


def test_gc_drops_old_records_of_this_device_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = key(host_device())
    records = [record(of=here, at=OLD), record(of=key(STRANGER), at=OLD), record(of=here)]
    with TuneCache(folder) as cache:
        cache.add(records)
    dry = json.loads(out(capsys, "gc", "--older-than", "1000", "--dry-run", "--json"))
    assert (dry["records"], dry["dry_run"]) == (1, True)
    assert json.loads(out(capsys, "gc", "--older-than", "1000", "--json"))["records"] == 1
    with TuneCache(folder) as cache:
        assert {entry.record for entry in cache.entries()} == set(records[1:])
    out(capsys, "gc", "--older-than", "1000", "--foreign")
    with TuneCache(folder) as cache:
        assert {entry.record for entry in cache.entries()} == {records[2]}


def test_gc_deletes_files_set_aside_only_when_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tune.sqlite").write_text("not a database, but somebody's" * 99)
    assert json.loads(out(capsys, "stats", "--json"))["records"] == 0
    error(capsys, "gc", code=2)
    assert len(list(folder.glob("*.aside-*"))) == 1
    assert len(json.loads(out(capsys, "gc", "--aside", "--json"))["files"]) == 1
    assert list(folder.glob("*.aside-*")) == []


def test_export_and_import(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "x.jsonl"
    done = json.loads(out(capsys, "export", "-o", str(target), "--json"))
    assert done == {"records": 3, "files": [str(target)]}
    assert out(capsys, "export") == target.read_text()
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "second"))
    assert json.loads(out(capsys, "import", str(target), "--json")) == {"records": 3, "added": 3}
    assert json.loads(out(capsys, "import", str(target), "--json")) == {"records": 3, "added": 0}
    assert [item["verified"] for item in json.loads(out(capsys, "ls", "--json"))] == [False] * 3
    assert json.loads(out(capsys, "gc", "--unverified", "--json"))["records"] == 0
    assert json.loads(out(capsys, "gc", "--unverified", "--foreign", "--json"))["records"] == 3


def test_a_bad_import_adds_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    with TuneCache(folder) as cache:
        cache.add([record(), record(ms=(2.5,))])
    text = out(capsys, "export").replace("2.5]", "-2.5]")
    bad.write_text(text)
    (folder / "tune.sqlite").unlink()
    assert f"{bad}:" in error(capsys, "import", str(bad), code=2)
    assert json.loads(out(capsys, "stats", "--json"))["records"] == 0


def test_t4(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give -o an existing folder" in error(capsys, "export", "--t4", code=2)
    one = json.loads(out(capsys, "export", "--t4", "--kernel", "head"))
    assert [result["invalidity"] for result in one["results"]] == ["correct"]
    target = tmp_path / "t4"
    target.mkdir()
    out(capsys, "export", "--t4", "-o", str(target))
    assert sorted(path.name.rsplit("-", 1)[0] for path in target.iterdir()) == [
        "head-m8",
        "step-m8",
    ]


def test_what_picks_nothing_of_what_there_is_is_no_error(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(out(capsys, "ls", "--kernel", "verify", "--json")) == []
    known = record().identity()[:12]
    assert json.loads(out(capsys, "ls", "--kernel", "head", "--id", known, "--json")) == []
    assert "none of 3 records" in error(capsys, "ls", "--id", "zz", code=2)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "say what to do"),
        (("lst",), "no such command"),
        (("ls", "--jsno"), "did you mean --json?"),
        (("import",), "FILE"),
        (("import", "nowhere.jsonl"), "nowhere.jsonl: no such file"),
        (("export", "--json"), "give -o FILE"),
        (("export", "-o", "no/such/folder/x.jsonl"), "no such folder"),
        (("export", "--t4"), "no records"),
        (("export", "-o", "."), ".: is a folder: name a file with -o"),
        (("ls", "--kernel", "banana"), "--kernel banana: no such kernel; known: attention, head,"),
        (("export", "--kernel", "banana"), "--kernel banana: no such kernel"),
        (("ls", "--id", "zz"), "--id zz: none of 0 records has an id that starts so; `speccc"),
        (("push", "/store", "-n", "--id", "zz"), "--id zz: none of 0 records"),
        (("push", ""), "URL: is empty: name a folder"),
        (("pull", " "), "URL: is empty: name a folder"),
        (("push", "memory://x"), "memory://x: is lost when the command ends: name a folder"),
        (("pull", "memory://x"), "memory://x: is lost when the command ends"),
        (("push", "file://rel"), "file://rel: is relative: write file:///folder or a plain path"),
        (("pull", "file:rel/x"), "file:rel/x: is relative"),
        (("pull", "file:///no/such/folder"), "file:///no/such/folder: no such folder"),
        (("pull", "no/such/folder", "-n"), "no/such/folder: no such folder"),
        (("pull", "file:///etc/passwd"), "file:///etc/passwd: is a file: name a folder"),
        (("push", "/etc/passwd"), "/etc/passwd: is a file: name a folder"),
    ],
)
def test_bad_usage(
    folder: Path, args: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in error(capsys, *args, code=2)
