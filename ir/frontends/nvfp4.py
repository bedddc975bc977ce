"""NVFP4 as safetensors keep it -> blocks and a factor, as GGUF does.

| | codes u8 [n, k/2] | scales e4m3 [n, k/16] | factor f32, of the tensor |
|---|---|---|---|
| modelopt | `X.weight` | `X.weight_scale` | times `X.weight_scale_2` |
| compressed-tensors | `X.weight_packed` | `X.weight_scale` | divided by `X.weight_global_scale` |

An element is e2m1(code) * scale * factor; a byte's low nibble is the first of its two columns
(NVIDIA/Model-Optimizer `qtensor/nvfp4_tensor.py`, neuralmagic/compressed-tensors
`nvfp4_quantized.py`, vLLM `compressed_tensors_w4a4_nvfp4.py`: read 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import E4M3_, F32_, NVFP4, PAIRS
from speccc.ir.frontends.source import Weight

Bytes = npt.NDArray[np.uint8]

CODES = (".weight_packed", ".weight")
SCALES = ".weight_scale"
TIMES, DIVIDED = ".weight_scale_2", ".weight_global_scale"
GROUP, BLOCK = NVFP4.group, NVFP4.block


def as_blocks(weights: Mapping[str, Weight], where: str) -> dict[str, Weight]:
    """The weights with `X.weight` of NVFP4 and `X.scale` (f32 [1]) for each that is kept as above.

    UnsupportedError for codes whose scales are missing or of another shape; InputError for a
    negative scale.
    """
    out = dict(weights)
    for name, w in weights.items():
        if w.format is PAIRS and name.endswith(CODES):
            stem = name.rpartition(".")[0]
            del out[name]
            out[f"{stem}.weight"], out[f"{stem}.scale"] = _weight(w, stem, out, where)
    return out


def _weight(w: Weight, stem: str, others: dict[str, Weight], where: str) -> tuple[Weight, Weight]:
    """The weight and its factor, whose parts are taken from the others."""
    scale, factor = others.pop(stem + SCALES, None), _factor(stem, others)
    n, k = w.shape[0], 2 * w.shape[-1]
    kept = scale is not None and scale.format is E4M3_ and scale.shape == (n, k // GROUP)
    if len(w.shape) != 2 or k % BLOCK or not kept or scale is None or factor is None:
        raise UnsupportedError(
            f"tensor {w.name:.80} is U8{list(w.shape)}: as NVFP4 it needs rows of a multiple of "
            f"{BLOCK // 2} bytes, {stem}{SCALES} of F8_E4M3 [rows, bytes / {GROUP // 2}], and one "
            f"number in {stem}{TIMES} or {stem}{DIVIDED}",
            where=where,
        )
    scales = scale.raw.reshape(n, k // BLOCK, BLOCK // GROUP)
    if (scales & 0x80).any():
        raise InputError(f"tensor {scale.name:.80} holds a negative scale", where=where)
    raw = np.concatenate([scales, _codes(w.raw.reshape(n, k // BLOCK, BLOCK // 2))], axis=2)
    return (
        Weight(f"{stem}.weight", (n, k), NVFP4, raw.reshape(-1)),
        Weight(f"{stem}.scale", (1,), F32_, factor.view(np.uint8)),
    )


def _factor(stem: str, others: dict[str, Weight]) -> npt.NDArray[np.float32] | None:
    """f32 [1]; None unless there is exactly one, of one f32."""
    times, divided = (others.pop(stem + suffix, None) for suffix in (TIMES, DIVIDED))
    found = times if divided is None else divided
    if found is None or (times is not None and divided is not None):
        return None
    if found.format is not F32_ or found.raw.size != F32_.nbytes:
        return None
    value = F32_.decode(found.raw, (1,))
    with np.errstate(divide="ignore"):
        return value if divided is None else np.float32(1) / value


def _codes(pairs: Bytes) -> Bytes:
    """Two neighbours in a byte -> column c of each 16 with column c + 8: both u8 [..., 32]."""
    columns = np.stack([pairs & 0xF, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1, 2, 8)
    joined: Bytes = columns[..., 0, :] | (columns[..., 1, :] << np.uint8(4))
    return joined.reshape(pairs.shape)
