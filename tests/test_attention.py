"""Attention alone: against its definition in float64, the NumPy machine, and itself cut up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_rig import Array, Heads, Step, arrays, built, lowered, random_step, reference
from cpu_rig import golden, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = {
    "one head a group": Heads(2, 2, 64, "f16"),
    "three heads a group": Heads(9, 3, 64, "f16"),
    "four heads a group": Heads(4, 1, 128, "f16"),
    "small heads": Heads(3, 1, 16, "i8"),
    "int8": Heads(9, 3, 64, "i8"),
    "int8, wide heads": Heads(4, 1, 128, "i8"),
    "f32": Heads(4, 2, 16, "f32"),
    "in halves": Heads(9, 3, 64, "f16", "f16"),
    "in parts": Heads(9, 3, 64, "i8", split=True),
    "in parts, wide heads": Heads(2, 1, 256, "f16", split=True),
    "in halves and parts": Heads(3, 1, 64, "f16", "f16", split=True),
}
TREE = (-1, 0, -1, 2, 0, 4, 3)
STEPS = {
    "first token": (1, 0, None),
    "short chain": (3, 5, None),
    "odd chain": (8, 37, None),
    "one token at a tile's end": (1, 15, None),
    "past a tile": (2, 127, None),
    "tree": (7, 21, TREE),
    "tree over tiles": (20, 121, (-1, *range(12), *range(7))),
    "widest": (64, 70, None),
    "parts": (3, 1149, None),
    "a tree past a part": (9, 635, (-1, -1, *range(7))),
}
ROUNDING, HALF = 2.0**-24, 2.0**-11


SPLIT_STEPS = ("first token", "parts", "a tree past a part")
"""Of sums in parts; others need no step so long, and are for what all attentions share."""
CASES = [
    (shape, step)
    for shape, heads in SHAPES.items()
    for step in STEPS
    if step == "first token" or heads.split == (step in SPLIT_STEPS)
]


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Heads:
    return SHAPES[request.param]


def run(shape: Heads, step: Step, *, tiles: int | None = None, workers: int = 1) -> Array:
    """f32 [m, heads, size] of the compiled code."""
    low = lowered(shape)
    given, tiles = arrays(low, step, tiles)
    sizes = low.sizes(len(step.q), step.length, tiles)
    return built(shape).run(given, sizes, workers)[low.out].reshape(step.q.shape)


def bound(shape: Heads, step: Step) -> float:
    """How far f32 may be from the definition.

    A score is a sum of `size` products of RMS 1, scaled: it is off by at most size * 2**-24 times
    its sum of magnitudes, `size * scale` on average and less than 6 times that. A power is off by
    as much relatively, and by its own 2**-21 (degree 5 polynomial). Weighted values, of magnitude
    at most `top`, sum in order over n positions: n * 2**-24 more, twice with the denominator.
    In halves queries, and so scores, are off by 2**-11 of that, and powers by as much again.
    """
    unit = HALF if shape.attention == "f16" else 0.0
    score = (shape.size * ROUNDING + unit) * 6 * shape.size * shape.scale
    count = step.length + len(step.q)
    top = float(np.abs(step.v).max())
    return top * (2 * score + 2.0**-20 + 2 * count * ROUNDING + unit)


@pytest.mark.parametrize(("name", "which"), CASES)
def test_equals_the_definition(name: str, which: str) -> None:
    shape, (m, length, parents) = SHAPES[name], STEPS[which]
    step = random_step(shape, m, length, 3, parents)
    out, expected = run(shape, step, workers=2), reference(shape, step)
    assert np.abs(expected).max() > 0.1
    assert np.abs(out - expected).max() <= bound(shape, step)


@pytest.mark.parametrize(("name", "which"), [c for c in CASES if c[1] != "widest"])
def test_equals_the_numpy_machine(name: str, which: str) -> None:
    """Bit for bit; the machine also finds reads of what was never written and races."""
    shape, (m, length, parents) = SHAPES[name], STEPS[which]
    step = random_step(shape, m, length, 4, parents)
    low = lowered(shape)
    given, tiles = arrays(low, step)
    sizes = low.sizes(m, length, tiles)
    expected = golden(low.plan, given, sizes, workers=3)[low.out]
    assert same_bits(run(shape, step), expected.reshape(step.q.shape))


def alone(step: Step, row: int) -> Step:
    """The row by itself: its ancestors are committed, in order."""
    seen = step.seen(row)
    return Step(step.q[row : row + 1], step.k[seen], step.v[seen], len(seen) - 1)


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, tuple[int, ...]]:
    """A committed length near the edges of tiles, and a tree after it."""
    length = draw(st.sampled_from([0, 1, 14, 15, 16, 17, 31, 126, 127, 128, 250, 635]))
    size = draw(st.integers(1, 24))
    parents = tuple(draw(st.integers(max(-1, row - 4), row - 1)) for row in range(size))
    return length, parents


@given(trees(), st.sampled_from(sorted(SHAPES)), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_rows_of_a_tree_are_rows_alone(
    case: tuple[int, tuple[int, ...]], name: str, workers: int
) -> None:
    """The same bits for a row alone, with any other rows, threads and room in the cache."""
    shape, (length, parents) = SHAPES[name], case
    step = random_step(shape, len(parents), length, len(parents), parents)
    together = run(shape, step, workers=workers, tiles=50)
    for row in range(len(parents)):
        assert same_bits(together[row : row + 1], run(shape, alone(step, row))), row


def test_a_tree_sees_its_own_branch_only(shape: Heads) -> None:
    """Other keys and values in a branch change that branch, and nothing else."""
    step = random_step(shape, 4, 19, parents=(-1, 0, -1, 2))
    k = step.k.copy()
    k[19 + 2] += 1
    before, after = run(shape, step), run(shape, replace(step, k=k))
    assert same_bits(before[:2], after[:2])
    assert not same_bits(before[2:3], after[2:3])
    assert not same_bits(before[3:], after[3:])
