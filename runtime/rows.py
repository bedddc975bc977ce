"""Geometry of the rows of one step: depth, ancestors, and what a caller may ask for."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError

Ints = npt.NDArray[np.int32]
Splits = Mapping[int, tuple[int, ...]]
"""Rows of a chain -> widths of the passes that run them; absent: one pass of as many rows.

The widths add up to the rows or more, and what is more belongs to the last pass.
"""


def whole_numbers(values: Any, what: str) -> npt.NDArray[np.int64]:
    """A flat sequence of integers as an array; InputError, naming `what`, for anything else."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):  # rows of unequal length
        found = np.zeros((), np.object_)
    if found.ndim != 1:
        raise InputError(f"{what}: give a flat list of whole numbers, not {_shown(values)}")
    if found.dtype.kind == "i":
        return found.astype(np.int64, copy=False)
    numbers = [whole_number(value, what) for value in values]
    huge = [n for n in numbers if not -(2**63) <= n < 2**63]
    if huge:
        raise InputError(f"{what}: {_shown(huge[0])} is out of range")
    return np.asarray(numbers, np.int64)


def whole_number(value: Any, what: str) -> int:
    """An integer of any type; InputError, naming `what`, for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what}: give whole numbers, not {_shown(value)}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def chain(rows: int, width: int) -> tuple[Ints, Ints]:
    """Depth [rows] and ancestor rows by depth [rows, width] of rows that follow each other."""
    path = np.broadcast_to(np.arange(width, dtype=np.int32), (rows, width))
    return np.arange(rows, dtype=np.int32), np.ascontiguousarray(path)


def passes(rows: int, limit: int, splits: Splits) -> list[tuple[int, int]]:
    """(rows, width) of each pass that runs a chain of any length, each at most `limit` wide.

    Only the last pass of a split has a width to spare; the next one starts where its rows end.
    """
    out: list[tuple[int, int]] = []
    for start in range(0, rows, limit):
        left = min(limit, rows - start)
        for width in splits.get(left, (left,)):
            taken = min(width, left)
            out.append((taken, width))
            left -= taken
    return out


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
    for row in whole_numbers(rows, "rows"):
        if not 0 <= row < len(parents) or parents[row] != before:
            raise InputError(f"rows {list(rows)} are not one path of the last tree")
        before = row
