"""`compile`, `run` and `inspect` on a tiny model: files, text, statistics, the kept artifact."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import tiny_llama

import speccc.api
from speccc import compiled
from speccc.cli import run

pytestmark = pytest.mark.usefixtures("shared_kernels")
Capture = pytest.CaptureFixture[str]
Json = Callable[..., dict[str, Any]]
PROMPT = "the the the in the the re"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return tiny_llama(folder, fmt="q4_1", name="tiny.gguf")


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(folder / "cache"))
    return folder / "cache"


@pytest.fixture
def document(capsys: Capture) -> Json:
    """Runs a command with --json: its one document."""

    def call(*args: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run([*args, "--json"]) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        assert captured.err == ""  # no bars without a terminal
        found: dict[str, Any] = json.loads(captured.out)
        return found

    return call


@dataclass(frozen=True)
class Compiled:
    """What `speccc compile -v --dump` leaves and prints."""

    path: Path
    printed: str
    stages: list[str]


@pytest.fixture(scope="module")
def compilation(folder: Path, model: Path) -> Compiled:
    path, dump, printed = folder / "tiny.speccc", folder / "stages", io.StringIO()
    with redirect_stdout(printed):
        flags = ["-o", str(path), "-c", "256", "-v", "--dump", str(dump), "--tune", "2"]
        assert run(["compile", str(model), *flags]) == 0
    return Compiled(path, printed.getvalue(), [p.name for p in dump.iterdir()])


@pytest.fixture
def artifact(compilation: Compiled) -> Path:
    return compilation.path


def test_compile_tells_what_is_odd_about_a_model(tmp_path: Path, capsys: Capture) -> None:
    huge = {"blk.0.ffn_up.weight": np.full((128, 64), 3e38, np.float32)}
    path = tiny_llama(tmp_path, fmt="f32", tensors=huge)
    assert run(["compile", str(path), "-o", str(tmp_path / "m.speccc"), "--tune", "0"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: tensor blk.0.ffn_up.weight holds values up to 3e+38: beyond ")


def test_run_tells_it_once(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the model is compiled: the artifact that is kept has been told of."""
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    huge = {"blk.0.ffn_up.weight": np.full((128, 64), 3e38, np.float32)}
    path = tiny_llama(tmp_path, fmt="f32", tensors=huge)
    said = []
    for _ in range(2):
        run(["run", "-m", str(path), "--raw", "-p", "a", "-n", "1"])
        said.append("blk.0.ffn_up.weight holds values up to" in capsys.readouterr().err)
    assert said == [True, False]


def test_compile_prints_its_passes_and_dumps_its_stages(compilation: Compiled) -> None:
    assert "canonicalize" in compilation.printed
    assert "tiny.speccc: " in compilation.printed
    assert len(compilation.stages) > 3


def test_the_artifact_is_one_file(folder: Path, artifact: Path, document: Json) -> None:
    assert artifact.read_bytes()[:4] == compiled.ZIP_MAGIC
    assert {p.name for p in folder.iterdir() if p.is_file()} == {"tiny.gguf", "tiny.speccc"}
    facts = document("inspect", str(artifact))
    assert (facts["kind"], facts["target"], facts["context"]) == ("artifact", "cpu", 256)
    assert all(seconds >= 0 for seconds in facts["pass_times"].values())


