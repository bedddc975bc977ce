"""Weights stored anew when a model is compiled: which, how, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cpu_rig import unmeasured
from models import tiny_llama, tiny_llama_hf

from speccc.cli import compile as cli
from speccc.cli import run
from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import FORMATS
from speccc.ir.frontends import EMBEDDING, HEAD, open_model
from speccc.requantize import WEIGHTS, requantized


def test_the_command_offers_every_format() -> None:
    assert set(cli.WEIGHTS) == set(WEIGHTS)


@pytest.mark.parametrize("name", WEIGHTS)
def test_matrices_of_layers_are_the_format_s_own_rounding(name: str, tmp_path: Path) -> None:
    """Vectors stay; so do the embedding and the head, which 4-bit formats have at 8 bits."""
    source = open_model(tiny_llama_hf(tmp_path, tied=False))
    again = requantized(source, name)
    fmt = WEIGHTS[name]
    assert list(again.weights) == list(source.weights)
    for key, w in again.weights.items():
        old = source.weights[key]
        top = FORMATS["q8_0"] if fmt.code_bits == 4 else FORMATS["f32"]
        want = old.format if len(w.shape) == 1 else top if key in (EMBEDDING, HEAD) else fmt
        assert w.format is want
        rounded = want.decode(want.encode(old.decode()).reshape(-1), w.shape)
        np.testing.assert_array_equal(w.decode(), rounded)


def test_quantised_weights_change_too_and_heads_of_8_bits_stay(tmp_path: Path) -> None:
    source = open_model(tiny_llama(tmp_path, fmt="q4_1"))
    again = requantized(source, "nvfp4")
    assert again.weights[EMBEDDING] is source.weights[EMBEDDING]
    assert again.weights["blk.0.attn_q.weight"].format.name == "nvfp4_rows"
    same = requantized(source, "q4_1")
    assert all(same.weights[n] is w for n, w in source.weights.items())


def test_refuses_what_it_cannot_store(tmp_path: Path) -> None:
    odd = open_model(tiny_llama(tmp_path, fmt="q8_0", hidden=96, heads=6, kv_heads=3, ffn=160))
    with pytest.raises(InputError, match=r"rows of 96, not a multiple of 64: .* than nvfp4"):
        requantized(odd, "nvfp4")
    with pytest.raises(UnsupportedError, match="--weights q3: choose one of q4_0, "):
        requantized(odd, "q3")
    huge = {"blk.0.ffn_up.weight": np.full((128, 64), 1e30, np.float32)}
    large = open_model(tiny_llama(tmp_path, fmt="f32", tensors=huge))
    with pytest.raises(InputError, match=r"blk.0.ffn_up.weight cannot be stored as q4_0: a block"):
        requantized(large, "q4_0")
    with pytest.raises(InputError, match=r"stored as f16: a value is beyond its range; choose"):
        requantized(large, "f16")
    assert requantized(large, "bf16")
    assert requantized(large, "nvfp4")  # a row's factor reaches that far


@pytest.mark.parametrize("name", [n for n in WEIGHTS if n not in ("mxfp4", "f16", "bf16")])
def test_refuses_what_no_run_could_compute_with(name: str, tmp_path: Path) -> None:
    """One line with the tensor, the format as it was asked for, and what to do."""
    weights = np.zeros((128, 64), np.float32)
    weights[3, 5] = 3e38
    path = tiny_llama(tmp_path, fmt="f32", tensors={"blk.0.ffn_up.weight": weights})
    says = rf"blk.0.ffn_up.weight cannot be stored as {name}: a block .*; choose other --weights$"
    with pytest.raises(InputError, match=says):
        requantized(open_model(path), name)


@pytest.mark.parametrize("name", ["nvfp4", "fp8"])
def test_compiled_it_runs_as_if_the_file_had_it(name: str, tmp_path: Path) -> None:
    """The same logits as of a file whose matrices are stored so, and other than the file's own."""
    tokens = [7, 70, 12, 200, 31]
    folder = tiny_llama_hf(tmp_path, seed=3)
    plain = unmeasured(folder).session().forward(tokens)
    model = unmeasured(folder, weights=name)
    assert model.manifest["weights"] == name
    logits = model.session().forward(tokens)
    assert np.abs(logits - plain).max() > 1e-3 * np.abs(plain).max()
    if name == "fp8":
        stored = tiny_llama_hf(tmp_path, seed=3, dtype="fp8", name="stored")
        np.testing.assert_array_equal(logits, unmeasured(stored).session().forward(tokens))


@pytest.mark.usefixtures("shared_kernels")
def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` keeps a model of each format apart; an artifact has its own."""
    monkeypatch.setenv("SPECCC_CACHE_DIR", str(tmp_path / "cache"))
    path = str(tiny_llama(tmp_path, fmt="q4_1"))
    words = ["run", "-m", path, "--raw", "-p", "the re", "-n", "12", "--temp", "0"]
    texts = []
    for flags in ([], ["--weights", "mxfp4"]):
        assert run([*words, *flags]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]
    kept = next((tmp_path / "cache").rglob("*.speccc"))
    assert run(["run", "-m", str(kept), "-p", "x", "--weights", "q8_0"]) == 2
    assert "is compiled already; --weights goes to `speccc compile`" in capsys.readouterr().err
