"""A GGUF file of the `llama` architecture (Llama and Mistral share it) -> ModelSource."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from speccc.errors import InputError, UnsupportedError
from speccc.ir.frontends.checks import check_config, check_weights
from speccc.ir.frontends.gguf_header import Header, read_header
from speccc.ir.frontends.gguf_meta import Metadata
from speccc.ir.frontends.gguf_tokenizer import read_tokenizer
from speccc.ir.frontends.scales import with_scales
from speccc.ir.frontends.source import (
    EMBEDDING,
    HEAD,
    ROPE_FREQS,
    ModelConfig,
    ModelSource,
    RopeConfig,
    Weight,
)
from speccc.ir.tokenizer_spec import TokenizerSpec

ARCHITECTURE = "llama"
MAX_TEMPLATE = 1 << 20
# Keys that change the computation in ways this frontend does not carry, with their harmless value.
_UNUSED = {
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.nextn_predict_layers": 0,
    "llama.attention.clamp_kqv": 0.0,
    "llama.logit_scale": 1.0,
    "llama.residual_scale": 1.0,
    "llama.embedding_scale": 1.0,
    "llama.attention.scale": 0.0,
    "split.count": 1,
}


def open_gguf(path: Path) -> ModelSource:
    """Map and check a GGUF file; InputError names the file, the field and the mend."""
    where = str(path)
    size = path.stat().st_size
    if size < 24:
        raise InputError(f"is not a GGUF file: it has {size} bytes", where=where)
    data = np.memmap(path, np.uint8, mode="r")
    header = read_header(data, where)
    meta = Metadata(header.metadata, where)
    _refuse_unsupported(meta)
    weights = {
        t.name: Weight(t.name, t.shape, t.format, data[t.start : t.end].view(np.ndarray))
        for t in header.tensors
    }
    weights, unused = with_scales(weights, where)
    tokenizer = read_tokenizer(meta)
    config = _config(meta, header, tokenizer)
    check_config(config, where)
    large = check_weights(config, weights, where)
    return ModelSource(
        path,
        config,
        weights,
        tokenizer,
        _template(meta),
        (path,),
        (*header.notes, *meta.notes, *unused, *large),
    )


def _refuse_unsupported(meta: Metadata) -> None:
    kind = meta.text("general.type", "model")
    if kind != "model":
        raise UnsupportedError(f"is of general.type {kind!r}, not a model", where=meta.where)
    architecture = meta.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedError(
            f"architecture {architecture!r:.60} is not supported; this version reads "
            f"{ARCHITECTURE!r} (Llama, Mistral, SmolLM)",
            where=meta.where,
        )
    for key, harmless in _UNUSED.items():
        if meta.has(key) and meta.values[key] not in (harmless, 0):
            raise UnsupportedError(
                f"{key} is {meta.values[key]!r:.40}; only {harmless} is supported",
                where=meta.where,
            )


def _config(meta: Metadata, header: Header, tokenizer: TokenizerSpec) -> ModelConfig:
    names = {t.name for t in header.tensors}
    hidden = meta.integer("llama.embedding_length")
    heads = meta.integer("llama.attention.head_count")
    context = meta.integer("llama.context_length")
    head_dim = _head_dim(meta, hidden, heads)
    if EMBEDDING not in names:
        raise InputError(f"lacks tensor {EMBEDDING}", where=meta.where)
    return ModelConfig(
        architecture=ARCHITECTURE,
        name=meta.text("general.name", Path(meta.where).stem),
        vocab_size=tokenizer.vocab_size,
        hidden=hidden,
        n_layers=meta.integer("llama.block_count"),
        n_heads=heads,
        n_kv_heads=meta.integer("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=meta.integer("llama.feed_forward_length"),
        norm_eps=meta.number("llama.attention.layer_norm_rms_epsilon"),
        rope=_rope(meta, head_dim, ROPE_FREQS in names),
        context_length=_window(meta, context),
        tied_head=HEAD not in names,
        bos_id=tokenizer.bos,
        eos_ids=tokenizer.eos_ids,
    )


def _head_dim(meta: Metadata, hidden: int, heads: int) -> int:
    if heads < 1 or hidden < 1:
        raise InputError(
            f"llama.attention.head_count is {heads} and llama.embedding_length {hidden}; "
            "both must be positive",
            where=meta.where,
        )
    if not meta.has("llama.attention.key_length") and hidden % heads:
        raise InputError(
            f"llama.embedding_length {hidden} is not a multiple of {heads} heads", where=meta.where
        )
    head_dim = meta.integer("llama.attention.key_length", hidden // heads)
    value_dim = meta.integer("llama.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(
            f"llama.attention.value_length {value_dim} differs from key_length {head_dim}",
            where=meta.where,
        )
    return head_dim


def _rope(meta: Metadata, head_dim: int, has_divisors: bool) -> RopeConfig:
    """RoPE settings; `rope.scale_linear` is the older spelling of a linear factor."""
    theta = meta.number("llama.rope.freq_base", 10000.0)
    dim = meta.integer("llama.rope.dimension_count", head_dim)
    old = meta.number("llama.rope.scale_linear", 1.0)
    factor = meta.number("llama.rope.scaling.factor", old)
    scaling = meta.text("llama.rope.scaling.type", "linear" if factor not in (0, 1) else "none")
    if scaling == "none":
        return RopeConfig(theta, dim)
    if scaling == "linear":
        # A factor of 0 means "not set" in files of llama.cpp's converter.
        return RopeConfig(theta, dim, "linear", factor or 1.0)
    known = " beside rope_freqs.weight" if has_divisors else ""
    raise UnsupportedError(
        f"llama.rope.scaling.type {scaling!r:.40}{known} is not supported; none and linear are",
        where=meta.where,
    )


def _window(meta: Metadata, context: int) -> int:
    """The context within which sliding-window attention equals full attention."""
    window = meta.integer("llama.attention.sliding_window", 0)
    if not 0 < window < context:
        return context
    meta.note(f"sliding-window attention: the context is limited to the window of {window}")
    return window


def _template(meta: Metadata) -> str | None:
    if not meta.has("tokenizer.chat_template"):
        return None
    template = meta.text("tokenizer.chat_template")
    if len(template) > MAX_TEMPLATE:
        raise InputError(
            f"tokenizer.chat_template is {len(template)} characters, more than {MAX_TEMPLATE}",
            where=meta.where,
        )
    return template
