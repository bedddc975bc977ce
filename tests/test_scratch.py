"""Temporary folders: of processes that really are killed, of live ones, and of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speccc import scratch
from speccc.scratch import OWNER, PART, Scratch, published

HOLD = """
import sys, time
from pathlib import Path
from speccc.scratch import Scratch
held = Scratch({prefix!r}, Path(sys.argv[1]))
(held.path / "weights").write_bytes(b"w")
print(held.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def swept_anew() -> Iterator[None]:
    """A process sweeps a folder once; each test is a process's first time."""
    scratch._sweep.cache_clear()
    yield
    scratch._sweep.cache_clear()


@contextmanager
def holder(base: Path, prefix: str = "speccc-") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder in `base`, and that folder."""
    command = [sys.executable, "-c", HOLD.format(prefix=prefix), str(base)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_folder_is_ours_alone_and_gone_at_the_end(tmp_path: Path) -> None:
    with Scratch(base=tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "inner").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, left):
        kill(process)
        assert (left / "weights").exists()
        with Scratch(base=tmp_path) as folder:
            assert list(tmp_path.iterdir()) == [folder]


def test_a_live_process_keeps_its_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as (_, kept), Scratch(base=tmp_path) as folder:
        assert {p for p in tmp_path.iterdir()} == {kept, folder}
        assert (kept / "weights").read_bytes() == b"w"


def test_a_process_keeps_what_it_holds_itself(tmp_path: Path) -> None:
    with Scratch(base=tmp_path) as one:
        scratch._sweep.cache_clear()
        with Scratch(base=tmp_path) as two:
            assert one.exists()
            assert two != one


def test_what_has_no_lock_or_another_name_stays(tmp_path: Path) -> None:
    """A folder that is being made just now has no owner yet; one of another name is not ours."""
    made = tmp_path / "speccc-new"
    other = tmp_path / "theirs"
    for folder in (made, other):
        folder.mkdir()
    (other / OWNER).touch()
    (tmp_path / "speccc-file").touch()
    with Scratch(base=tmp_path):
        assert made.exists()
        assert other.exists()
        assert (tmp_path / "speccc-file").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    outside, base = tmp_path / "outside", tmp_path / "base"
    for folder in (outside, base):
        folder.mkdir()
    (outside / OWNER).touch()
    (base / "speccc-a").symlink_to(outside, target_is_directory=True)
    lured = base / "speccc-b"
    lured.mkdir()
    (lured / OWNER).symlink_to(outside / OWNER)
    with Scratch(base=base):
        assert (outside / OWNER).exists()
        assert lured.exists()


def test_another_users_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path) as (process, left):
        kill(process)
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        with Scratch(base=tmp_path):
            assert left.exists()


def test_each_prefix_is_swept_for_itself(tmp_path: Path) -> None:
    with holder(tmp_path, "weights-") as (process, left):
        kill(process)
        with Scratch(base=tmp_path):
            assert left.exists()
        with Scratch("weights-", tmp_path):
            assert not left.exists()


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path) as (process, left):
        kill(process)
        monkeypatch.setattr(scratch, "_LOCKS", False)
        with Scratch(base=tmp_path) as folder:
            assert left.exists()
            assert not (folder / OWNER).exists()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """What a killed process started may live on, and must not keep the folder."""
    code = HOLD.format(prefix="speccc-").replace(
        "print(", "import subprocess; subprocess.Popen(['sleep', '60']); print("
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        kill(process)
        with Scratch(base=tmp_path):
            assert not left.exists()
        os.killpg(process.pid, signal.SIGKILL)


def test_a_full_disk_of_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a tool writes half a file there and says something else, or nothing."""
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    usage = scratch.shutil.disk_usage(tmp_path)
    for free, fails in ((scratch.LEAST_FREE - 1, True), (scratch.LEAST_FREE, False)):
        seen = usage._replace(free=free)
        monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _, seen=seen: seen)
        if fails:
            with pytest.raises(OSError, match=r"less than 4 MiB free .* set TMPDIR") as caught:
                Scratch()
            assert caught.value.filename == str(tmp_path)
        else:
            Scratch().close()
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: usage._replace(free=0))
    Scratch(base=tmp_path).close()  # the caller's own folder is the caller's to judge
    assert list(tmp_path.iterdir()) == []


PUBLISH = """
import sys
from pathlib import Path
from speccc.scratch import published
with published(Path(sys.argv[1], "file")) as part:
    part.write_bytes(b"half")
    print(part, flush=True)
    sys.stdin.read()
"""


@contextmanager
def publisher(base: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process in the middle of writing `base`/file, and its part file."""
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISH, str(base)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def interrupted() -> None:
        with published(path) as part:
            part.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with published(path) as part:
        part.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writers_part_goes_with_the_next_write(tmp_path: Path) -> None:
    with publisher(tmp_path) as (process, left):
        kill(process)
        assert left.read_bytes() == b"half"
        with published(tmp_path / "another") as part:
            assert list(tmp_path.iterdir()) == [part]


def test_a_live_writer_keeps_its_part(tmp_path: Path) -> None:
    """And the file comes to be, whoever else writes the same one meanwhile."""
    with publisher(tmp_path) as (process, kept):
        with published(tmp_path / "file") as part:
            part.write_bytes(b"ours")
            assert set(tmp_path.iterdir()) == {kept, part}
        assert kept.read_bytes() == b"half"
        process.communicate()
        assert process.returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"half"


def test_a_part_taken_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making and the lock, a sweep of another process has removed the first."""
    hold, taken = scratch.hold, []

    def late(descriptor: int) -> None:
        if not taken:
            taken.append(next(tmp_path.iterdir()))
            scratch._sweep.cache_clear()
            scratch._sweep(tmp_path, PART)
        hold(descriptor)

    monkeypatch.setattr(scratch, "hold", late)
    with published(tmp_path / "file") as part:
        part.write_bytes(b"whole")
        assert not taken[0].exists()
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_only_part_files_go(tmp_path: Path) -> None:
    """A link or a folder of that name, or a file that is like the name of a folder, is not one."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept")
    (tmp_path / f"{PART}link").symlink_to(outside)
    (tmp_path / f"{PART}folder").mkdir()
    (tmp_path / ".speccc-emit-file").write_bytes(b"kept")
    (tmp_path / f"{PART}left").write_bytes(b"gone")
    before = {p.name for p in tmp_path.iterdir()}
    with Scratch(".speccc-emit-", tmp_path), published(tmp_path / "f"):
        pass
    assert {p.name for p in tmp_path.iterdir()} == before - {f"{PART}left"} | {"f"}
