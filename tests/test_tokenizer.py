"""Tokenizers equal llama.cpp token for token, by a golden file and live where it is installed.

`python tests/test_tokenizer.py` writes the golden file anew from llama.cpp.
"""

from __future__ import annotations

import ctypes
import json
import random
import tempfile
from pathlib import Path

import gguf
import pytest
import tokenizers
from models import CONTROL, byte_characters, tiny_llama, tiny_llama_hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from speccc.errors import InputError, UnsupportedError
from speccc.ir.frontends import open_model
from speccc.ir.frontends.pretokenizers import PRETOKENIZERS
from speccc.ir.tokenizer_spec import TokenizerSpec
from speccc.models import smollm2 as find_smollm2
from speccc.runtime.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent / "golden" / "tokenizers.json"
TEXTS = [
    "Hello, world! It's 2026-11-29; don't   panic…",
    "\tdef f(x):\n        return x**2 + 0x1F  # comment\r\n\r\n\n  trailing   ",
    "日本語のテキスト、中文字符。한국어 문장입니다. Русский текст, "
    "ελληνικά, עברית, العربية, हिन्दी, ไทย",
    "👩‍👩‍👧‍👦 🎉🇩🇪 e\u0301 naïve "
    "\u00a0nbsp\u2003em \u200bzw \ufeffbom ½ ² ٣ ௧ Ⅷ 1234567890 12,345.67",
    "<|im_start|>user\n<|im_end|> <|endoftext|><repo_name> <|im_start",
    "it'S I'LL we'Ve 'tis ''s\x01\x7f\x85\u2028 end",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c; }  // ünïcödé\n\n\n\nend",
    " leading space, then  two,   three\n\n \n\ttabs\t\tmixed \t ",
    "",
    " ",
]


def smollm2() -> Path | None:
    """The real model file, where a run has it."""
    try:
        return find_smollm2(fetch=False)
    except InputError:
        return None


def trained_bpe() -> tuple[list[str], list[str]]:
    """Tokens and merges learnt without word boundaries, so that only pre-tokenizers stop merges."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(byte_characters()), show_progress=False
    )
    engine.train_from_iterator([t for t in TEXTS for _ in range(3)], trainer)
    document = json.loads(engine.to_str())["model"]
    tokens = sorted(document["vocab"], key=document["vocab"].get)
    return tokens, [" ".join(m) for m in document["merges"]]


def bpe_file(folder: Path, pre: str, bpe: dict[str, list[str]]) -> Path:
    tokens = [*bpe["tokens"], *CONTROL, "user defined!"]
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    types = [normal] * len(bpe["tokens"]) + [control] * 3 + [int(gguf.TokenType.USER_DEFINED)]
    extra = {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": bpe["merges"],
        "tokenizer.ggml.add_bos_token": None,
    }
    return tiny_llama(folder, vocab=len(tokens), layers=1, name=f"{pre}.gguf", extra=extra)


def trained_spm() -> dict[str, list[object]]:
    """A SentencePiece-style vocabulary: specials, bytes, then pieces with falling scores."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.normalizer = normalizers.Replace(" ", "▁")
    engine.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=500, limit_alphabet=120, show_progress=False, max_token_length=16
    )
    engine.train_from_iterator([" " + t for t in TEXTS[:2] + TEXTS[6:8] for _ in range(3)], trainer)
    document = json.loads(engine.to_str())["model"]
    merged = ["".join(m) for m in document["merges"]]
    alone = [t for t in document["vocab"] if t not in merged]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *merged, *alone]
    tokens = list(dict.fromkeys(tokens))
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    types = [int(k) for k in kinds] + [int(gguf.TokenType.NORMAL)] * (len(tokens) - 259)
    return {"tokens": tokens, "scores": scores, "types": types}


def spm_file(folder: Path, spm: dict[str, list[object]]) -> Path:
    extra = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": spm["tokens"],
        "tokenizer.ggml.scores": spm["scores"],
        "tokenizer.ggml.token_type": spm["types"],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    vocab = len(spm["tokens"])
    return tiny_llama(folder, vocab=vocab, layers=1, name="spm.gguf", extra=extra)


def load(path: Path) -> Tokenizer:
    return Tokenizer(open_model(path).tokenizer, str(path))


def encoded(tok: Tokenizer) -> list[list[list[int]]]:
    return [[tok.encode(t, special=s) for t in TEXTS] for s in (True, False)]


def golden() -> dict[str, object]:
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def real() -> Path:
    path = smollm2()
    if path is None:
        pytest.skip("the SmolLM2 file is not here; set SPECCC_SMOLLM2")
    return path


def test_smollm2_equals_golden(real: Path) -> None:
    assert encoded(load(real)) == golden()["smollm2"]


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_pretokenizers_equal_golden(pre: str, tmp_path: Path) -> None:
    data = golden()
    tok = load(bpe_file(tmp_path, pre, data["bpe"]))
    assert encoded(tok) == data["pre"][pre]


def test_sentencepiece_equals_golden(tmp_path: Path) -> None:
    data = golden()
    assert encoded(load(spm_file(tmp_path, data["spm"]))) == data["sentencepiece"]


def test_pretokenizers_differ() -> None:
    """The golden file would notice a pre-tokenizer taken for another."""
    found = golden()["pre"]
    distinct = {json.dumps(found[name]) for name in ("default", "gpt-2", "smollm", "llama-bpe")}
    assert len(distinct) == 4


def mixed_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    wide = [
        chr(rng.choice([rng.randrange(1, 0x3000), rng.randrange(0x3000, 0xD800)]))
        for _ in range(600)
    ]
    pool = [*"".join(TEXTS), *wide, *(chr(rng.randrange(0xE000, 0x1FFFF)) for _ in range(300))]
    return ["".join(rng.choices(pool, k=rng.randrange(1, 40))) for _ in range(count)]


