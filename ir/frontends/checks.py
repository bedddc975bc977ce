"""Checks every frontend applies: a sane configuration and exactly the weights it implies."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from speccc.errors import InputError, UnsupportedError
from speccc.ir.frontends.source import ROPE_FREQS, ModelConfig, Weight, expected_shapes

# Larger than any published model; they keep products of sizes far from overflow.
SIZE_LIMITS = {
    "vocab_size": 1 << 22,
    "hidden": 1 << 17,
    "n_layers": 1 << 10,
    "n_heads": 1 << 12,
    "n_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "ffn": 1 << 19,
    "context_length": 1 << 26,
}

SQUARES = math.sqrt(float(np.finfo(np.float32).max))
"""A row of k normalised activations sums to at most k, so weights beyond this by k can make an
element that the next norm, or a product of query and key, squares beyond f32."""


def check_config(config: ModelConfig, where: str) -> None:
    """InputError naming the field when a value is absurd or fields contradict each other."""
    for field, limit in SIZE_LIMITS.items():
        value = getattr(config, field)
        if not 1 <= value <= limit:
            raise InputError(f"{field} is {value}; it must be within 1..{limit}", where=where)
    if config.n_heads % config.n_kv_heads:
        raise InputError(
            f"{config.n_heads} attention heads are not a multiple of "
            f"{config.n_kv_heads} key/value heads",
            where=where,
        )
    if not (math.isfinite(config.norm_eps) and 0 < config.norm_eps < 1):
        raise InputError(f"RMSNorm epsilon is {config.norm_eps}, not within 0..1", where=where)
    _check_rope(config, where)
    for token in [*config.eos_ids, *([] if config.bos_id is None else [config.bos_id])]:
        if not 0 <= token < config.vocab_size:
            raise InputError(
                f"special token id {token} is not below the vocabulary of {config.vocab_size}",
                where=where,
            )


def _check_rope(config: ModelConfig, where: str) -> None:
    rope = config.rope
    if not (math.isfinite(rope.theta) and rope.theta > 0):
        raise InputError(f"RoPE base is {rope.theta}; it must be positive", where=where)
    if not (math.isfinite(rope.factor) and rope.factor > 0):
        raise InputError(f"RoPE scaling factor is {rope.factor}; it must be positive", where=where)
    if rope.dim != config.head_dim or rope.dim % 2:
        raise UnsupportedError(
            f"RoPE covers {rope.dim} of {config.head_dim} elements of a head; "
            "only whole heads of even size are supported",
            where=where,
        )


def check_weights(config: ModelConfig, weights: dict[str, Weight], where: str) -> tuple[str, ...]:
    """Notes; InputError naming what is missing, unexpected, misshapen or not finite."""
    expected = expected_shapes(config)
    optional = {ROPE_FREQS: (config.rope.dim // 2,)}
    missing = [name for name in expected if name not in weights]
    if missing:
        raise InputError(f"lacks {_listed(missing, 'tensor')}", where=where)
    extra = [name for name in weights if name not in expected and name not in optional]
    if extra:
        raise UnsupportedError(
            f"holds {_listed(extra, 'tensor')} that a {config.architecture} model "
            f"of {config.n_layers} layers does not use",
            where=where,
        )
    for name, weight in weights.items():
        shape = expected.get(name) or optional[name]
        if weight.shape != shape:
            raise InputError(
                f"tensor {name} is {list(weight.shape)}, but the configuration "
                f"implies {list(shape)}",
                where=where,
            )
        if len(shape) == 1 and not weight.format.plain:
            raise UnsupportedError(
                f"tensor {name} is {weight.format}; vectors must be f32, f16 or bf16", where=where
            )
    notes = check_sizes(weights.values(), where)
    if ROPE_FREQS in weights and weights[ROPE_FREQS].decode().min() <= 0:
        raise InputError(f"tensor {ROPE_FREQS} holds a divisor that is not positive", where=where)
    return notes


def check_sizes(weights: Iterable[Weight], where: str) -> tuple[str, ...]:
    """A note for each tensor with elements of which f32 has no squares of sums.

    InputError naming the first tensor that holds a NaN or infinite value or scale.
    """
    notes = []
    for weight in weights:
        largest = weight.format.bound(weight.raw, weight.shape)
        what = "scale" if weight.format.quantized else "value"
        most = SQUARES / weight.shape[-1]
        if not weight.format.plain and most < largest < math.inf:  # it may be less, or infinite
            largest, what = float(np.abs(weight.decode()).max()), "value"
        if not math.isfinite(largest):
            raise InputError(
                f"tensor {weight.name} holds a NaN or infinite {what}; convert the model again",
                where=where,
            )
        if largest > most:
            notes.append(
                f"tensor {weight.name} holds values up to {largest:.0e}: beyond {most:.0e} what "
                "they are multiplied by overflows f32, and logits may be NaN or all equal"
            )
    return tuple(notes)


def _listed(names: list[str], noun: str) -> str:
    shown = ", ".join(names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{noun}{'s' if len(names) > 1 else ''} {shown}{more}"
