"""Factors that model files keep in tensors of their own -> rows of weights with a factor each.

`X.weight_scale` (compressed-tensors, modelopt) or `X.weight_scale_inv` beside FP8 weights is what
to multiply `X.weight` by, despite the second name; `X.scale` is the same beside NVFP4 in GGUF.
Scales of activations are not used: activations get their own by row when they are computed. Those
of an FP8 cache are not either: speccc chooses the cache's format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.ir.formats import BF16_, E4M3_, F16_, F32_, FP8, NVFP4, NVFP4_ROWS, Format
from speccc.ir.frontends.nvfp4 import DIVIDED, TIMES, as_blocks
from speccc.ir.frontends.source import Weight

WEIGHT = ".weight"
FACTORS = (".weight_scale", ".weight_scale_inv", ".scale")
UNUSED = {
    (".input_scale", ".input_global_scale"): (
        "scales of activations are not used: activations are quantized as they come"
    ),
    (".k_scale", ".v_scale"): "scales of the cache are not used: --kv chooses its format",
}
"""Scales that are left out, with what a note says of them."""
LEFT_OUT = tuple(suffix for suffixes in UNUSED for suffix in suffixes)
SCALED: dict[Format, Format] = {E4M3_: FP8, NVFP4: NVFP4_ROWS}
"""What weights of a format become with a factor for each row."""


def is_scale(name: str) -> bool:
    """Whether a tensor holds factors."""
    return name.endswith((*FACTORS, TIMES, DIVIDED, *LEFT_OUT))


def with_scales(
    weights: Mapping[str, Weight], where: str
) -> tuple[dict[str, Weight], tuple[str, ...]]:
    """The weights without the tensors of factors, which are in their rows now; and notes.

    UnsupportedError for a factor without its weight, or one that speccc cannot apply.
    """
    weights = as_blocks(weights, where)
    out = {name: w for name, w in weights.items() if not is_scale(name)}
    found: dict[str, Weight] = {}
    for name, w in weights.items():
        suffix = next((s for s in (*FACTORS, TIMES, DIVIDED) if name.endswith(s)), None)
        if suffix is None:
            continue
        of = name.removesuffix(suffix) + WEIGHT
        fits = suffix in FACTORS and of in out and out[of].format in SCALED
        if not fits or of in found:
            raise UnsupportedError(
                f"tensor {name:.80} scales no weight that is FP8 or NVFP4", where=where
            )
        found[of] = w
    for name, w in list(out.items()):
        if name in found or w.format is E4M3_:
            out[name] = _scaled(w, found.get(name), where)
    left = [(sum(name.endswith(ends) for name in weights), why) for ends, why in UNUSED.items()]
    return out, tuple(f"{n} {why}" for n, why in left if n)


def _scaled(w: Weight, scale: Weight | None, where: str) -> Weight:
    rows = w.shape[0] if len(w.shape) > 1 else 1
    factors = np.ones(1, np.float32) if scale is None else _factors(scale, rows, where)
    fmt = SCALED[w.format]
    raw = fmt.with_factors(w.raw, np.broadcast_to(factors, rows))
    return replace(w, format=fmt, raw=raw.reshape(-1))


def _factors(scale: Weight, rows: int, where: str) -> npt.NDArray[np.float32]:
    """f32 [1] or [rows]."""
    floats = scale.format in (F32_, F16_, BF16_)
    if not floats or scale.shape not in ((), (1,), (1, 1), (rows,), (rows, 1)):
        raise UnsupportedError(
            f"tensor {scale.name:.80} is {scale.format}{list(scale.shape)}; one factor for the "
            f"tensor or one for each of {rows} rows is supported, in f32, f16 or bf16",
            where=where,
        )
    return scale.format.decode(scale.raw, (scale.raw.size // scale.format.nbytes,))
