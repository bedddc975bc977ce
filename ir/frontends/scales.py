"""Factors that model files keep in tensors of their own -> rows of weights with a factor each.

`X.weight_scale` (compressed-tensors, modelopt) or `X.weight_scale_inv` beside FP8 weights is what
to multiply `X.weight` by, despite the second name; `X.scale` is the same beside NVFP4 in GGUF.
Scales of activations are not used: activations get their own by row when they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.ir.formats import E4M3_, FP8, NVFP4, NVFP4_ROWS, Format
from speccc.ir.frontends.source import Weight

WEIGHT = ".weight"
FACTORS = (".weight_scale", ".weight_scale_inv", ".scale")
ACTIVATIONS = ".input_scale"
SCALED: dict[Format, Format] = {E4M3_: FP8, NVFP4: NVFP4_ROWS}
"""What weights of a format become with a factor for each row."""


def is_scale(name: str) -> bool:
    """Whether a tensor holds factors."""
    return name.endswith((*FACTORS, ACTIVATIONS))


def with_scales(
    weights: Mapping[str, Weight], where: str
) -> tuple[dict[str, Weight], tuple[str, ...]]:
    """The weights without the tensors of factors, which are in their rows now; and notes.

    UnsupportedError for a factor without its weight, or one that speccc cannot apply.
    """
    out = {name: w for name, w in weights.items() if not is_scale(name)}
    found: dict[str, Weight] = {}
    for name, w in weights.items():
        suffix = next((s for s in FACTORS if name.endswith(s)), None)
        if suffix is None:
            continue
        of = name.removesuffix(suffix) + WEIGHT
        if of not in out or out[of].format not in SCALED or of in found:
            raise UnsupportedError(
                f"tensor {name:.80} scales no weight that is FP8 or NVFP4", where=where
            )
        found[of] = w
    for name, w in list(out.items()):
        if name in found or w.format is E4M3_:
            out[name] = _scaled(w, found.get(name), where)
    unused = sum(name.endswith(ACTIVATIONS) for name in weights)
    note = f"{unused} scales of activations are not used: activations are quantized as they come"
    return out, (note,) if unused else ()


def _scaled(w: Weight, scale: Weight | None, where: str) -> Weight:
    rows = w.shape[0] if len(w.shape) > 1 else 1
    factors = np.ones(1, np.float32) if scale is None else _factors(scale, rows, where)
    fmt = SCALED[w.format]
    raw = fmt.with_factors(w.raw, np.broadcast_to(factors, rows))
    return replace(w, format=fmt, raw=raw.reshape(-1))


def _factors(scale: Weight, rows: int, where: str) -> npt.NDArray[np.float32]:
    """f32 [1] or [rows]."""
    if not scale.format.plain or scale.shape not in ((), (1,), (1, 1), (rows,), (rows, 1)):
        raise UnsupportedError(
            f"tensor {scale.name:.80} is {scale.format}{list(scale.shape)}; one factor for the "
            f"tensor or one for each of {rows} rows is supported, in f32, f16 or bf16",
            where=where,
        )
    return scale.format.decode(scale.raw, (scale.raw.size // scale.format.nbytes,))
