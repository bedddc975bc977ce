"""Weights of a model -> the two constant arrays of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import lcm

import numpy as np
import numpy.typing as npt

from speccc.ir.frontends import Weight
from speccc.ir.packed import PANEL
from speccc.passes.weight_layout import MatrixSlot, WeightLayout
from speccc.runtime.aligned import aligned
from speccc.runtime.cores import cores

Report = Callable[[int, int], None]
RUN = 1 << 19
"""Bytes of panels that are packed at a time, so that what is between stays in a core's cache."""
_Run = tuple[MatrixSlot, int, int]
"""A matrix and which of its rows: from the first, up to the end."""


def pack_weights(
    layout: WeightLayout, weights: Mapping[str, Weight], report: Report | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Packed matrices u8 [matrix_bytes] and vectors f32 [vector_elements], on cache lines."""
    blob = aligned((max(layout.matrix_bytes, 64),), np.uint8)

    def pack(run: _Run) -> None:
        slot, first, end = run
        rows = rows_in_order(weights[slot.name], slot.group, first, end)
        part = replace(slot.matrix, rows=end - first)
        at = slot.offset + first // PANEL * part.panel_bytes
        blob[at : at + part.nbytes] = part.pack(rows)

    runs = [run for slot in layout.matrices for run in _runs(slot)]
    # NumPy gives the interpreter's lock back while it copies.
    with ThreadPoolExecutor(cores()) as pool:
        for done, _ in enumerate(pool.map(pack, runs)):
            if report is not None:
                report(done + 1, len(runs))
    vectors = aligned((max(layout.vector_elements, 64),), np.float32)
    for vector in layout.vectors:
        w = weights[vector.name]
        vectors[vector.offset : vector.offset + vector.size] = w.format.decode(w.raw, w.shape)
    return blob, vectors


def _runs(slot: MatrixSlot) -> Iterator[_Run]:
    """A matrix in runs of whole panels and groups."""
    unit = lcm(PANEL, slot.group or 1)
    step = max(1, RUN // (unit // PANEL * slot.matrix.panel_bytes)) * unit
    rows = slot.matrix.rows
    return ((slot, first, min(first + step, rows)) for first in range(0, rows, step))


def rows_in_order(
    w: Weight, group: int | None, first: int = 0, end: int | None = None
) -> npt.NDArray[np.uint8]:
    """The weight's bytes of rows `first` to `end`, whole groups: each evens first, then odds."""
    raw = np.ascontiguousarray(w.raw).reshape(w.shape[0], -1)[first:end]
    if group is None:
        return raw.reshape(-1)
    grouped = raw.reshape(-1, group, raw.shape[1])
    split = np.concatenate([grouped[:, 0::2], grouped[:, 1::2]], axis=1)
    return np.ascontiguousarray(split).reshape(-1)
