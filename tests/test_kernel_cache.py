"""The kernel cache: what was kept comes back whole or not at all, whoever writes beside us."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from speccc import kernel_cache, scratch
from speccc.kernel_cache import DiskObjects, open_kernel_cache
from speccc.knobs import CACHE_DIR
from speccc.targets.cpu.object_store import MemoryObjects

KEYS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(8)]
WRITER = """
import sys
from pathlib import Path
from speccc.kernel_cache import DiskObjects

store = DiskObjects(Path(sys.argv[1]), most_bytes=int(sys.argv[3]))
print("ready", flush=True)
turn = 0
while turn != int(sys.argv[2]):
    for key in sys.argv[4:]:
        store.put(key, key.encode() * 5000)
        found = store.get(key)
        assert found in (None, key.encode() * 5000)
    turn += 1
"""


class Told(list[str]):
    """Notices as they come."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path, told: Told) -> DiskObjects:
    return DiskObjects(tmp_path, notice=told)


def test_what_is_kept_comes_back(store: DiskObjects, tmp_path: Path, told: Told) -> None:
    assert store.get(KEYS[0]) is None
    store.put(KEYS[0], b"code")
    store.put(KEYS[1], b"")
    assert DiskObjects(tmp_path).get(KEYS[0]) == b"code"
    assert store.get(KEYS[1]) == b""
    assert not told


@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_changed_byte_is_a_miss(store: DiskObjects, tmp_path: Path, told: Told, at: int) -> None:
    store.put(KEYS[0], b"code")
    raw = bytearray((tmp_path / KEYS[0]).read_bytes())
    raw[at] ^= 1
    (tmp_path / KEYS[0]).write_bytes(raw)
    assert store.get(KEYS[0]) is None
    assert told == [f"{tmp_path / KEYS[0]}: is damaged; built anew"]
    assert not (tmp_path / KEYS[0]).exists()
    store.put(KEYS[0], b"code")
    assert store.get(KEYS[0]) == b"code"


@pytest.mark.parametrize("size", [0, 5, 32, 35])
def test_a_torn_file_is_a_miss(store: DiskObjects, tmp_path: Path, told: Told, size: int) -> None:
    store.put(KEYS[0], b"code")
    os.truncate(tmp_path / KEYS[0], size)
    assert store.get(KEYS[0]) is None
    assert len(told) == 1


def test_a_file_under_a_name_of_another_is_a_miss(store: DiskObjects, tmp_path: Path) -> None:
    store.put(KEYS[0], b"code")
    (tmp_path / KEYS[0]).rename(tmp_path / KEYS[1])
    assert store.get(KEYS[1]) is None


def test_a_folder_in_the_place_of_a_file(store: DiskObjects, tmp_path: Path, told: Told) -> None:
    (tmp_path / KEYS[0]).mkdir()
    assert store.get(KEYS[0]) is None
    store.put(KEYS[0], b"code")
    assert len(told) == 2


def test_the_oldest_go_when_it_is_full(tmp_path: Path) -> None:
    store = DiskObjects(tmp_path, most_bytes=3 * (32 + 100))
    for n, key in enumerate(KEYS[:3]):
        store.put(key, bytes(100))
        os.utime(tmp_path / key, (n, n))
    assert store.get(KEYS[0]) is not None  # and so it is the one used last
    store.put(KEYS[3], bytes(100))
    kept = [store.get(key) is not None for key in KEYS[:4]]
    assert kept == [True, False, True, True]


def test_what_killed_writers_left_goes_too(tmp_path: Path) -> None:
    """But not what another one is writing now."""
    for name, age in ((".old", 4000), (".new", 10)):
        (tmp_path / name).write_bytes(bytes(500))
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    DiskObjects(tmp_path, most_bytes=200).put(KEYS[0], b"code")
    assert sorted(os.listdir(tmp_path)) == [".new", KEYS[0]]


def test_a_folder_that_takes_no_files(store: DiskObjects, tmp_path: Path, told: Told) -> None:
    """One notice, not one a kernel; what was there is still used."""
    store.put(KEYS[0], b"code")
    full = OSError(errno.EROFS, os.strerror(errno.EROFS))

    def refuse(**_: object) -> None:
        raise full

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(scratch.tempfile, "mkstemp", refuse)
        store.put(KEYS[1], b"more")
        store.put(KEYS[2], b"more")
    assert len(told) == 1
    assert told[0].endswith("kernels are not kept (Read-only file system)")
    assert store.get(KEYS[0]) == b"code"
    assert sorted(os.listdir(tmp_path)) == [KEYS[0]]


def test_a_cache_that_is_not_ours_alone(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is never taken from where others can put it."""
    open_to_all = tmp_path / "cache"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv(CACHE_DIR.name, str(open_to_all))
    store = open_kernel_cache(told)
    assert isinstance(store, MemoryObjects)
    assert len(told) == 1
    assert "can be written by others" in told[0]
    store.put(KEYS[0], b"code")
    assert store.get(KEYS[0]) == b"code"
    assert not list(open_to_all.iterdir())


def test_it_lies_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR.name, str(tmp_path / "cache"))
    open_kernel_cache().put(KEYS[0], b"code")
    file = tmp_path / "cache" / "kernels" / KEYS[0]
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_it_goes_to_other_processes(tmp_path: Path) -> None:
    store = pickle.loads(pickle.dumps(DiskObjects(tmp_path)))
    store.put(KEYS[0], b"code")
    assert DiskObjects(tmp_path).get(KEYS[0]) == b"code"


def writer(folder: Path, turns: int, most_bytes: int) -> subprocess.Popen[str]:
    """A process that puts and gets the same keys as the others; -1 turns: without end."""
    command = [sys.executable, "-c", WRITER, str(folder), str(turns), str(most_bytes), *KEYS]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


@pytest.mark.parametrize("most_bytes", [kernel_cache.MOST_BYTES, 700_000])
def test_many_write_at_once_and_some_are_killed(
    tmp_path: Path, told: Told, most_bytes: int
) -> None:
    """No reader ever sees half a file, not even while others make room."""
    doomed = [writer(tmp_path, -1, most_bytes) for _ in range(2)]
    steady = [writer(tmp_path, 12, most_bytes) for _ in range(4)]
    for process in doomed:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    for process in steady:
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")
    store = DiskObjects(tmp_path, notice=told)
    found = [store.get(key) for key in KEYS]
    assert all(data in (None, key.encode() * 5000) for key, data in zip(KEYS, found, strict=True))
    assert sum(data is not None for data in found) >= (8 if most_bytes > 1 << 20 else 1)
    assert not told
