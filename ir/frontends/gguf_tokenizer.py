"""GGUF tokenizer metadata -> TokenizerSpec: the same tokens as llama.cpp, by `tokenizers`."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

from speccc.errors import InputError, UnsupportedError
from speccc.ir.frontends.gguf_meta import Metadata
from speccc.ir.frontends.gguf_types import TokenType
from speccc.ir.frontends.pretokenizers import PRETOKENIZERS
from speccc.ir.tokenizer_spec import TokenizerSpec

Json = dict[str, object]

# Texts of control tokens that end a turn or a document, as in llama.cpp's llama-vocab.cpp.
END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "</s>",
    }
)
_SPACE = "\u2581"
# SentencePiece makes pieces of 16 characters; longer tokens are added ones and never merged.
_LONGEST = 64
_KNOWN_TYPES = frozenset(int(t) for t in TokenType)
_ADDED = {int(TokenType.CONTROL), int(TokenType.USER_DEFINED), int(TokenType.UNKNOWN)}


def read_tokenizer(meta: Metadata) -> TokenizerSpec:
    """Check the tokenizer's metadata and build its spec; InputError names the key."""
    tokens = meta.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise InputError("tokenizer.ggml.tokens is empty", where=meta.where)
    if meta.has("llama.vocab_size") and meta.integer("llama.vocab_size") != len(tokens):
        raise InputError(
            f"llama.vocab_size is {meta.integer('llama.vocab_size')}, but "
            f"tokenizer.ggml.tokens holds {len(tokens)}",
            where=meta.where,
        )
    types = _types(meta, tokens)
    tokens = [t or f"[EMPTY_{i}]" for i, t in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        twice = next(t for t, n in Counter(tokens).items() if n > 1)
        raise InputError(f"tokenizer.ggml.tokens holds {twice!r:.60} twice", where=meta.where)
    model = meta.text("tokenizer.ggml.model")
    builder = {"gpt2": _byte_level, "llama": _sentencepiece}.get(model)
    if builder is None:
        raise UnsupportedError(
            f"tokenizer.ggml.model {model!r:.40} is not supported; gpt2 and llama are",
            where=meta.where,
        )
    document, bos_default = builder(meta, tokens)
    document["added_tokens"] = _added(tokens, types)
    return _spec(meta, tokens, types, document, bos_default)


def _types(meta: Metadata, tokens: list[str]) -> list[int]:
    raw = meta.numbers("tokenizer.ggml.token_type", "iu", len(tokens))
    if raw is None:
        return [int(TokenType.NORMAL)] * len(tokens)
    types = [int(t) for t in raw.tolist()]
    unknown = set(types) - _KNOWN_TYPES - {0}
    if unknown:
        raise InputError(
            f"tokenizer.ggml.token_type holds unknown type {min(unknown)}", where=meta.where
        )
    return types


def _added(tokens: list[str], types: list[int]) -> list[Json]:
    """Tokens matched in the text before anything else; only user-defined ones are plain text."""
    flags: Json = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {
            "id": i,
            "content": tokens[i],
            **flags,
            "special": kind != TokenType.USER_DEFINED,
        }
        for i, kind in enumerate(types)
        if kind in _ADDED
    ]


