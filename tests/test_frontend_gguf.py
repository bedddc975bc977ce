"""The GGUF frontend: what it reads, what it refuses and in which words."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from enum import IntEnum
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import LINEAR_SCALING, LLAMA3_SCALING, Tiny, gguf_weights, tiny_llama

from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import FORMATS
from speccc.ir.frontends import ROPE_FREQS, expected_shapes, open_model
from speccc.ir.frontends.gguf_header import read_header
from speccc.ir.frontends.gguf_meta import Metadata
from speccc.ir.frontends.gguf_tokenizer import _merges
from speccc.ir.frontends.gguf_types import DEFAULT_ALIGNMENT, TokenType, ValueType
from speccc.runtime.tokenizer import Tokenizer

IN_GGUF = [f.name for f in FORMATS.values() if f.gguf_type is not None]


@pytest.mark.parametrize("fmt", IN_GGUF)
@pytest.mark.parametrize("tied", [True, False])
def test_reads_every_format(fmt: str, tied: bool, tmp_path: Path) -> None:
    shape = {"seed": 3, "tied": tied, "heads": 8, "kv_heads": 4, "layers": 3}
    source = open_model(tiny_llama(tmp_path, fmt=fmt, **shape))
    tiny = Tiny(**shape)
    want = gguf_weights(tiny)
    assert list(source.weights) == list(want)
    assert {n: w.shape for n, w in source.weights.items()} == expected_shapes(source.config)
    for name, weight in source.weights.items():
        again = weight.format.decode(weight.format.encode(want[name]), weight.shape)
        np.testing.assert_array_equal(weight.decode(), again)
    c = source.config
    assert (c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim) == (3, 8, 4, 8)
    assert (c.hidden, c.ffn, c.vocab_size, c.context_length) == (64, 128, 260, 1024)
    assert (c.tied_head, c.bos_id, c.eos_ids) == (tied, 257, (258, 256))
    assert source.notes == ()
    assert source.chat_template is not None


def test_a_tensor_s_scale_is_a_factor_of_its_rows(tmp_path: Path) -> None:
    """As llama.cpp's converter writes NVFP4; a scale of activations is told of and left out."""
    extra = {"blk.0.attn_q.input_scale": np.ones(1, np.float32)}
    path = tiny_llama(tmp_path, fmt="nvfp4_rows", tensors=extra, tied=False)
    source = open_model(path)
    want = gguf_weights(Tiny(tied=False))
    assert set(source.weights) == set(want)
    assert source.notes == (
        "1 scales of activations are not used: activations are quantized as they come",
    )
    w = source.weights["blk.1.ffn_up.weight"]
    assert w.format.name == "nvfp4_rows"
    factors = w.format.row_factors(w.raw, w.shape)
    x = want["blk.1.ffn_up.weight"]
    assert factors.tolist() == [np.abs(x).max() / np.float32(2688)] * len(x)
    assert np.abs(w.decode() - x).max() < np.abs(x).max() / 5


def test_refuses_scales_it_cannot_apply(tmp_path: Path) -> None:
    one = np.ones(1, np.float32)
    cases = [
        ("q4_0", "blk.0.attn_q.scale", one, "scales no weight that is FP8 or NVFP4"),
        ("nvfp4", "blk.9.attn_q.scale", one, "scales no weight that is FP8 or NVFP4"),
        ("nvfp4", "blk.0.attn_q.scale", np.ones(3, np.float32), "one factor for the tensor"),
        ("nvfp4", "blk.0.attn_q.scale", one * np.float32(np.inf), "holds a NaN or infinite"),
    ]
    for n, (fmt, name, scale, message) in enumerate(cases):
        path = tiny_llama(tmp_path, fmt=fmt, tensors={name: scale}, name=f"{n}.gguf")
        with pytest.raises(InputError, match=message):
            open_model(path)


def test_rope_scaling(tmp_path: Path) -> None:
    plain = open_model(tiny_llama(tmp_path)).config.rope
    linear = open_model(tiny_llama(tmp_path, rope_scaling=LINEAR_SCALING)).config.rope
    np.testing.assert_array_equal(linear.frequencies() * 4, plain.frequencies())
    old = {"llama.rope.scale_linear": 4.0}
    assert open_model(tiny_llama(tmp_path, extra=old)).config.rope == linear
    llama3 = open_model(tiny_llama(tmp_path, rope_scaling=LLAMA3_SCALING))
    divisors = llama3.weights[ROPE_FREQS].decode()
    assert divisors.shape == (8,)
    assert 1 == divisors[0] < divisors[-1] == 8
    want = plain.frequencies() / divisors
    np.testing.assert_array_equal(llama3.config.rope.frequencies(divisors), want)


