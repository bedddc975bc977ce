"""Geometry of the rows of one step: depth, ancestors, and what a caller may ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError

Ints = npt.NDArray[np.int32]


def chain(rows: int, width: int) -> tuple[Ints, Ints]:
    """Depth [rows] and ancestor rows by depth [rows, width] of rows that follow each other."""
    path = np.broadcast_to(np.arange(width, dtype=np.int32), (rows, width))
    return np.arange(rows, dtype=np.int32), np.ascontiguousarray(path)


def tree(parents: Sequence[int], width: int) -> tuple[Ints, Ints]:
    """The same for a tree; parents[r] < r, or -1 for the end of the context.

    InputError for a parent that is not an earlier row.
    """
    depth = np.zeros(len(parents), np.int32)
    path = np.zeros((len(parents), width), np.int32)
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise InputError(f"parents[{row}] is {parent}: give an earlier row, or -1")
        if parent >= 0:
            depth[row] = depth[parent] + 1
            path[row] = path[parent]
        path[row, depth[row]] = row
    return depth, path


def check_path(rows: Sequence[int], parents: Sequence[int]) -> None:
    """InputError unless `rows` runs from a root to a node, each the parent of the next."""
    before = -1
    for row in rows:
        if not 0 <= row < len(parents) or parents[row] != before:
            raise InputError(f"rows {list(rows)} are not one path of the last tree")
        before = row
