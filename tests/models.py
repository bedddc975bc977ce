"""Writers of tiny random Llama-type models, the same weights as GGUF or as a Hugging Face folder.

A seed and a shape give the same f32 weights in both, so the two files are one model up to the
number format. The tokenizer is a byte-level BPE with three control tokens and a few merges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from speccc.ir.formats import FORMATS

Floats = npt.NDArray[np.float32]
RopeScaling = Mapping[str, object]

LLAMA3_SCALING: RopeScaling = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_SCALING: RopeScaling = {"rope_type": "linear", "factor": 4.0}

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("h", "e"), ("Ġ", "t"), ("i", "n"), ("Ġt", "he"), ("r", "e"), ("o", "n"), ("e", "r"))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """The shape of a tiny model."""

    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 128
    vocab: int = 260
    tied: bool = True
    rope_scaling: RopeScaling | None = None
    theta: float = 10000.0
    eps: float = 1e-5
    context: int = 1024
    head_dim: int | None = None

    @property
    def dim(self) -> int:
        """The width of one head."""
        return self.head_dim or self.hidden // self.heads


def byte_characters() -> list[str]:
    """The printable stand-in of each byte 0..255, as in GPT-2's byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def vocabulary(vocab: int) -> tuple[list[str], list[int], list[tuple[str, str]]]:
    """Tokens, their GGUF types and the merges: bytes, control tokens, merged and unused ones."""
    tokens = [*byte_characters(), *CONTROL]
    if vocab < len(tokens):
        raise ValueError(f"a tiny vocabulary has at least {len(tokens)} tokens")
    merges = list(MERGES[: vocab - len(tokens)])
    types = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 3
    tokens += [a + b for a, b in merges]
    types += [gguf.TokenType.NORMAL] * len(merges)
    spare = [f"<|spare_{i}|>" for i in range(vocab - len(tokens))]
    return (
        tokens + spare,
        [int(t) for t in types] + [int(gguf.TokenType.UNUSED)] * len(spare),
        merges,
    )


