"""Many processes on one cache, some of them killed while they write: nothing promised is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cache_rig import numbered

from speccc.autotune.cache import TuneCache

RIG = Path(__file__).with_name("cache_rig.py")
RECORDS = 12


def start(folder: Path, writer: int, records: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(RIG), str(folder), str(writer), str(records)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_eight_writers_two_killed_mid_write(tmp_path: Path) -> None:
    writers = [start(tmp_path, i, RECORDS) for i in range(6)]
    endless = start(tmp_path, 6, 100_000)
    hanging = start(tmp_path, 7, 0)
    promised: set[str] = set()

    # Killed inside its transaction, holding the write lock all the others wait for.
    promised.add(line(hanging))
    assert line(hanging) == "inside"
    kill(hanging)
    # Killed wherever it is; what it said before is promised.
    promised |= {line(endless) for _ in range(4)}
    kill(endless)
    rest = (endless.stdout.read() if endless.stdout else "").split()
    promised |= {text for text in rest if len(text) == 64}
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert (writer.returncode, err) == (0, "")
        promised |= set(out.split())

    said: list[str] = []
    with TuneCache(tmp_path, notice=said.append) as cache:
        kept = {entry.identity for entry in cache.entries()}
        assert cache.check() == []
        assert cache.add([numbered(9, 0)]) == 1
    assert said == []
    assert promised - kept == set()
    assert len(promised) >= 6 * RECORDS + 5
    # Of the transaction cut off, nothing; of the endless writer, at most the one not yet said.
    assert kept.isdisjoint(numbered(7, i).identity() for i in range(1, 200))
    assert len(kept - promised) <= 1


def test_eight_find_one_damaged_file(tmp_path: Path) -> None:
    """One sets it aside, no one sets aside the new one, and all their records are kept."""
    (tmp_path / "tune.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 9000)
    writers = [start(tmp_path, i, 3) for i in range(8)]
    promised: set[str] = set()
    noticed = 0
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert writer.returncode == 0, err
        promised |= set(out.split())
        noticed += err.count("notice:")
    assert noticed == 1
    with TuneCache(tmp_path) as cache:
        assert {entry.identity for entry in cache.entries()} == promised
        assert len(promised) == 24
        assert len(cache.stats().aside) == 1