def test_fingerprint_sees_every_byte(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    before = open_model(path).fingerprint()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert open_model(path).fingerprint() != before


@pytest.mark.parametrize("piece", [1000, 1 << 25])
def test_a_fingerprint_is_of_names_and_contents(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speccc.ir.frontends.source.PIECE", piece)
    path = tiny_llama(tmp_path)
    whole = path.name.encode() + b"\0" + path.read_bytes()
    assert open_model(path).fingerprint() == hashlib.sha256(whole).hexdigest()


def test_header_equals_the_gguf_package(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    header = read_header(np.fromfile(path, np.uint8), "x")
    theirs = gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            value = header.metadata[name]
            assert field.contents() == (value.tolist() if isinstance(value, np.ndarray) else value)
    for ours, tensor in zip(header.tensors, theirs.tensors, strict=True):
        assert ours.name == tensor.name
        assert ours.shape == tuple(tensor.shape.tolist()[::-1])
        assert (ours.start, ours.end - ours.start) == (tensor.data_offset, tensor.n_bytes)


@pytest.mark.parametrize("window", [1, 9, 100, 5000])
def test_strings_are_read_across_windows(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length beside the window's, empty ones and those of several bytes a character too."""
    texts = ["", "ab" * 60, "\u2581\u0120", "", "x", "\U0001f600" * 9, ""] * 3
    path = tiny_llama(tmp_path, extra={"general.tags": texts})
    data = np.fromfile(path, np.uint8)
    whole = read_header(data, "x")
    monkeypatch.setattr("speccc.ir.frontends.gguf_header.WINDOW", window)
    assert read_header(data, "x").metadata["general.tags"] == texts
    assert read_header(data, "x").tensors == whole.tensors


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ValueType, gguf.GGUFValueType), (TokenType, gguf.TokenType)]
)
def test_numbers_are_the_gguf_package_s(ours: type[IntEnum], theirs: type[IntEnum]) -> None:
    assert {t.name: t.value for t in ours} == {t.name: t.value for t in theirs}
    assert DEFAULT_ALIGNMENT == gguf.GGUF_DEFAULT_ALIGNMENT


PIECES = ("a", "b", "ab", " ", " a", " ab", "a ", " a b", "b a", "  ", " b")


@given(st.lists(st.sampled_from([f"{x} {y}" for x in PIECES for y in PIECES] + ["", " ", "ab"])))
def test_merges_are_cut_at_the_first_space_that_may_be_no_piece_s(texts: list[str]) -> None:
    """Of equal rules the first counts; a bad one is named by its place."""
    ids = {piece: i for i, piece in enumerate(PIECES)}
    want: dict[tuple[str, str], None] = {}
    bad = None
    for i, text in enumerate(texts):
        cut = text.find(" ", 1)
        left, right = text[:cut], text[cut + 1 :]
        if cut < 0 or not {left, right, left + right} <= ids.keys():
            bad = f"x: tokenizer.ggml.merges[{i}] {text!r} names a piece that is no token"
            break
        want.setdefault((left, right))
    meta = Metadata({"tokenizer.ggml.merges": texts}, "x")
    if bad is None:
        assert _merges(meta, ids) == [list(pair) for pair in want]
        return
    with pytest.raises(InputError) as caught:
        _merges(meta, ids)
    assert str(caught.value) == bad


def test_sliding_window_limits_the_context(tmp_path: Path) -> None:
    source = open_model(tiny_llama(tmp_path, extra={"llama.attention.sliding_window": 64}))
    assert source.config.context_length == 64
    assert "limited to the window of 64" in source.notes[0]


def test_a_model_without_an_end_is_noted(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.token_type": [1] * 260}
    source = open_model(tiny_llama(tmp_path, extra=extra))
    assert source.config.eos_ids == ()
    assert "no token that ends a text" in source.notes[0]


def test_trailing_bytes_are_noted(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(100))
    assert "100 bytes follow the last tensor" in open_model(path).notes[0]


# Metadata that is well formed but wrong, and what must be said about it.
BAD_METADATA: list[tuple[dict[str, object], str]] = [
    ({"llama.attention.head_count": 0}, "head_count is 0"),
    ({"llama.attention.head_count_kv": 3}, "not a multiple of 3 key/value heads"),
    ({"llama.attention.head_count_kv": 0}, "n_kv_heads is 0"),
    ({"llama.block_count": 2**31}, "n_layers is 2147483648; it must be within"),
    ({"llama.block_count": 3}, r"lacks tensors blk.2.attn_norm.weight, .* and 6 more"),
    ({"llama.block_count": 1}, "blk.1.* that a llama model of 1 layers does not use"),
    ({"llama.block_count": None}, "lacks metadata llama.block_count"),
    ({"llama.block_count": "2"}, "llama.block_count is '2'; it must be a non-negative integer"),
    ({"llama.block_count": [2, 3]}, "llama.block_count is an array"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan; .* finite"),
    ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon is -1.0"),
    ({"llama.rope.freq_base": 0.0}, "RoPE base is 0.0"),
    ({"llama.rope.freq_base": -5.0}, "RoPE base is -5.0"),
    ({"llama.rope.dimension_count": 8}, "RoPE covers 8 of 16"),
    ({"llama.rope.scaling.type": "yarn"}, "'yarn' is not supported"),
    ({"llama.attention.value_length": 8}, "value_length 8 differs"),
    ({"llama.expert_count": 8}, "llama.expert_count is 8"),
    ({"llama.embedding_length": 96}, r"token_embd.weight is \[260, 64\].*implies \[260, 96\]"),
    ({"llama.feed_forward_length": 64}, r"ffn_gate.weight is \[128, 64\].*implies \[64, 64\]"),
    ({"llama.context_length": 0}, "context_length is 0"),
    ({"llama.vocab_size": 261}, "vocab_size is 261, but tokenizer.ggml.tokens holds 260"),
    ({"tokenizer.ggml.bos_token_id": 260}, "bos_token_id is 260; it must be a token id below 260"),
    ({"tokenizer.ggml.eos_token_id": 2**31}, "eos_token_id is 2147483648"),
    ({"tokenizer.ggml.token_type": [1] * 259}, "token_type has 259 elements"),
    ({"tokenizer.ggml.token_type": [1.0] * 260}, "token_type is an array; it must be an array"),
    ({"tokenizer.ggml.token_type": [99] * 260}, "unknown type 99"),
    ({"tokenizer.ggml.tokens": ["a"] * 260}, "holds 'a' twice"),
    ({"tokenizer.ggml.tokens": "abc"}, "it must be an array of strings"),
    ({"tokenizer.ggml.merges": ["xy zz"]}, "merges.0. 'xy zz' names a piece that is no token"),
    ({"tokenizer.ggml.merges": ["he"]}, "'he' names a piece"),
    ({"tokenizer.ggml.pre": "nonsense"}, "pre 'nonsense' is not supported; supported are"),
    ({"tokenizer.ggml.model": "bert"}, "model 'bert' is not supported"),
    ({"tokenizer.ggml.model": "llama"}, "scores is absent"),
    ({"tokenizer.ggml.add_bos_token": 3}, "add_bos_token is 3; it must be a boolean"),
    (
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
        "bos_token_id is absent",
    ),
    ({"tokenizer.chat_template": 5}, "chat_template is 5; it must be a string"),
    ({"general.architecture": "gemma3"}, "architecture 'gemma3' is not supported"),
    ({"general.type": "adapter"}, "'adapter', not a model"),
    ({"general.alignment": 48}, "alignment is 48, not a power of two"),
    ({"general.alignment": 0}, "alignment is 0, not a power"),
    ({"general.alignment": 1 << 21}, "alignment is 2097152"),
    ({"general.alignment": "32"}, "alignment is '32'"),
    ({"split.count": 3}, "split.count is 3"),
]


@pytest.mark.parametrize(("extra", "message"), BAD_METADATA)
def test_refuses_bad_metadata(extra: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, extra=extra)
    refused(path, message)


def refused(path: Path, message: str) -> None:
    """The path is refused with one line that starts with its name, and exit code 2."""
    with pytest.raises(InputError, match=message) as caught:
        Tokenizer(open_model(path).tokenizer)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fmt", IN_GGUF)
def test_refuses_values_that_are_not_finite(fmt: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path, fmt=fmt)
    weight = open_model(path).weights["blk.1.attn_q.weight"]
    start = path.read_bytes().index(weight.raw.tobytes())
    data = bytearray(path.read_bytes())
    at = start + 5 * weight.format.nbytes
    data[at : at + weight.format.fields[0].nbytes] = b"\xff" * weight.format.fields[0].nbytes
    path.write_bytes(data)
    del weight
    refused(path, "blk.1.attn_q.weight holds a NaN or infinite")


def test_tells_of_values_too_large_to_compute_with(tmp_path: Path) -> None:
    """f32 has no square of a sum of 64 of them; one less is silently as good as any."""
    name, most = "blk.1.ffn_up.weight", 2.0**64 / 64
    for fmt, size, expected in (("f32", 3e38, 1), ("mxfp4", 3e38, 1), ("f32", most / 2, 0)):
        weights = np.zeros((128, 64), np.float32)
        weights[3, 5] = -size
        source = open_model(tiny_llama(tmp_path, fmt=fmt, tensors={name: weights}))
        assert len(source.notes) == expected
        for note in source.notes:
            assert note.startswith(f"tensor {name} holds values up to 3e+38: beyond 3e+17 ")


def test_a_scale_that_no_code_uses_is_not_told_of(tmp_path: Path) -> None:
    """A block's scale is large and its codes are 0: its elements are what counts."""
    weights, name = np.zeros((128, 64), np.float32), "blk.1.ffn_up.weight"
    path = tiny_llama(tmp_path, fmt="mxfp4", tensors={name: weights})
    at, data = _place(path, name)
    data[at] = 254  # 2^127
    path.write_bytes(data)
    assert open_model(path).notes == ()
    data[at + 1] = 7  # times 6
    path.write_bytes(data)
    refused(path, f"{name} holds a NaN or infinite value")


def _place(path: Path, name: str) -> tuple[int, bytearray]:
    """Where a tensor begins in a file, and the file's bytes."""
    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == name)
    return int(tensor.data_offset), bytearray(path.read_bytes())


def test_refuses_wrong_tensors(tmp_path: Path) -> None:
    square = np.ones((64, 64), np.float32)
    cases: list[tuple[dict[str, np.ndarray], str]] = [
        ({"blk.0.attn_q.bias": square[0]}, "holds tensor blk.0.attn_q.bias that a llama model"),
        ({"blk.0.attn_k.weight": square}, r"is \[64, 64\], but the configuration implies \[32"),
        ({"rope_freqs.weight": square[0]}, r"rope_freqs.weight is \[64\].*implies \[8\]"),
        ({"rope_freqs.weight": np.zeros(8, np.float32)}, "a divisor that is not positive"),
        ({"token_embd.weight": square}, r"token_embd.weight is \[64, 64\]"),
        ({"blk.0.attn_norm.weight": square[:, :1]}, r"attn_norm.weight is \[64, 1\]"),
    ]
    for tensors, message in cases:
        refused(tiny_llama(tmp_path, fmt="f32", tensors=tensors), message)


def header(tensors: int = 0, entries: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries)


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    size = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + size + struct.pack("<IQ", kind, offset)


HUGE = struct.pack("<Q", 2**62)
PAD = bytes(4096)
# Hand-made headers, after llama.cpp's tests/test-gguf.cpp and published vulnerabilities.
BAD_HEADERS: list[tuple[bytes, str]] = [
    (b"", "it has 0 bytes"),
    (b"GGUF", "it has 4 bytes"),
    (header(magic=b"GGML"), "no GGUF magic"),
    (header(version=1), "is GGUF version 1"),
    (header(version=0), "is GGUF version 0"),
    (header(version=99), "is GGUF version 99"),
    (header(version=3 << 24), "is big-endian GGUF"),
    (header(tensors=2**62), "number of tensors is 4611686018427387904, more than the file"),
    (header(tensors=3), "number of tensors is 3, more than the file can hold"),
    (header(entries=2**63), "number of metadata entries is 9223372036854775808"),
    (header(entries=1) + HUGE + PAD, "metadata key 0 is 4611686018427387904 bytes long"),
    (header(entries=1) + text("") + PAD, "metadata key 0 is '', which is empty"),
    (header(entries=1) + text("a\0b") + PAD, "holds forbidden characters"),
    (header(entries=1) + text("../a") + PAD, "holds forbidden characters"),
    (header(entries=1) + text(b"\xff\xfe") + PAD, "key 0 is not valid UTF-8"),
    (header(entries=1) + entry("a", 13, PAD), "a has unknown type 13"),
    (header(entries=1) + entry("a", 7, b"\x02" + PAD), "a is a boolean with value 2"),
    (header(entries=1) + entry("a", 8, HUGE + PAD), "a is 4611686018427387904 bytes long"),
    (header(entries=1) + entry("a", 8, text(b"\xff") + PAD), "a is not valid UTF-8"),
    (
        header(entries=1) + entry("a", 9, struct.pack("<IQ", 9, 1) + PAD),
        "a is an array of arrays",
    ),
    (
        header(entries=1) + entry("a", 9, struct.pack("<IQ", 77, 1) + PAD),
        "elements of a has unknown type 77",
    ),
    (
        header(entries=1) + entry("a", 9, struct.pack("<IQ", 4, 2**61) + PAD),
        "length of a is 2305843009213693952, more than the file can hold",
    ),
    (
        header(entries=1) + entry("a", 9, struct.pack("<IQ", 8, 2**20) + PAD),
        "length of a is 1048576, more than the file can hold",
    ),
    (
        header(entries=1) + entry("a", 9, struct.pack("<IQ", 7, 2) + b"\1\2" + PAD),
        "neither 0 nor 1",
    ),
    (header(entries=2) + entry("a", 0, b"\1") * 2 + PAD, "key a occurs twice"),
    (header(entries=1) + entry("a", 4, b"\1"), "a ends 3 bytes past the end of the file"),
    (header(1) + tensor("x" * 64, [32]) + PAD, "tensor name is 64 bytes long, more than 63"),
    (header(1) + tensor("", [32]) + PAD, "which is empty"),
    (header(1) + tensor("x", []) + PAD, "has 0 dimensions"),
    (header(1) + tensor("x", [1] * 5) + PAD, "has 5 dimensions"),
    (header(1) + text("x") + struct.pack("<I", 2**31) + PAD, "has 2147483648 dimensions"),
    (header(1) + tensor("x", [32, 0]) + PAD, r"has dimensions \[32, 0\]"),
    (header(1) + tensor("x", [2**63, 2]) + PAD, "has dimensions"),
    (header(1) + tensor("x", [2**32, 2**32]) + PAD, "has dimensions"),
    (header(1) + tensor("x", [32], 999) + PAD, "x is of unknown type 999"),
    (header(1) + tensor("x", [256], 12) + PAD, "x is Q4_K; this version reads F32"),
    (header(1) + tensor("x", [33], 2) + PAD, "rows of 33, not a multiple of 32"),
    (header(1) + tensor("x", [2**40]) + PAD, "ends 43980465.* bytes past the end of the file"),
    (header(1) + tensor("x", [32], 0, 32) + PAD, "starts at offset 32 of the data, not at 0"),
    (header(1) + tensor("x", [32], 0, 2**64 - 32) + PAD, "not at 0"),
    (header(2) + tensor("x", [32]) + tensor("y", [32]) + PAD, "y starts at offset 0.*not at 128"),
    (header(2) + tensor("x", [32]) + tensor("x", [32], 0, 128) + PAD, "x occurs twice"),
]


@pytest.mark.parametrize(("data", "message"), BAD_HEADERS)
def test_refuses_bad_headers(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    refused(path, message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # nothing is allocated from a size the file cannot hold


def test_refuses_other_paths(tmp_path: Path) -> None:
    refused(tmp_path / "absent.gguf", "no such file")
    for name in ("m.bin", "m.pt", "m.pkl", "m.pth"):
        (tmp_path / name).write_bytes(b"\x80\x04K\x01." + PAD)
        refused(tmp_path / name, "is a pickle, which can run code")
    (tmp_path / "m.safetensors").write_bytes(PAD)
    refused(tmp_path / "m.safetensors", "name the folder that holds it")
    (tmp_path / "m.onnx").write_bytes(PAD)
    refused(tmp_path / "m.onnx", "is not a GGUF file")


def refusal(path: Path) -> str | None:
    """Why it is refused, None when it loads; any other exception fails the test."""
    try:
        source = open_model(path)
        Tokenizer(source.tokenizer, str(path))
    except InputError as error:
        return str(error)
    for weight in source.weights.values():
        weight.decode()
    return None


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = tiny_llama(tmp_path, layers=1).read_bytes()
    path = tmp_path / "cut.gguf"
    rng = np.random.default_rng(0)
    # Every byte of the start, a sample of the rest, and one byte short.
    cuts = {*range(0, 600, 3), *rng.integers(0, len(data), 300).tolist(), len(data) - 1}
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        with pytest.raises(InputError):
            open_model(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("good"), layers=1).read_bytes()


@given(seed=st.integers(0, 2**32 - 1), flips=st.integers(1, 8), start=st.booleans())
@settings(max_examples=250, deadline=None)
def test_flipped_bytes_load_or_are_refused(
    good: bytes, tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int, start: bool
) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(good)
    for at in rng.integers(0, 12000 if start else len(data), flips):
        data[at] = rng.integers(0, 256)
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(data)
    error = refusal(path)
    assert error is None or (error.startswith(f"{path}: ") and "\n" not in error)


def test_unsupported_is_an_input_error() -> None:
    assert issubclass(UnsupportedError, InputError)