def weights(tiny: Tiny) -> dict[str, Floats]:
    """Random f32 weights by Hugging Face name; q and k in its half-split RoPE order."""
    rng = np.random.default_rng(tiny.seed)

    def matrix(n: int, k: int, std: float | None = None) -> Floats:
        return (rng.standard_normal((n, k)) * (std or k**-0.5)).astype(np.float32)

    def norm(n: int) -> Floats:
        return (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

    q, kv = tiny.heads * tiny.dim, tiny.kv_heads * tiny.dim
    out = {"model.embed_tokens.weight": matrix(tiny.vocab, tiny.hidden, 0.3)}
    for i in range(tiny.layers):
        at = f"model.layers.{i}."
        out[at + "input_layernorm.weight"] = norm(tiny.hidden)
        out[at + "self_attn.q_proj.weight"] = matrix(q, tiny.hidden, 2 * tiny.hidden**-0.5)
        out[at + "self_attn.k_proj.weight"] = matrix(kv, tiny.hidden, 2 * tiny.hidden**-0.5)
        out[at + "self_attn.v_proj.weight"] = matrix(kv, tiny.hidden)
        out[at + "self_attn.o_proj.weight"] = matrix(tiny.hidden, q)
        out[at + "post_attention_layernorm.weight"] = norm(tiny.hidden)
        out[at + "mlp.gate_proj.weight"] = matrix(tiny.ffn, tiny.hidden)
        out[at + "mlp.up_proj.weight"] = matrix(tiny.ffn, tiny.hidden)
        out[at + "mlp.down_proj.weight"] = matrix(tiny.hidden, tiny.ffn)
    out["model.norm.weight"] = norm(tiny.hidden)
    head = matrix(tiny.vocab, tiny.hidden, 0.3)
    return out if tiny.tied else {**out, "lm_head.weight": head}


_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOPS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face weight."""
    if name in _GGUF_TOPS:
        return _GGUF_TOPS[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{_GGUF_PARTS[part]}.weight"


def _adjacent(x: Floats, heads: int) -> Floats:
    """Rows reordered from half-split to adjacent-pair RoPE, as llama.cpp's converter does."""
    return x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def gguf_weights(tiny: Tiny) -> dict[str, Floats]:
    """The same weights by GGUF name and in its RoPE order, with rope_freqs for llama3 scaling."""
    out = {}
    for name, x in weights(tiny).items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = _adjacent(x, tiny.heads if "q_proj" in name else tiny.kv_heads)
        out[gguf_name(name)] = x
    if tiny.rope_scaling and tiny.rope_scaling["rope_type"] == "llama3":
        out["rope_freqs.weight"] = llama3_factors(tiny)
    return out


def llama3_factors(tiny: Tiny) -> Floats:
    """The divisors of RoPE's frequencies under llama3 scaling (llama.cpp's converter)."""
    s = {k: float(v) for k, v in (tiny.rope_scaling or {}).items() if k != "rope_type"}  # type: ignore[arg-type]
    old, low, high = (
        s["original_max_position_embeddings"],
        s["low_freq_factor"],
        s["high_freq_factor"],
    )
    out = []
    for i in range(0, tiny.dim, 2):
        wave = 2 * np.pi * tiny.theta ** (i / tiny.dim)
        smooth = min(1.0, max(0.0, (old / wave - low) / (high - low)))
        out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.asarray(out, np.float32)


def tiny_llama(
    folder: Path,
    *,
    fmt: str = "q4_1",
    embed_fmt: str | None = None,
    name: str = "tiny.gguf",
    extra: Mapping[str, object] | None = None,
    tensors: Mapping[str, Floats] | None = None,
    tiny: Tiny | None = None,
    **shape: object,
) -> Path:
    """Write a tiny Llama as GGUF and return its path.

    `shape` are fields of `Tiny`; matrices are stored as `fmt` (the embedding as `embed_fmt`, which
    defaults to q8_0 beside a 4-bit `fmt`). `extra` overrides metadata (None drops a key) and
    `tensors` overrides weights.
    """
    t = replace(tiny or Tiny(), **shape)  # type: ignore[arg-type]
    path = folder / name
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {**metadata(t), **(extra or {})}.items():
        if value is not None:
            _add(writer, key, value)
    embed = embed_fmt or ("q8_0" if FORMATS[fmt].code_bits == 4 else fmt)
    for key, x in {**gguf_weights(t), **(tensors or {})}.items():
        kind = "f32" if x.ndim == 1 else embed if key == "token_embd.weight" else fmt
        if kind == "nvfp4_rows":
            factor = np.abs(x).max(keepdims=True).reshape(1).astype(np.float32) / np.float32(2688)
            writer.add_tensor(key.removesuffix("weight") + "scale", factor)
            kind, x = "nvfp4", (x / factor).clip(-2688, 2688)
        raw = FORMATS[kind].encode(x)
        writer.add_tensor(key, raw, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata(t: Tiny) -> dict[str, object]:
    """The GGUF metadata of a tiny model; ints are written as u32, floats as f32."""
    tokens, types, merges = vocabulary(t.vocab)
    out: dict[str, object] = {
        "general.name": "tiny",
        "llama.block_count": t.layers,
        "llama.context_length": t.context,
        "llama.embedding_length": t.hidden,
        "llama.feed_forward_length": t.ffn,
        "llama.attention.head_count": t.heads,
        "llama.attention.head_count_kv": t.kv_heads,
        "llama.attention.key_length": t.dim,
        "llama.attention.value_length": t.dim,
        "llama.rope.freq_base": t.theta,
        "llama.rope.dimension_count": t.dim,
        "llama.attention.layer_norm_rms_epsilon": t.eps,
        "llama.vocab_size": t.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges] or ["h e"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    if t.rope_scaling and t.rope_scaling["rope_type"] == "linear":
        out["llama.rope.scaling.type"] = "linear"
        out["llama.rope.scaling.factor"] = t.rope_scaling["factor"]
    return out


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {type(value)}")


def tokenizer_json(vocab: int) -> dict[str, object]:
    """The tokenizer of `vocabulary` as a Hugging Face tokenizer.json."""
    tokens, types, merges = vocabulary(vocab)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], **plain, "special": True}
            for i, kind in enumerate(types)
            if kind == gguf.TokenType.CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(m) for m in merges],
        },
    }


