"""A folder of `speccc emit` run on a device, up to the vendor's call; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpu_rig import Spec, compiled, model_file, same_bits, unmeasured
from gpu_fakes import Host
from hip_fake import FakeHip
from models import Tiny
from test_drivers import SPECS, installed
from test_emit import TextTarget
from test_numerics import tokens_of

from speccc import emitted
from speccc.emit import KERNELS, LAUNCH_PLAN, REPORT, EmitOptions, emit_to, read_model
from speccc.emitted import open_emitted
from speccc.errors import InputError, UnsupportedError
from speccc.ir.plan import phases
from speccc.targets.devices import profile

SPEC = SPECS["q4_1, kv f16"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_file(SPEC, tmp_path_factory.mktemp("model"))


def emitted_to(
    folder: Path, model: Path, options: EmitOptions, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Emitted for ROCm, where the fake runs the kernels of the same names."""
    steps = {"hsaco": lambda s: s.name.encode(), "json": lambda s: b'{"shared_bytes": 60000}'}
    emit_to(model, TextTarget(profile("rocm:gfx1100"), steps), folder, options)
    kernels = phases(read_model(model, options, lambda *at: None, "rocm").plan.body)
    host = Host({k.name: k for k in kernels})
    installed("rocm", FakeHip(host), monkeypatch)
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return emitted_to(tmp_path / "out", model, EmitOptions(), monkeypatch)


def test_weights_stored_anew(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder says which format it was made for, and the model's weights become that again."""
    out = emitted_to(tmp_path / "out", model, EmitOptions(weights="q8_0"), monkeypatch)
    ours = open_emitted(model, out, context=48)
    theirs = unmeasured(model, weights="q8_0").session(context=48)
    tokens = tokens_of(SPEC.tiny, 5)
    logits = ours.forward(tokens)
    assert same_bits(logits, theirs.forward(tokens))
    assert not same_bits(logits, compiled(SPEC).session(context=48).forward(tokens))
    ours.close()


def test_an_emitted_folder_runs_as_the_compiled_model(model: Path, folder: Path) -> None:
    ours, theirs = open_emitted(model, folder, context=48), compiled(SPEC).session(context=48)
    tokens = tokens_of(SPEC.tiny, 8)
    assert same_bits(ours.forward(tokens[:5]), theirs.forward(tokens[:5]))
    assert same_bits(ours.pick(tokens[5:]), theirs.pick(tokens[5:]))
    ours.close()


def test_text_from_the_command_line(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(model), str(folder), "-p", "he", "-n", "6", "-c", "48"]
    assert emitted.main(words) == 0
    expected = compiled(SPEC).generate("he", max_tokens=6, drafter="none", context=48)
    assert capsys.readouterr().out == expected.text + "\n"
    assert emitted.main([str(model), str(folder.parent), "-p", "he"]) == 2
    captured = capsys.readouterr()
    assert "no such file; is this a folder of `speccc emit`?" in captured.err
    assert captured.err.count("\n") == 1


def rewrite(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda f: (f / KERNELS / "pick.hsaco").unlink(), UnsupportedError, "pick has no hsaco"),
        (
            lambda f: (f / KERNELS / "pick.hsaco").write_bytes(b"pic"),
            InputError,
            r"kernels/pick\.hsaco \(kernel pick\): is damaged or changed: emit it again",
        ),
        (
            lambda f: rewrite(f / REPORT, lambda d: d["kernels"][0].pop("sha256")),
            InputError,
            r"/report\.json: knows no hashes of the kernels",
        ),
        (lambda f: (f / LAUNCH_PLAN).unlink(), InputError, "launch-plan.json is missing"),
        (lambda f: (f / REPORT).write_text("{"), InputError, "is not JSON"),
        (lambda f: (f / REPORT).write_text("[]"), InputError, "holds no object"),
        (
            lambda f: rewrite(f / REPORT, lambda d: d.update(target="vulkan:lavapipe")),
            UnsupportedError,
            "no spv file",
        ),
        (
            lambda f: rewrite(f / REPORT, lambda d: d.update(target="abacus:x")),
            UnsupportedError,
            "no driver for abacus",
        ),
        (
            lambda f: (f / KERNELS / "pick.json").write_text('{"shared_bytes": -1}'),
            InputError,
            r"kernels/pick\.json \(kernel pick\): is damaged or changed: emit it again",
        ),
        (
            lambda f: rewrite(f / REPORT, lambda d: d["model"].update(fingerprint="0")),
            InputError,
            "was emitted for another model",
        ),
        (
            lambda f: rewrite(f / LAUNCH_PLAN, lambda d: d["kernels"][0].update(name="../../x")),
            InputError,
            "the launch plan is damaged",
        ),
        (
            lambda f: rewrite(f / LAUNCH_PLAN, rename_picks),
            InputError,
            "launch-plan.json knows no buffer picks",
        ),
    ],
)
def test_what_is_refused(
    change: Callable[[Path], object],
    error: type[Exception],
    says: str,
    model: Path,
    folder: Path,
) -> None:
    change(folder)
    with pytest.raises(error, match=says):
        open_emitted(model, folder)


def rename_picks(document: Any) -> None:
    text = json.dumps(document).replace('"picks"', '"chosen"')
    document.clear()
    document.update(json.loads(text))


def test_no_kernel_is_read_outside_the_folder(model: Path, folder: Path) -> None:
    (folder.parent / "secret.hsaco").write_bytes(b"x")
    text = (folder / LAUNCH_PLAN).read_text().replace('"pick"', '"../../secret"')
    (folder / LAUNCH_PLAN).write_text(text)
    with pytest.raises(UnsupportedError, match="has no hsaco file"):
        open_emitted(model, folder)


def test_another_models_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    other = model_file(Spec(Tiny(seed=9), "q4_1"), tmp_path)
    with pytest.raises(InputError, match="was emitted for another model"):
        open_emitted(other, folder)
