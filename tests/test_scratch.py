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
from speccc.scratch import OWNER, Scratch

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
