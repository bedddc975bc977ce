"""Weights of a model in another format, chosen when it is compiled.

The matrices of layers change. The embedding and the head are read row by row or decide the token,
and stay as they are stored; beside 4-bit formats floats of theirs become q8_0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import BF16_, F16_, FP8, MXFP4, NVFP4_ROWS, Q4_0, Q4_1, Q8_0, Format
from speccc.ir.frontends import EMBEDDING, HEAD, ModelSource, Weight
from speccc.runtime.cores import cores

WEIGHTS: dict[str, Format] = {
    "q4_0": Q4_0,
    "q4_1": Q4_1,
    "q8_0": Q8_0,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4_ROWS,
    "fp8": FP8,
    "f16": F16_,
    "bf16": BF16_,
}
"""The formats to choose from; those whose scales reach less far than weights do have a factor for
each row."""


def requantized(
    source: ModelSource, name: str, report: Callable[[int, int], None] | None = None
) -> ModelSource:
    """The model with its matrices in the named format of `WEIGHTS`.

    UnsupportedError for another name; InputError names a tensor the format cannot hold.
    """
    if name not in WEIGHTS:
        raise UnsupportedError(f"choose one of {', '.join(WEIGHTS)}", where=f"--weights {name}")
    where, given = str(source.path), list(source.weights.values())
    with ThreadPoolExecutor(cores()) as pool:
        out: dict[str, Weight] = {}
        for w in pool.map(lambda w: _again(w, WEIGHTS[name], where), given):
            out[w.name] = w
            if report is not None:
                report(len(out), len(given))
    return replace(source, weights=out)


def _again(w: Weight, fmt: Format, where: str) -> Weight:
    to = _format(w, fmt)
    if to is w.format:
        return w
    name = to.name.removesuffix("_rows")
    if w.shape[-1] % to.block:
        raise InputError(
            f"tensor {w.name} has rows of {w.shape[-1]}, not a multiple of {to.block}: "
            f"choose other --weights than {name}",
            where=where,
        )
    try:
        raw = to.encode(w.decode()).reshape(-1)
        if to.plain and not math.isfinite(to.bound(raw, w.shape)):
            raise ValueError(f"{to.name}: a value is beyond its range")
        return replace(w, format=to, raw=raw)
    except ValueError as error:
        reason = str(error).removeprefix(f"{to.name}: ")
        raise InputError(
            f"tensor {w.name} cannot be stored as {name}: {reason}; choose other --weights",
            where=where,
        ) from None


def _format(w: Weight, fmt: Format) -> Format:
    """What the tensor is stored as when the layers' matrices are `fmt`."""
    if len(w.shape) == 1:
        return w.format
    if w.name in (EMBEDDING, HEAD):
        return Q8_0 if w.format.plain and fmt.code_bits == 4 else w.format
    return fmt