def hf_config(t: Tiny, model_type: str = "llama") -> dict[str, object]:
    """config.json of a tiny model, with the keys of published Llama and Mistral checkpoints."""
    return {
        "architectures": [f"{model_type.title()}ForCausalLM"],
        "model_type": model_type,
        "vocab_size": t.vocab,
        "hidden_size": t.hidden,
        "intermediate_size": t.ffn,
        "num_hidden_layers": t.layers,
        "num_attention_heads": t.heads,
        "num_key_value_heads": t.kv_heads,
        "head_dim": t.dim,
        "hidden_act": "silu",
        "max_position_embeddings": t.context,
        "rms_norm_eps": t.eps,
        "rope_theta": t.theta,
        "rope_scaling": dict(t.rope_scaling) if t.rope_scaling else None,
        "tie_word_embeddings": t.tied,
        "bos_token_id": 257,
        "eos_token_id": 258,
        **({"sliding_window": None} if model_type == "mistral" else {}),
    }


RawTensor = tuple[str, tuple[int, ...], bytes]
"""The type as safetensors spells it, the shape, the bytes."""


def fp8_tensors(t: Tiny) -> dict[str, RawTensor]:
    """Tensors as compressed-tensors keeps them: the layers' matrices e4m3 with a scale a row."""
    out: dict[str, RawTensor] = {}
    for name, x in weights(t).items():
        if x.ndim == 1 or "layers" not in name:
            out[name] = ("F32", x.shape, x.tobytes())
            continue
        rows = FORMATS["fp8"].encode(x)
        out[name] = ("F8_E4M3", x.shape, rows[:, :-4].tobytes())
        out[f"{name}_scale"] = ("F32", (len(x), 1), rows[:, -4:].tobytes())
    return out


def save_raw(tensors: Mapping[str, RawTensor], path: Path) -> None:
    """Writes a safetensors file of types that NumPy does not have."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        offsets = [at, at := at + len(data)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def tiny_llama_hf(
    folder: Path,
    *,
    dtype: str = "f32",
    shards: int = 1,
    model_type: str = "llama",
    extra: Mapping[str, object] | None = None,
    name: str = "tiny-hf",
    tiny: Tiny | None = None,
    **shape: object,
) -> Path:
    """Write the same model as a Hugging Face folder (f32, f16 or fp8) and return it.

    With `shards` > 1 the weights are split and listed in model.safetensors.index.json. `extra`
    overrides keys of config.json (None stays null).
    """
    t = replace(tiny or Tiny(), **shape)  # type: ignore[arg-type]
    out = folder / name
    out.mkdir()
    config = {**hf_config(t, model_type), **(extra or {})}
    (out / "config.json").write_text(json.dumps(config))
    (out / "tokenizer.json").write_text(json.dumps(tokenizer_json(t.vocab)))
    (out / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    if dtype == "fp8":
        config["quantization_config"] = {"quant_method": "compressed-tensors"}
        (out / "config.json").write_text(json.dumps(config))
        save_raw(fp8_tensors(t), out / "model.safetensors")
        return out
    kind = {"f32": np.float32, "f16": np.float16}[dtype]
    arrays = {key: x.astype(kind) for key, x in weights(t).items()}
    if shards == 1:
        save_file(arrays, out / "model.safetensors")
        return out
    where = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(arrays.items())[i::shards])
        where.update(dict.fromkeys(part, file))
        save_file(part, out / file)
    size = sum(x.nbytes for x in arrays.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    return out
