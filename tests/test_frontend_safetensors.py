"""The safetensors frontend: equal to the GGUF of the same weights, and what it refuses."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import (
    LINEAR_SCALING,
    LLAMA3_SCALING,
    RopeScaling,
    Tiny,
    fp8_tensors,
    hf_config,
    save_raw,
    tiny_llama,
    tiny_llama_hf,
    weights,
)
from safetensors.numpy import load_file, save_file

from speccc.errors import InputError
from speccc.ir.frontends import ROPE_FREQS, open_model
from speccc.ir.frontends.safetensors_header import read_file
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.types import E4M3
from speccc.runtime.devices import launch_plan
from speccc.runtime.tokenizer import Tokenizer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize("scaling", [None, LINEAR_SCALING, LLAMA3_SCALING])
@pytest.mark.parametrize(("tied", "shards"), [(True, 1), (False, 3)])
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_equals_the_gguf(
    scaling: RopeScaling | None, tied: bool, shards: int, model_type: str, tmp_path: Path
) -> None:
    tiny = Tiny(seed=5, heads=8, kv_heads=2, tied=tied, rope_scaling=scaling)
    ours = open_model(tiny_llama_hf(tmp_path, shards=shards, model_type=model_type, tiny=tiny))
    want = open_model(tiny_llama(tmp_path, fmt="f32", tiny=tiny))
    assert set(ours.weights) == set(want.weights)
    for name, weight in want.weights.items():
        np.testing.assert_array_equal(ours.weights[name].decode(), weight.decode())
    assert ours.config.rope == want.config.rope
    for field in ("hidden", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn", "norm_eps"):
        assert getattr(ours.config, field) == pytest.approx(getattr(want.config, field), rel=1e-7)
    assert (ours.config.tied_head, ours.config.vocab_size) == (tied, 260)
    assert (ours.config.bos_id, ours.config.eos_ids) == (257, (258,))
    assert ours.chat_template == want.chat_template
    assert len(ours.files) == 1 + shards


@pytest.mark.parametrize("scaling", [None, LINEAR_SCALING, LLAMA3_SCALING])
def test_rope_equals_transformers(scaling: RopeScaling | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    rotary = pytest.importorskip("transformers.models.llama.modeling_llama").LlamaRotaryEmbedding
    tiny = Tiny(rope_scaling=scaling, head_dim=64, theta=500000.0)
    source = open_model(tiny_llama_hf(tmp_path, tiny=tiny))
    theirs = rotary(transformers.LlamaConfig.from_pretrained(source.path)).inv_freq.numpy()
    divisors = source.weights[ROPE_FREQS].decode() if ROPE_FREQS in source.weights else None
    # Theirs are computed in f32 by a few operations, each off by at most 2^-24 relatively, and a
    # power whose error grows with its exponent of at most 19 bits.
    np.testing.assert_allclose(source.config.rope.frequencies(divisors), theirs, rtol=4e-6)


def test_rope_parameters_of_newer_files(tmp_path: Path) -> None:
    extra = {
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {**LINEAR_SCALING, "rope_theta": 77.0},
    }
    rope = open_model(tiny_llama_hf(tmp_path, extra=extra)).config.rope
    assert (rope.theta, rope.scaling, rope.factor) == (77.0, "linear", 4.0)


def test_half_precision(tmp_path: Path) -> None:
    source = open_model(tiny_llama_hf(tmp_path, dtype="f16"))
    assert {w.format.name for w in source.weights.values()} == {"f16"}
    want = weights(Tiny())["model.norm.weight"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(source.weights["output_norm.weight"].decode(), want)


def test_bfloat16(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    folder = tiny_llama_hf(tmp_path)
    tensors = {k: torch.from_numpy(v).bfloat16() for k, v in weights(Tiny()).items()}
    save(tensors, folder / SINGLE)
    source = open_model(folder)
    for hf, ours in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
    ):
        assert source.weights[ours].format.name == "bf16"
        want = tensors[hf].float().numpy()
        np.testing.assert_array_equal(source.weights[ours].decode(), want)


@pytest.mark.parametrize("method", ["compressed-tensors", "fp8", "modelopt"])
def test_fp8(method: str, tmp_path: Path) -> None:
    """A factor a row, as one tensor beside the codes; rows of q and k move with their factors."""
    extra = {"quantization_config": {"quant_method": method}}
    tiny = Tiny(seed=5, heads=8, kv_heads=2)
    source = open_model(tiny_llama_hf(tmp_path, dtype="fp8", tiny=tiny, extra=extra))
    want = open_model(tiny_llama(tmp_path, fmt="f32", tiny=tiny))
    assert set(source.weights) == set(want.weights)
    kinds = {name: w.format.name for name, w in source.weights.items()}
    assert kinds["blk.0.attn_q.weight"] == "fp8"
    assert kinds["token_embd.weight"] == kinds["output_norm.weight"] == "f32"
    for name, weight in want.weights.items():
        fmt, x = source.weights[name].format, weight.decode()
        again = fmt.decode(fmt.encode(x), x.shape)
        np.testing.assert_array_equal(source.weights[name].decode(), again)


SCALES = {
    "one number": ([], "weight_scale", np.full(1, 2.0)),
    "one element": ([1], "weight_scale_inv", np.full(1, 2.0)),
    "a row": ([64], "weight_scale", np.arange(1, 65)),
}


@pytest.mark.parametrize("which", SCALES)
def test_fp8_scales_of_every_shape(which: str, tmp_path: Path) -> None:
    shape, suffix, values = SCALES[which]
    tensors = fp8_tensors(Tiny())
    name = "model.layers.0.mlp.down_proj"
    base = {k: v for k, v in tensors.items() if k != f"{name}.weight_scale"}
    scale = ("F32", tuple(shape), values.astype(np.float32).tobytes())
    folder = tiny_llama_hf(tmp_path)
    save_raw({**base, f"{name}.{suffix}": scale}, folder / SINGLE)
    weight = open_model(folder).weights["blk.0.ffn_down.weight"]
    codes = np.frombuffer(tensors[f"{name}.weight"][2], np.uint8).reshape(64, 128)
    plain = MINIFLOATS[E4M3].decode(codes)
    rows = np.broadcast_to(values.astype(np.float32).reshape(-1, 1), (64, 1))
    np.testing.assert_array_equal(weight.decode(), plain * rows)
    save_raw(base, folder / SINGLE)
    alone = open_model(folder).weights["blk.0.ffn_down.weight"]
    np.testing.assert_array_equal(alone.decode(), plain)


def test_refuses_fp8_it_cannot_apply(tmp_path: Path) -> None:
    tensors, name = fp8_tensors(Tiny()), "model.layers.0.mlp.down_proj.weight"
    blocks = ("F32", (1, 1, 1), np.ones(1, np.float32).tobytes())
    nan = ("F8_E4M3", (64, 128), b"\x7f" * (64 * 128))
    norm = ("F8_E4M3", (64,), bytes(64))
    powers = ("U8", (64,), bytes([127] * 64))
    cases = [
        ({f"{name}_scale": powers}, r"is u8\[64\]; one factor for the tensor"),
        ({f"{name}_scale": blocks}, "one factor for the tensor or one for each of 64 rows"),
        ({name: nan}, "holds a NaN or infinite value"),
        ({"model.norm.weight": norm}, "vectors must be f32, f16 or bf16"),
        ({"model.layers.0.input_layernorm.weight_scale": blocks}, "scales no weight"),
    ]
    folder = tiny_llama_hf(tmp_path)
    for changed, message in cases:
        save_raw({**tensors, **changed}, folder / SINGLE)
        with pytest.raises(InputError, match=message):
            open_model(folder)


def test_tied_models_may_carry_the_head(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path, tied=False, extra={"tie_word_embeddings": True})
    source = open_model(folder)
    assert source.config.tied_head
    assert "output.weight" not in source.weights
    assert "lm_head.weight is not used" in source.notes[0]


def test_sliding_window_limits_the_context(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path, model_type="mistral", extra={"sliding_window": 100})
    assert open_model(folder).config.context_length == 100


def test_ids_that_end_a_text(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path, extra={"eos_token_id": [258, 256]})
    (folder / "generation_config.json").write_text('{"eos_token_id": 255}')
    assert open_model(folder).config.eos_ids == (258, 256, 255)


def test_chat_template_file(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path)
    named = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_model(folder).chat_template == "d"
    (folder / "chat_template.jinja").write_text("own")
    assert open_model(folder).chat_template == "own"


def refused(folder: Path, message: str) -> None:
    """The folder is refused with one line that starts with its name, and exit code 2."""
    with pytest.raises(InputError, match=message) as caught:
        Tokenizer(open_model(folder).tokenizer, str(folder))
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


BAD_CONFIGS: list[tuple[dict[str, object], str]] = [
    ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; llama and mistral are"),
    ({"model_type": None}, "model_type None"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    (
        {"quantization_config": {"quant_method": "gptq"}},
        "FP8 and NVFP4 weights of compressed-tensors",
    ),
    (
        {"quantization_config": {"quant_method": "fp8", "transform_config": {"a": 1}}},
        "FP8 and NVFP4",
    ),
    ({"num_attention_heads": 0}, "not a multiple of num_attention_heads 0"),
    ({"num_attention_heads": 3, "head_dim": None}, "not a multiple of num_attention_heads 3"),
    ({"num_key_value_heads": 3}, "not a multiple of 3 key/value heads"),
    ({"num_hidden_layers": 2**31}, "n_layers is 2147483648"),
    ({"num_hidden_layers": 3}, "lacks tensors blk.2.attn_norm.weight"),
    ({"num_hidden_layers": 2.0}, "num_hidden_layers is 2.0; it must be an integer"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"hidden_size": -64}, "hidden is -64"),
    ({"hidden_size": 10**400}, "hidden is 1000"),
    ({"vocab_size": 0}, "vocab_size is 0"),
    ({"vocab_size": 300}, r"token_embd.weight is \[260, 64\].*implies \[300, 64\]"),
    ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'; it must be a number"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*; it must be a finite number"),
    ({"rope_theta": 0}, "RoPE base is 0.0"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' is not supported; default"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
    ({"rope_scaling": {"rope_type": ["x"]}}, r"\['x'\] is not supported"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: lacks factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "scaling factor is 0.0"),
    ({"rope_scaling": {**LLAMA3_SCALING, "high_freq_factor": 1.0}}, "makes no sense"),
    ({"rope_scaling": {**LLAMA3_SCALING, "factor": 0.0}}, "makes no sense"),
    ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3'; it must be an object"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"bos_token_id": 260}, "special token id 260 is not below vocab_size 260"),
    ({"eos_token_id": [258, -1]}, "special token id -1"),
    ({"eos_token_id": "x"}, "eos_token_id is 'x'; it must be a token id"),
    ({"tie_word_embeddings": False}, "lacks tensor output.weight"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be a boolean"),
]


@pytest.mark.parametrize(("extra", "message"), BAD_CONFIGS)
def test_refuses_bad_configs(extra: dict[str, object], message: str, tmp_path: Path) -> None:
    refused(tiny_llama_hf(tmp_path, extra=extra), message)


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path, extra={"auto_map": {"AutoModel": "evil.Model"}})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert open_model(folder).config.hidden == 64


def test_refuses_bad_json(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path)
    good = (folder / "config.json").read_text()
    tokenizer = (folder / "tokenizer.json").read_text()
    for text, message in (
        ("", "config.json: is not valid JSON"),
        ("[" * 100_000, "config.json: is not valid JSON"),
        ("[]", "config.json: is not a JSON object"),
    ):
        (folder / "config.json").write_text(text)
        refused(folder, message)
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    refused(folder, "config.json: is not valid JSON")
    (folder / "config.json").unlink()
    refused(folder, "lacks config.json")
    (folder / "config.json").write_text(good)
    surrogate = {**json.loads(tokenizer), "more": "\ud800"}
    (folder / "tokenizer.json").write_text(json.dumps(surrogate))
    refused(folder, "tokenizer cannot be built")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "\ud800"}))
    refused(folder, "chat_template is not valid Unicode")
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, "tokenizer cannot be built")
    (folder / "tokenizer.json").unlink()
    refused(folder, "lacks tokenizer.json")


def test_refuses_pickles(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path)
    (folder / SINGLE).unlink()
    refused(folder, "lacks model.safetensors and model.safetensors.index.json")
    for name in ("pytorch_model.bin", "model.pt", "model.pkl"):
        (folder / name).write_bytes(pickle.dumps({}))
        refused(folder, f"holds {name}, a pickle")
        (folder / name).unlink()


def test_says_what_a_folder_without_weights_may_be(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    refused(tmp_path, r"index.json; name a GGUF file in it, as a\.gguf$")
    (tmp_path / launch_plan.FILE).touch()
    refused(tmp_path, "it is what `speccc emit` wrote: name the model$")


def test_refuses_odd_tensors(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path)
    good = load_file(folder / SINGLE)
    norm = good["model.norm.weight"]
    up = "model.layers.0.mlp.up_proj.weight"
    cases: list[tuple[dict[str, np.ndarray | None], str]] = [
        ({"model.norm.weight": None}, "lacks tensor output_norm.weight"),
        ({"extra.weight": norm}, "holds tensor extra.weight, which a Llama-family"),
        ({"model.layers.0.self_attn.q_proj.bias": norm}, "holds tensor .*q_proj.bias, which"),
        ({"model.layers.9.mlp.up_proj.weight": good[up]}, "holds tensor blk.9.ffn_up.weight"),
        ({"model.layers.00.mlp.up_proj.weight": good[up]}, "holds tensor blk.00.ffn_up"),
        ({up: good[up].T.copy()}, r"blk.0.ffn_up.weight is \[64, 128\]"),
        ({"model.norm.weight": norm.astype(np.float64)}, "is 'F64'; F32, F16, BF16"),
        ({"model.norm.weight": norm * np.nan}, "output_norm.weight holds a NaN or infinite value"),
    ]
    for change, message in cases:
        changed = {k: v for k, v in {**good, **change}.items() if v is not None}
        save_file(changed, folder / SINGLE)
        refused(folder, message)
    derived = {"model.layers.0.self_attn.rotary_emb.inv_freq": norm}
    save_file({**good, **derived}, folder / SINGLE)
    assert len(open_model(folder).weights) == len(good)


def test_refuses_bad_indexes(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path, shards=2)
    path = folder / INDEX
    good = json.loads(path.read_text())["weight_map"]
    first, second = sorted(set(good.values()))
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes((folder / first).read_bytes())
    (folder / "link.safetensors").symlink_to(outside)
    cases: list[tuple[object, str]] = [
        (None, "weight_map is not an object"),
        ({}, "weight_map is not an object"),
        ({**good, "model.norm.weight": "../outside.safetensors"}, "which is not in this folder"),
        ({**good, "model.norm.weight": str(outside)}, "which is not in this folder"),
        ({**good, "model.norm.weight": "link.safetensors"}, "link that leads out of the folder"),
        ({**good, "model.norm.weight": "absent.safetensors"}, "lacks absent.safetensors"),
        ({**good, "model.norm.weight": "config.json"}, "not a .safetensors file"),
        ({**good, "model.norm.weight": 3}, "not a .safetensors file"),
        (dict.fromkeys(good, first), "the file disagree about"),
        ({k: v for k, v in good.items() if v == first}, "lacks tensor"),
    ]
    for value, message in cases:
        path.write_text(json.dumps({"weight_map": value}))
        refused(folder, message)
    path.write_text(json.dumps({"weight_map": good}))
    (folder / second).write_bytes((folder / first).read_bytes())
    refused(folder, "the file disagree about")


def test_hub_caches_may_link_their_blobs(tmp_path: Path) -> None:
    made = tiny_llama_hf(tmp_path)
    folder, blobs = tmp_path / "repo" / "snapshots" / "1", tmp_path / "repo" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for file in made.iterdir():
        file.rename(blobs / file.name)
        os.symlink(blobs / file.name, folder / file.name)
    assert open_model(folder).config.hidden == 64


def packed(header: object, data: bytes = b"", pad: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) + len(pad)) + raw + pad + data


def spec(shape: list[object], begin: object, end: object, dtype: object = "F32") -> object:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ZEROS = bytes(8)
BAD_FILES: list[tuple[bytes, str]] = [
    (b"", "it has 0 bytes"),
    (struct.pack("<Q", 2**62) + b"{}", "header of 4611686018427387904 bytes does not fit"),
    (struct.pack("<Q", 100_000_001) + b"{}", "header of 100000001 bytes does not fit"),
    (packed(b"[]"), "does not start with"),
    (packed(b""), "does not start with"),
    (packed({}, pad=b"\0\0"), "padded with something other than spaces"),
    (packed(b'{"a": \xff}'), "header is not valid JSON"),
    (packed(b'{"a":' * 50_000 + b"}"), "header is not valid JSON"),
    (packed(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    (packed({"": spec([2], 0, 8)}, ZEROS), "tensor name '' is empty"),
    (packed({"a\nb": spec([2], 0, 8)}, ZEROS), "is empty or not printable"),
    (packed(b'{"\\ud800": {}}'), "is empty or not printable"),
    (packed({"a": 1}), "tensor a has other fields"),
    (packed({"a": {**spec([2], 0, 8), "x": 1}}, ZEROS), "tensor a has other fields"),  # type: ignore[dict-item]
    (
        packed({"a": spec([2], 0, 8, "F99")}, ZEROS),
        "tensor a is 'F99'; F32, F16, BF16, F8_E4M3, U8 are",
    ),
    (packed({"a": spec([2], 8, 0)}, ZEROS), "takes 8 bytes, but its offsets cover -8"),
    (packed({"a": spec([-2], 0, 8)}, ZEROS), "malformed shape or offsets"),
    (packed({"a": spec([2], 0, "8")}, ZEROS), "malformed shape or offsets"),
    (packed({"a": spec([3], 0, 8)}, ZEROS), "takes 12 bytes, but its offsets cover 8"),
    (packed({"a": spec([2**40, 2**40], 0, 8)}, ZEROS), "tensor a has shape"),
    (packed({"a": spec([2], 0, 8)}, ZEROS[:7]), "covers bytes 0..8 of 7"),
    (packed({"a": spec([2], 0, 8)}, ZEROS * 2), "8 bytes follow the last tensor"),
    (packed({"a": spec([2], 8, 16)}, ZEROS * 2), "covers bytes 8..16 of 16, not from 0"),
    (packed({"a": spec([2], 0, 8), "b": spec([2], 4, 12)}, ZEROS * 2), "tensor b covers"),
]


@pytest.mark.parametrize(("data", "message"), BAD_FILES)
def test_refuses_bad_files(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_spaces_after_the_header_are_fine(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    path.write_bytes(packed({"a": spec([2], 0, 8)}, ZEROS, b"   "))
    assert read_file(path)["a"].shape == (2,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_hf(tmp_path_factory.mktemp("fuzz"), layers=1)


def refusal(folder: Path) -> str | None:
    """Why it is refused, None when it loads; any other exception fails the test."""
    try:
        source = open_model(folder)
        Tokenizer(source.tokenizer, str(folder))
    except InputError as error:
        return str(error)
    for weight in source.weights.values():
        weight.decode()
    return None


def test_every_truncation_is_refused(folder: Path) -> None:
    for name in (SINGLE, "config.json", "tokenizer.json"):
        path = folder / name
        good = path.read_bytes()
        step = np.random.default_rng(0).integers(0, len(good), 120).tolist()
        for cut in sorted({*range(0, min(200, len(good)), 5), *step, len(good) - 1}):
            path.write_bytes(good[:cut])
            assert refusal(folder) is not None, (name, cut)
        path.write_bytes(good)
    assert refusal(folder) is None


@given(
    seed=st.integers(0, 2**32 - 1),
    flips=st.integers(1, 6),
    name=st.sampled_from([SINGLE, "config.json", "tokenizer.json", "tokenizer_config.json"]),
)
@settings(max_examples=200, deadline=None)
def test_flipped_bytes_load_or_are_refused(folder: Path, seed: int, flips: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    path = folder / name
    good = path.read_bytes()
    data = bytearray(good)
    for at in rng.integers(0, min(len(data), 3000), flips):
        data[at] = rng.integers(0, 256)
    path.write_bytes(data)
    try:
        error = refusal(folder)
    finally:
        path.write_bytes(good)
    assert error is None or (error.startswith(str(folder)) and "\n" not in error)


def test_configs_of_tests_are_those_of_transformers(tmp_path: Path) -> None:
    """The tiny folders are real ones: transformers reads the same configuration."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_llama_hf(tmp_path))
    wanted = hf_config(Tiny())
    for key in ("hidden_size", "num_key_value_heads", "head_dim", "tie_word_embeddings"):
        assert getattr(config, key) == wanted[key]
