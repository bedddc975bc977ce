"""Hugging Face config.json of the Llama family -> ModelConfig."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, UnsupportedError
from speccc.ir.frontends.source import ModelConfig, RopeConfig

MAX_JSON = 64 << 20
MODEL_TYPES = ("llama", "mistral")
# Settings that change the computation, with the one value this frontend carries out.
_FIXED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0, 1, None),
}

# Whose weights are read: e4m3 with a factor for the tensor or each row, and NVFP4. The tensors
# say which.
QUANT_METHODS = ("compressed-tensors", "fp8", "modelopt")


class Config:
    """A JSON object of the file `where` with getters that name key and mend."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; null counts as absent."""
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int:
            raise self.wrong(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; null counts as absent."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(key, "a finite number")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; null counts as absent."""
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not bool:
            raise self.wrong(key, "a boolean")
        return value

    def tokens(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(type(i) is not int for i in ids):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(ids)

    def wrong(self, key: str, wanted: str) -> InputError:
        """The error for a key of wrong type."""
        if key not in self.values:
            return InputError(f"lacks {key}; it must be {wanted}", where=self.where)
        return InputError(
            f"{key} is {self.values[key]!r:.60}; it must be {wanted}", where=self.where
        )


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of bounded size; InputError otherwise."""
    where = str(path)
    if path.stat().st_size > MAX_JSON:
        raise InputError(f"is larger than {MAX_JSON >> 20} MiB", where=where)
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {str(error)[:100]}", where=where) from None
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", where=where)
    return value


def _refuse_quantization(config: Config) -> None:
    """Of the ways to quantize, those are read that change nothing but how weights are stored."""
    found = config.values.get("quantization_config")
    if found is None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else None
    if not isinstance(found, dict) or method not in QUANT_METHODS or found.get("transform_config"):
        raise UnsupportedError(
            f"quantization_config is {found!r:.60}; FP8 and NVFP4 weights of "
            f"{', '.join(QUANT_METHODS)} are supported",
            where=config.where,
        )


def model_config(config: Config, name: str) -> tuple[ModelConfig, tuple[str, ...]]:
    """The configuration (special ids not yet set) and notes for the user."""
    kind = config.values.get("model_type")
    if kind not in MODEL_TYPES:
        raise UnsupportedError(
            f"model_type {kind!r:.40} is not supported; {' and '.join(MODEL_TYPES)} are",
            where=config.where,
        )
    for key, allowed in _FIXED.items():
        if key in config.values and config.values[key] not in allowed:
            raise UnsupportedError(
                f"{key} is {config.values[key]!r:.60}; only {allowed[0]!r} is supported",
                where=config.where,
            )
    _refuse_quantization(config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if heads < 1 or (config.values.get("head_dim") is None and hidden % heads):
        raise InputError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}",
            where=config.where,
        )
    head_dim = config.integer("head_dim", hidden // heads)
    context, notes = _context(config)
    return ModelConfig(
        architecture="llama",
        name=name,
        vocab_size=config.integer("vocab_size"),
        hidden=hidden,
        n_layers=config.integer("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=config.integer("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config, head_dim),
        context_length=context,
        tied_head=config.flag("tie_word_embeddings", False),
    ), notes


def _context(config: Config) -> tuple[int, tuple[str, ...]]:
    """The context within which sliding-window attention equals full attention."""
    context = config.integer("max_position_embeddings", 2048)
    window = config.integer("sliding_window", 0)
    if not 0 < window < context:
        return context, ()
    return window, (f"sliding-window attention: the context is limited to the window of {window}",)


def _scaling(config: Config) -> Config:
    """The RoPE settings, which newer files keep in `rope_parameters`."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise config.wrong(key, "an object")
        if value:
            return Config(value, f"{config.where}: {key}")
    return Config({}, config.where)


def _kind(scaling: Config) -> object:
    return scaling.values.get("rope_type", scaling.values.get("type", "default"))


def _rope(config: Config, head_dim: int) -> RopeConfig:
    scaling = _scaling(config)
    theta = scaling.number("rope_theta", config.number("rope_theta", 10000.0))
    kind = _kind(scaling)
    if kind == "linear":
        return RopeConfig(theta, head_dim, "linear", scaling.number("factor"))
    if kind in ("default", "llama3"):
        return RopeConfig(theta, head_dim)
    raise UnsupportedError(
        f"RoPE scaling {kind!r:.40} is not supported; default, linear and llama3 are",
        where=scaling.where,
    )


def rope_divisors(config: Config, rope: RopeConfig) -> npt.NDArray[np.float32] | None:
    """f32 [dim/2] by which llama3 scaling divides RoPE's frequencies, None for other kinds.

    Long wavelengths are divided by `factor`, short ones kept, those between blended
    (transformers `_compute_llama3_parameters`, llama.cpp's converter).
    """
    scaling = _scaling(config)
    if _kind(scaling) != "llama3":
        return None
    factor, low, high = (
        scaling.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    old = scaling.number(
        "original_max_position_embeddings", config.number("max_position_embeddings", 2048)
    )
    if factor < 1 or low <= 0 or high <= low or old <= 0:
        raise InputError(
            f"llama3 scaling with factor {factor}, low_freq_factor {low}, high_freq_factor "
            f"{high}, original_max_position_embeddings {old} makes no sense",
            where=scaling.where,
        )
    wave = 2 * np.pi / rope.frequencies()
    smooth = np.clip((old / wave - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