def _spec(
    meta: Metadata, tokens: list[str], types: list[int], document: Json, bos_default: bool
) -> TokenizerSpec:
    n = len(tokens)
    names = ("bos", "eos", "eot", "eom", "unknown", "padding", "separator", "mask")
    ids = {name: meta.token(f"tokenizer.ggml.{name}_token_id", n) for name in names}
    if meta.text("tokenizer.ggml.model") == "llama":
        ids["bos"] = 1 if ids["bos"] is None and n > 1 else ids["bos"]
        ids["eos"] = 2 if ids["eos"] is None and n > 2 else ids["eos"]
    ends = [i for i in (ids["eos"], ids["eot"], ids["eom"]) if i is not None]
    control = int(TokenType.CONTROL)
    ends += [i for i, t in enumerate(tokens) if t in END_TEXTS and types[i] == control]
    if not ends:
        meta.note("the tokenizer names no token that ends a text")
    add_bos = meta.flag("tokenizer.ggml.add_bos_token", bos_default)
    if add_bos and ids["bos"] is None:
        raise InputError(
            "tokenizer.ggml.add_bos_token is set, but tokenizer.ggml.bos_token_id is absent",
            where=meta.where,
        )
    return TokenizerSpec(
        json=json.dumps(document, ensure_ascii=False),
        vocab_size=n,
        bos=ids["bos"],
        eos_ids=tuple(dict.fromkeys(ends)),
        add_bos=add_bos,
        add_eos=meta.flag("tokenizer.ggml.add_eos_token", False) and ids["eos"] is not None,
    )


def _document(pre: Json | None, normalizer: Json | None, decoder: Json, model: Json) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            **model,
        },
    }


def _byte_level(meta: Metadata, tokens: list[str]) -> tuple[Json, bool]:
    """GPT-2 style BPE over bytes written as printable characters."""
    name = meta.text("tokenizer.ggml.pre", "default")
    pre = PRETOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedError(
            f"tokenizer.ggml.pre {name!r:.40} is not supported; "
            f"supported are {', '.join(PRETOKENIZERS)}",
            where=meta.where,
        )
    ids = {token: i for i, token in enumerate(tokens)}
    level: Json = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    splits: list[Json] = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in pre.patterns
    ]
    model: Json = {
        "ignore_merges": pre.ignore_merges,
        "vocab": ids,
        "merges": _merges(meta, ids),
    }
    sequence: Json = {"type": "Sequence", "pretokenizers": [*splits, level]}
    return _document(sequence, None, level, model), pre.add_bos


def _merges(meta: Metadata, ids: dict[str, int]) -> list[list[str]]:
    """Merge rules in rank order; the first of two equal ones counts, as in llama.cpp."""
    texts = meta.strings("tokenizer.ggml.merges")
    pairs = [t.split(" ", 1) if t[:1] != " " else _after_space(t) for t in dict.fromkeys(texts)]
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in ids or pair[1] not in ids or "".join(pair) not in ids:
            text = " ".join(pair)
            raise InputError(
                f"tokenizer.ggml.merges[{texts.index(text)}] {text!r:.60} names a piece that is "
                "no token",
                where=meta.where,
            )
    return pairs


def _after_space(text: str) -> list[str]:
    """The pieces of a rule whose first character is a space: it belongs to the first piece."""
    first, *rest = text[1:].split(" ", 1)
    return [f" {first}", *rest]


def _sentencepiece(meta: Metadata, tokens: list[str]) -> tuple[Json, bool]:
    """SentencePiece BPE: any pair whose concatenation is a token merges, best score first."""
    scores = meta.numbers("tokenizer.ggml.scores", "f", len(tokens))
    if scores is None or not np.isfinite(scores.astype(np.float64)).all():
        raise InputError(
            "tokenizer.ggml.scores is absent or not finite; convert the model again",
            where=meta.where,
        )
    ids = {token: i for i, token in enumerate(tokens)}
    normalizers: list[Json] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    ]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if meta.flag("tokenizer.ggml.add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model: Json = {
        "byte_fallback": True,
        "vocab": ids,
        "merges": _score_merges(tokens, ids, scores.tolist()),
    }
    normalizer: Json = {"type": "Sequence", "normalizers": normalizers}
    decoder: Json = {"type": "Sequence", "decoders": decoders}
    return _document(None, normalizer, decoder, model), True


def _score_merges(tokens: list[str], ids: dict[str, int], scores: list[float]) -> list[list[str]]:
    """Every way to put a token together from two, ordered by the score of the result."""
    found = []
    for token in tokens:
        if len(token) > _LONGEST:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-scores[ids[token]], ids[left], ids[right], left, right))
    return [[left, right] for *_, left, right in sorted(found)]
