"""Options that several commands share: each command takes them and hands them to the compiler."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import pytest
from models import tiny_llama

from speccc.cli import compile as offered
from speccc.cli import run
from speccc.errors import InputError
from speccc.passes.attention_node import ATTENTION
from speccc.passes.tile_matmul import ACTIVATIONS

CHOSEN = {"kv": "i8", "weights": "nvfp4", "activations": "nvfp4", "attention": "f16"}
FLAGS = [word for name, value in CHOSEN.items() for word in (f"--{name}", value)]
COMPILERS = {
    "compile": "speccc.driver.compile_to",
    "run": "speccc.compiled.open_any",
    "bench": "speccc.compiled.cached_model",
    "tune": "speccc.driver.tunable",
    "emit": "speccc.emit.emit_to",
}
"""Command -> what it gives its options to."""
ALSO = {"run": ["-p", "a"], "emit": ["--target", "vulkan:lavapipe"]}


def test_the_choices_are_those_of_the_compiler() -> None:
    assert set(offered.ACTIVATIONS) == set(ACTIVATIONS)
    assert set(offered.ATTENTION) == set(ATTENTION)


@pytest.mark.parametrize("command", COMPILERS)
def test_a_command_hands_its_options_on(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_llama(tmp_path, fmt="f32")
    seen: list[Any] = []

    def compiler(*given: object, **_: object) -> NoReturn:
        seen.extend(given)
        raise InputError("seen")

    monkeypatch.setattr(COMPILERS[command], compiler)
    monkeypatch.chdir(tmp_path)
    assert run([command, "-m", str(model), *FLAGS, *ALSO.get(command, [])]) == 2
    assert capsys.readouterr().err == "error: seen\n"
    (options,) = (asdict(v) for v in seen if hasattr(v, "activations"))
    assert {name: options[name] for name in CHOSEN} == CHOSEN


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize(
    "flag", ["--activations int8", "--attention f32", "--kv f16", "--isa auto"]
)
def test_an_artifact_refuses_even_a_default_that_is_typed(
    command: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have been compiled with another one."""
    path = tmp_path / "m.speccc"
    path.write_bytes(b"PK\x03\x04")
    assert run([command, "-m", str(path), *flag.split(), *ALSO.get(command, [])]) == 2
    says = f"error: {path}: is compiled already; {flag.split()[0]} goes to `speccc compile`\n"
    assert capsys.readouterr().err == says


@pytest.mark.parametrize("command", COMPILERS)
def test_another_choice_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "model.gguf", "--activations", "int5"]) == 2
    assert "'int5' is not one of" in capsys.readouterr().err
