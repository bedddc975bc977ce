"""Weights of a model -> the two constant arrays of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from speccc.ir.frontends import Weight
from speccc.passes.weight_layout import MatrixSlot, WeightLayout
from speccc.runtime.aligned import aligned
from speccc.runtime.cores import cores

Report = Callable[[int, int], None]


def pack_weights(
    layout: WeightLayout, weights: Mapping[str, Weight], report: Report | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Packed matrices u8 [matrix_bytes] and vectors f32 [vector_elements], on cache lines."""
    blob = aligned((max(layout.matrix_bytes, 64),), np.uint8)

    def pack(slot: MatrixSlot) -> None:
        raw = rows_in_order(slot, weights[slot.name])
        blob[slot.offset : slot.offset + slot.matrix.nbytes] = slot.matrix.pack(raw)

    # NumPy gives the interpreter's lock back while it copies.
    with ThreadPoolExecutor(cores()) as pool:
        for done, _ in enumerate(pool.map(pack, layout.matrices)):
            if report is not None:
                report(done + 1, len(layout.matrices))
    vectors = aligned((max(layout.vector_elements, 64),), np.float32)
    for vector in layout.vectors:
        w = weights[vector.name]
        vectors[vector.offset : vector.offset + vector.size] = w.format.decode(w.raw, w.shape)
    return blob, vectors


def rows_in_order(slot: MatrixSlot, w: Weight) -> npt.NDArray[np.uint8]:
    """The weight's bytes; where the slot asks for it, each group of rows evens first, then odds."""
    raw = np.ascontiguousarray(w.raw).reshape(w.shape[0], -1)
    if slot.group is None:
        return raw.reshape(-1)
    grouped = raw.reshape(-1, slot.group, raw.shape[1])
    split = np.concatenate([grouped[:, 0::2], grouped[:, 1::2]], axis=1)
    return np.ascontiguousarray(split).reshape(-1)
