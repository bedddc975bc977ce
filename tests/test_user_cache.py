"""The user's cache: ours alone, files whole or absent. And the variables that say where it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from speccc import knobs, user_cache
from speccc.errors import InputError
from speccc.knobs import KNOBS


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in KNOBS:
        monkeypatch.delenv(knob.name, raising=False)


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache.folder() == tmp_path / ".cache" / "speccc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache.folder() == tmp_path / ".cache" / "speccc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache.folder() == tmp_path / "xdg" / "speccc"
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "own"))
    assert user_cache.folder("a", "b") == tmp_path / "own" / "a" / "b"


def test_it_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    old = os.umask(0)
    try:
        path = user_cache.folder("models")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o777)
    with pytest.raises(InputError, match="can be written by others"):
        user_cache.folder("models")


def test_the_key_has_the_model_the_options_and_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path))
    paths = {
        user_cache.artifact_path(model, {"isa": isa, "kv": kv})
        for model in "ab"
        for isa in ("avx2", "portable")
        for kv in ("f16", "i8")
    }
    assert len(paths) == 8
    same = user_cache.artifact_path("a", {"kv": "f16", "isa": "avx2"})
    assert same in paths
    monkeypatch.setattr(user_cache, "compiler_fingerprint", lambda: "another")
    assert user_cache.artifact_path("a", {"kv": "f16", "isa": "avx2"}) not in paths


@pytest.mark.parametrize(
    ("knob", "text", "value"),
    [(knobs.DEBUG, "1", True), (knobs.DEBUG, "no", False), (knobs.THREADS, "3", 3)],
)
def test_knobs(knob: knobs.Knob[int], text: str, value: int) -> None:
    assert knob.get({}) is None
    assert knob.get({knob.name: ""}) is None
    assert knob.get({knob.name: text}) == value


@pytest.mark.parametrize(
    ("knob", "text"), [(knobs.DEBUG, "maybe"), (knobs.THREADS, "0"), (knobs.THREADS, "-2")]
)
def test_bad_knobs_are_named(knob: knobs.Knob[int], text: str) -> None:
    with pytest.raises(InputError, match=f"^{knob.name}: "):
        knob.get({knob.name: text})


def test_every_knob_is_documented_once() -> None:
    names = [knob.name for knob in KNOBS]
    assert len(set(names)) == len(names)
    assert all(knob.doc for knob in KNOBS)
