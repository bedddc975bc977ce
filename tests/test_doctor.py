"""What the doctor looks for: every target's toolchain, with what to do when it is not there."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from speccc.cli import run
from speccc.doctor import Check, examine
from speccc.errors import SpecccError
from speccc.scratch import LEAST_FREE
from speccc.targets import registry
from speccc.toolchains import TOOLCHAINS, Toolchain, package, package_and_library, program


def test_every_backend_builds_and_runs_with_something() -> None:
    for backend in registry.MODULES:
        mine = [c for c in TOOLCHAINS if c.target == backend]
        assert any(c.gives.startswith("builds") for c in mine), backend
        assert any(c.gives == "runs" for c in mine), backend
    assert all(c.mend for c in TOOLCHAINS)
    assert len({(c.target, c.gives) for c in TOOLCHAINS}) == len(TOOLCHAINS)


def test_finders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = package("numpy")()
    assert numpy is not None
    assert numpy.startswith("numpy ")
    assert package("no-such-package")() is None
    assert package_and_library("numpy", "no_such_library")() is None
    assert package_and_library("no-such-package", "c")() is None
    both = package_and_library("numpy", "c")()
    assert both is None or both.startswith(numpy), "where the C library can be looked up"
    tool = tmp_path / "xtool"
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("xtool")() == str(tool)
    assert program("ytool")() is None


def broken() -> str | None:
    raise SpecccError("does not print its version", where="xtool")


def found_by(chain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setattr("speccc.doctor.TOOLCHAINS", (chain,))
    return next(c for c in examine() if c.name == f"{chain.target} {chain.gives}")


def test_a_check_says_what_was_found_or_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    there = found_by(Toolchain("x", "runs", lambda: "xtool 3", "apt install xtool"), monkeypatch)
    assert (there.ok, there.detail, there.mend) == (True, "xtool 3", "")
    gone = found_by(Toolchain("x", "runs", lambda: None, "apt install xtool"), monkeypatch)
    assert (gone.ok, gone.mend, gone.needed) == (False, "apt install xtool", False)
    bad = found_by(Toolchain("x", "runs", broken, "apt install xtool"), monkeypatch)
    assert (bad.ok, bad.detail) == (False, "xtool: does not print its version")


@pytest.mark.parametrize("free", [LEAST_FREE - 1, LEAST_FREE])
def test_a_full_disk_of_temporary_files_is_no_health(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tempfile.gettempdir())
    monkeypatch.setattr("speccc.doctor.shutil.disk_usage", lambda _: usage._replace(free=free))
    (found,) = (c for c in examine() if c.name == "temporary files")
    assert found.ok == (free >= LEAST_FREE)
    assert found.ok or found.mend == "set TMPDIR to another folder"
    assert found.needed


def test_the_doctor_shows_all_of_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    lost = Toolchain("metal", "runs", lambda: None, "buy a Mac")
    monkeypatch.setattr("speccc.doctor.TOOLCHAINS", (*TOOLCHAINS[:4], lost))
    assert run(["doctor", "--json"]) == 0
    names = {c["name"] for c in json.loads(capsys.readouterr().out)["checks"]}
    assert {"cuda builds PTX, cubin", "rocm builds hsaco", "metal runs"} <= names
    assert run(["doctor"]) == 0
    captured = capsys.readouterr()
    assert "buy a Mac" not in captured.out
    assert "more can be installed: speccc doctor -v" in captured.err
    assert run(["doctor", "-v"]) == 0
    captured = capsys.readouterr()
    assert "buy a Mac" in captured.out
    assert captured.err == ""
