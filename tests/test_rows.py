"""How a chain of any length is cut into passes."""

from __future__ import annotations

import itertools

import numpy as np
from cpu_rig import Spec, compiled
from hypothesis import given
from hypothesis import strategies as st
from models import Tiny

from speccc.runtime.rows import Splits, passes


@st.composite
def split_of(draw: st.DrawFn, rows: int) -> tuple[int, ...]:
    """Widths for some rows, of which only the last may be more than what is left."""
    widths: list[int] = []
    while sum(widths) < rows:
        widths.append(draw(st.integers(1, rows + 3)))
    return tuple(widths)


@st.composite
def limits(draw: st.DrawFn) -> tuple[int, Splits]:
    """A widest pass and the splits of some numbers of rows up to it."""
    limit = draw(st.integers(1, 12))
    dear = draw(st.sets(st.integers(1, limit)))
    return limit, {rows: draw(split_of(rows)) for rows in dear}


@given(st.integers(0, 60), limits())
def test_every_row_runs_once(rows: int, known: tuple[int, Splits]) -> None:
    limit, splits = known
    cut = passes(rows, limit, splits)
    assert sum(taken for taken, _ in cut) == rows
    assert all(1 <= taken <= width for taken, width in cut)
    ends = set(itertools.accumulate(taken for taken, _ in cut))
    assert set(range(limit, rows, limit)) <= ends, "a step's rows are not those of the next"


def test_a_split_with_spare_rows_several_times_over() -> None:
    """The widest step as eleven passes of six, two rows of which are thrown away, twice."""
    model = compiled(Spec(Tiny(layers=2, hidden=32, heads=2, kv_heads=1, ffn=32), "f32"))
    tokens = [n % 250 for n in range(140)]
    whole, cut = model.session(context=160), model.session(context=160)
    cut.splits = {64: (6,) * 11, 12: (7, 7)}
    expected, found = whole.forward(tokens), cut.forward(tokens)
    assert cut.length == len(tokens)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    np.testing.assert_array_equal(cut.forward([1]), whole.forward([1]))