def same_as_llama_cpp(path: Path, texts: list[str]) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = load(path)
    for text in [*TEXTS, *texts]:
        for special in (True, False):
            want = theirs.tokenize(text.encode(), add_bos=True, special=special)
            assert ours.encode(text, special=special) == want, repr(text)
    vocab = llama_cpp.llama_model_get_vocab(theirs.model)
    room = ctypes.create_string_buffer(4096)
    for token in range(ours.vocab_size):
        n = llama_cpp.llama_token_to_piece(vocab, token, room, len(room), 0, True)
        assert ours.token_bytes(token) == room.raw[:n]


def test_smollm2_equals_llama_cpp(real: Path) -> None:
    same_as_llama_cpp(real, mixed_texts(1, 500))


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe"])
def test_bpe_equals_llama_cpp(pre: str, tmp_path: Path) -> None:
    path = bpe_file(tmp_path, pre, golden()["bpe"])
    same_as_llama_cpp(path, [t + "user defined!" + t for t in mixed_texts(2, 100)])


def test_sentencepiece_equals_llama_cpp(tmp_path: Path) -> None:
    same_as_llama_cpp(spm_file(tmp_path, golden()["spm"]), mixed_texts(4, 200))


def test_decode_gives_the_text_back(tmp_path: Path) -> None:
    tok = load(bpe_file(tmp_path, "smollm", golden()["bpe"]))
    for text in [*TEXTS, *mixed_texts(3, 200)]:
        ids = tok.encode(text, bos=False)
        assert tok.decode(ids) == text
        assert b"".join(map(tok.token_bytes, ids)) == text.encode()
    assert tok.decode(tok.encode("<|im_start|>a<|im_end|>"), special=False) == "a"


def test_sentencepiece_decodes(tmp_path: Path) -> None:
    tok = load(spm_file(tmp_path, golden()["spm"]))
    for text in ["Hello, 🎉 world", " two  spaces", "\tx\n"]:
        assert tok.decode(tok.encode(text, bos=False)) == text


def test_hugging_face_folder_has_the_same_tokens(tmp_path: Path) -> None:
    ours, theirs = load(tiny_llama(tmp_path)), load(tiny_llama_hf(tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    assert (ours.bos, ours.eos_ids[0]) == (theirs.bos, theirs.eos_ids[0]) == (257, 258)


def test_bos_of_a_post_processor(tmp_path: Path) -> None:
    folder = tiny_llama_hf(tmp_path)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": CONTROL[0], "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {CONTROL[0]: {"id": CONTROL[0], "ids": [256], "tokens": [CONTROL[0]]}},
    }
    path.write_text(json.dumps(document))
    tok = load(folder)
    assert tok.bos == 256
    assert tok.encode("a") == [256, *tok.encode("a", bos=False)]


def test_spec_survives_its_bytes(tmp_path: Path) -> None:
    spec = open_model(tiny_llama(tmp_path)).tokenizer
    assert TokenizerSpec.from_bytes(spec.to_bytes(), "x") == spec


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"eos_ids": [260]},
        {"eos_ids": [True]},
        {"bos": -1},
        {"add_bos": 1},
        {"json": None},
        {"vocab_size": 0},
        {"more": 1},
        {"add_eos": True, "eos_ids": []},
    ],
)
def test_a_broken_spec_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    good = json.loads(open_model(tiny_llama(tmp_path)).tokenizer.to_bytes())
    with pytest.raises(InputError, match=r"^m\.speccc: "):
        TokenizerSpec.from_bytes(json.dumps({**good, **change}).encode(), "m.speccc")


def test_bad_tokenizers_and_texts_are_refused(tmp_path: Path) -> None:
    spec = open_model(tiny_llama(tmp_path)).tokenizer
    small = TokenizerSpec(spec.json, 100, None, (), False)
    with pytest.raises(InputError, match="token id 259, but the model only 100 rows"):
        Tokenizer(small)
    for document in ("", "{", "[]", '{"decoder": 3}', spec.json[:-9]):
        with pytest.raises(InputError, match="cannot be built"):
            Tokenizer(TokenizerSpec(document, 260, None, (), False))
    wordpiece = json.loads(spec.json) | {"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}
    with pytest.raises(UnsupportedError, match="decodes neither"):
        Tokenizer(TokenizerSpec(json.dumps(wordpiece), 260, None, (), False))
    tok = Tokenizer(spec)
    with pytest.raises(InputError, match="not valid Unicode"):
        tok.encode("\ud800")
    for token in (-1, 260):
        with pytest.raises(InputError, match="not below 260"):
            tok.token_bytes(token)


def update_golden() -> None:
    """Write the golden file from llama.cpp."""
    import llama_cpp

    def ids(path: Path) -> list[list[list[int]]]:
        engine = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        return [
            [engine.tokenize(t.encode(), add_bos=True, special=s) for t in TEXTS]
            for s in (True, False)
        ]

    tokens, merges = trained_bpe()
    bpe, spm = {"tokens": tokens, "merges": merges}, trained_spm()
    real = smollm2()
    if real is None:
        raise SystemExit("set SPECCC_SMOLLM2")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = {
            "smollm2": ids(real),
            "bpe": bpe,
            "spm": spm,
            "pre": {pre: ids(bpe_file(folder, pre, bpe)) for pre in PRETOKENIZERS},
            "sentencepiece": ids(spm_file(folder, spm)),
        }
    GOLDEN.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    update_golden()