def test_a_model_file_gives_the_artifacts_text_and_is_compiled_once(
    model: Path, artifact: Path, cache: Path, document: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("-p", PROMPT, "-n", "24", "-c", "256")
    expected = document("run", "-m", str(artifact), *flags)
    assert document("run", "-m", str(model), *flags)["tokens"] == expected["tokens"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    kept = list((cache / "artifacts").iterdir())
    assert len(kept) == 1

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("compiled again")

    with monkeypatch.context() as patch:
        patch.setattr(speccc.api, "compile", fail)
        assert document("run", "-m", str(model), *flags)["tokens"] == expected["tokens"]


def test_a_damaged_artifact_is_made_anew(
    model: Path, artifact: Path, cache: Path, document: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def copy(path: Path, *, output: Path, **options: object) -> speccc.api.Model:
        made.append(output)
        output.write_bytes(artifact.read_bytes())
        return speccc.api.load(output)

    monkeypatch.setattr(speccc.api, "compile", copy)
    flags = ("-m", str(model), "-p", PROMPT, "-n", "5", "-c", "128")
    expected = document("run", *flags)
    assert len(made) == 1
    made[0].write_bytes(b"PK\x03\x04 damaged")
    assert document("run", *flags)["tokens"] == expected["tokens"]
    assert made == [made[0]] * 2


def test_the_key_of_a_kept_artifact(model: Path, tmp_path: Path) -> None:
    same = tmp_path / "tiny.gguf"
    same.write_bytes(model.read_bytes())
    assert compiled.content_fingerprint(same) == compiled.content_fingerprint(model)
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    same.write_bytes(data)
    assert compiled.content_fingerprint(same) != compiled.content_fingerprint(model)


def test_speculation_does_not_change_the_text(artifact: Path, document: Json) -> None:
    for sampling in ((), ("--temp", "0.9", "--seed", "5", "--top-k", "40")):
        flags = ("-m", str(artifact), "-p", PROMPT, "--raw", "-n", "60", *sampling)
        plain = document("run", *flags, "--spec-type", "none")
        drafted = document("run", *flags, "--spec-type", "ngram")
        short = document("run", *flags, "--spec-draft-n-max", "2")
        assert plain["tokens"] == drafted["tokens"] == short["tokens"]
        assert plain["text"] == drafted["text"]
        assert plain["timings"]["draft_n"] == 0
    zero = document("run", *flags, "--spec-draft-n-max", "0")
    assert zero["timings"]["draft_n"] == 0


def test_counts_and_text(artifact: Path, document: Json, capsys: Capture) -> None:
    flags = ("-m", str(artifact), "-p", PROMPT, "--raw", "-n", "7")
    result = document("run", *flags)
    assert len(result["tokens"]) == result["usage"]["completion_tokens"] == 7
    assert result["finish_reason"] == "length"
    assert result["usage"]["prompt_tokens"] == result["timings"]["prompt_n"]
    assert run(["run", *flags]) == 0
    captured = capsys.readouterr()
    assert captured.out.removesuffix("\n") == result["text"].removesuffix("\n")
    assert "generated 7 tokens" in captured.err


def test_stop_strings_cut_the_text(artifact: Path, document: Json) -> None:
    flags = ("-m", str(artifact), "-p", PROMPT, "--raw", "-n", "40")
    text = document("run", *flags)["text"]
    stop = next(c for c in text[5:] if c.isascii() and c.isprintable())
    cut = document("run", *flags, "--stop", stop)
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"


def test_the_template_is_used_unless_raw(artifact: Path, document: Json) -> None:
    flags = ("-m", str(artifact), "-p", "hi", "-n", "1")
    raw = document("run", *flags, "--raw")["usage"]["prompt_tokens"]
    chat = document("run", *flags)["usage"]["prompt_tokens"]
    assert chat == document("run", *flags, "-cnv")["usage"]["prompt_tokens"] > raw
    assert document("run", *flags, "-sys", "be brief")["usage"]["prompt_tokens"] > chat


def test_a_prompt_from_a_file(artifact: Path, document: Json, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    flags = ("-m", str(artifact), "--raw", "-n", "9")
    given = document("run", *flags, "-p", PROMPT)["tokens"]
    assert document("run", *flags, "-f", str(file))["tokens"] == given


def test_an_artifact_has_its_options_already(artifact: Path, capsys: Capture) -> None:
    assert run(["run", "-m", str(artifact), "-p", "x", "--kv", "i8"]) == 2
    assert "--kv goes to `speccc compile`" in capsys.readouterr().err


def test_inspect_a_model(model: Path, document: Json, capsys: Capture) -> None:
    facts = document("inspect", str(model), "--tensors")
    assert facts["kind"] == "model"
    assert facts["formats"]["q4_1"] == 14
    assert facts["tensors"]["output_norm.weight"] == "64 f32"
    assert run(["inspect", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "config.n_layers" in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())


ALONE = """
import sys
from speccc.cli import run
assert run(sys.argv[1:]) == 0
print(*sys.modules)
"""


def test_an_artifact_is_run_without_what_reads_and_compiles_models(compilation: Compiled) -> None:
    command = [
        sys.executable,
        "-c",
        ALONE,
        "run",
        "-m",
        str(compilation.path),
        "-n",
        "2",
        "-p",
        "a",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    loaded = done.stdout.splitlines()[-1].split()
    assert "speccc.runtime.session" in loaded
    slow = ("tvm", "torch", "gguf", "networkx", "rich", "speccc.ir.frontends", "speccc.ir.formats",
            "speccc.passes", "speccc.targets.base", "speccc.autotune", "speccc.driver")  # fmt: skip
    assert [name for name in slow if name in loaded] == []
