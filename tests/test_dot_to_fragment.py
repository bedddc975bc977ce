"""Corners of the lowering to fragment level that the proof program does not reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fragment_rig import golden, interpreted, lowered, s8
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proof_program import proof_program
from tile_gen import SIZES, Program, dots, elementwise, matmuls, reductions

from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.formats import FORMATS
from speccc.ir.fragment import Barrier, FoldRows, walk
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Mem,
    Red,
    Reduce,
    RowTiles,
    Stmt,
)
from speccc.ir.types import F32, I32
from speccc.passes.clip_rows import clip_rows
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.scaled_dot_to_fragment import code_shift

ROWS = 4
ZERO = ex.lit(0)
Tile = Callable[[Var, Buf, Buf], tuple[Stmt, ...]]
"""(first row, the tile, the matrix) -> what is done after the tile was filled."""


def test_codes_too_wide_for_i8_are_put_right_by_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes 0..255 with no zero point: 128 is taken off each, and given back 128 times the sum."""
    monkeypatch.setitem(FORMATS, "q8_0", replace(FORMATS["q8_0"], zero_point=0))
    p = proof_program(64, 32, "q8_0")
    assert code_shift(p.w) == 128
    for shape in (s8(8, 8, 8), s8(16, 8, 16)):
        y = interpreted(p, lowered(p.kernel, shape), 3)
        np.testing.assert_array_equal(y, golden(p, 3))
        assert np.abs(y).max() > 1


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("k", [8, 16, 32, None])
def test_levels_and_groups_of_columns(fmt: str, k: int | None) -> None:
    """Groups wider and narrower than the instruction, more rows than it takes, and dots of four."""
    p = proof_program(128, 48, fmt)
    kernel = lowered(p.kernel, s8(8, 8, k)) if k else DotToFragment(None, 8).run(p.kernel)
    verify_fragment(kernel)
    for m in (1, 9):
        y = interpreted(p, kernel, m)
        np.testing.assert_array_equal(y, golden(p, m))
        assert np.abs(y).max() > 1


def test_a_dot_goes_on_from_what_its_tile_holds() -> None:
    """Two dots over halves of k are one dot over k, in one order."""
    a, b = Buf("a", (ROWS, 40), F32), Buf("b", (40, LANES), F32)
    y, acc = Buf("y", (ROWS, LANES), F32), Buf("acc", (ROWS, LANES), F32, Mem.TILE)
    i, j, k, r, c = (Var(n) for n in "ijkrc")
    axes = (Axis(r, ROWS), Axis(c, LANES))
    body: list[Stmt] = [Alloc(acc), Map(acc, (r, c), axes, ex.lit(0.5, F32))]
    body += [Dot(acc, i, j, k, lo, hi, Load(a, (i, k)), Load(b, (k, j))) for lo, hi in PARTS]
    body.append(Map(y, (r, c), axes, Load(acc, (r, c))))
    kernel = Kernel("halves", (a, b, y), (), tuple(body))
    rng = np.random.default_rng(1)
    bufs = {x: rng.standard_normal([int(n) for n in x.shape]).astype(np.float32) for x in (a, b, y)}
    other = {x: v.copy() for x, v in bufs.items()}
    run_kernel(kernel, bufs, {})
    run_fragment_kernel(lowered(kernel), other, {})
    np.testing.assert_array_equal(other[y], bufs[y])


PARTS = ((0, 17), (17, 40))


@pytest.mark.parametrize("where", ["at once", "in a loop", "twice", "half zeroed"])
def test_rows_in_registers_begin_with_zeros_only(where: str) -> None:
    """y = a @ b row tile by row tile; only a dot right after its tile was zeroed starts anew."""
    m, row = Var("m"), Var("row")
    a, b, y = Buf("a", (m, 12), F32), Buf("b", (12, LANES), F32), Buf("y", (m, LANES), F32)
    variants = []
    for width in (ROWS, 1):
        acc = Buf("acc", (width, LANES), F32, Mem.TILE)
        i, j, k, r, c, n, u, v = (Var(n) for n in "ijkrcnuv")
        dot = Dot(acc, i, j, k, 0, 12, Load(a, (ex.add(row, i), k)), Load(b, (k, j)))
        axes = (Axis(r, width), Axis(c, LANES))
        zero = Map(acc, (r, c), axes, ex.lit(0.0, F32))
        one = Map(acc, (u, ex.add(v, 8)), (Axis(u, width), Axis(v, 8)), ex.lit(1.0, F32))
        dots: tuple[Stmt, ...] = {
            "at once": (dot,),
            "in a loop": (For(n, 0, 2, (dot,)),),
            "twice": (dot, dot),
            "half zeroed": (one, dot),
        }[where]
        x, z = Var("x"), Var("z")
        out = Map(y, (ex.add(row, x), z), (Axis(x, width), Axis(z, LANES)), Load(acc, (x, z)))
        variants.append((width, (Alloc(acc), zero, *dots, out)))
    kernel = Kernel("rows", (a, b, y), (m,), (RowTiles(row, m, tuple(variants)),))
    fragment = lowered(kernel)
    folds = sum(isinstance(s, FoldRows) for s in walk(fragment.body))
    assert folds == (1 if where in ("at once", "twice") else 0)
    rng = np.random.default_rng(1)
    for rows in (1, 3, 9):
        shapes = {a: (rows, 12), b: (12, LANES), y: (rows, LANES)}
        bufs = {x: rng.standard_normal(s).astype(np.float32) for x, s in shapes.items()}
        other = {x: v.copy() for x, v in bufs.items()}
        run_kernel(kernel, bufs, {m: rows})
        run_fragment_kernel(fragment, other, {m: rows})
        np.testing.assert_array_equal(other[y], bufs[y])


def same_as_block_level(kernel: Kernel, *sizes: int) -> tuple[Stmt, ...]:
    """Runs a kernel of f32 buffers at both levels; the statements at fragment level."""
    fragment = lowered(kernel)
    verify_fragment(fragment)
    for size in sizes or (0,):
        known = {v: size for v in kernel.scalars}
        shapes = {b: [known.get(n, n) for n in b.shape] for b in kernel.bufs}  # type: ignore[call-overload]
        rng = np.random.default_rng(size)
        bufs = {b: rng.standard_normal(s).astype(np.float32) for b, s in shapes.items()}
        other = {b: v.copy() for b, v in bufs.items()}
        run_kernel(kernel, bufs, known)
        run_fragment_kernel(fragment, other, known)
        for b in kernel.bufs:
            np.testing.assert_array_equal(other[b], bufs[b])
    return tuple(walk(fragment.body))


@pytest.mark.parametrize("red", list(Red))
def test_reductions_of_a_loop_are_done_side_by_side(red: Red) -> None:
    """Eight at a time, two barriers each time, however many trips the loop has."""
    n, b, t, c, d = (Var(v) for v in "nbtcd")
    x, y, z = Buf("x", (n, 40), F32), Buf("y", (n,), F32), Buf("z", (280,), F32)
    value = ex.mul(Load(x, (b, t)), Load(x, (b, t)))
    place = ex.add(ex.mul(c, 40), d)
    copy = Map(z, (place,), (Axis(d, 40),), ex.add(Load(x, (c, d)), 1.0))
    reduce = Reduce(y, (b,), Axis(t, 40), red, value)
    kernel = Kernel("loops", (x, y), (n,), (For(b, 0, n, (reduce,)),))
    found = same_as_block_level(kernel, 1, 8, 9, 40)
    assert sum(isinstance(s, For) for s in found) == 1
    assert sum(isinstance(s, Barrier) for s in found) == 2
    copies = Kernel("maps", (x, z), (n,), (For(c, 0, n, (copy,)),))
    assert not any(isinstance(s, (For, Barrier)) for s in same_as_block_level(copies, 7))


@pytest.mark.parametrize(
    "what", ["reads its own", "ends by its own", "overlaps", "grows", "begins later", "has two"]
)
def test_trips_that_depend_on_each_other_stay_in_order(what: str) -> None:
    x, y = Buf("x", (64,), F32), Buf("y", (64,), F32)
    b, t = Var("b"), Var("t")
    place = ex.add(ex.mul(b, 2 if what == "overlaps" else 4), t)
    extent = ex.add(b, 1) if what == "grows" else 4
    value = Load(y, (ex.sub(63, place),)) if what == "reads its own" else Load(x, (place,))
    one = Map(y, (place,), (Axis(t, extent),), ex.add(value, ex.cast(b, F32)))
    body = (one, replace(one, dst=x)) if what == "has two" else (one,)
    end: int | ex.Expr = 4 if what == "grows" else 16
    if what == "ends by its own":
        end = ex.select(ex.lt(Load(y, (ZERO,)), 0.0), ex.lit(8), 16)
    loop = For(b, 1 if what == "begins later" else 0, end, body)
    found = same_as_block_level(Kernel("trips", (x, y), (), (loop,)))
    assert any(isinstance(s, For) for s in found)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 50])
@pytest.mark.parametrize("red", list(Red))
def test_reductions_keep_their_order(red: Red, size: int) -> None:
    x, y = Buf("x", (50,), F32), Buf("y", (2,), F32)
    r, s = Var("r"), Var("s")
    square = ex.mul(Load(x, (s,)), Load(x, (s,)))
    body = (
        Reduce(y, (ZERO,), Axis(r, size), red, Load(x, (r,))),
        Reduce(y, (ex.lit(1),), Axis(s, size), red, square),
    )
    kernel = Kernel("reduce", (x, y), (), body)
    values = np.random.default_rng(size).standard_normal(50).astype(np.float32)
    bufs, other = ({x: values, y: np.zeros(2, np.float32)} for _ in range(2))
    run_kernel(kernel, bufs, {})
    run_fragment_kernel(lowered(kernel), other, {})
    np.testing.assert_array_equal(other[y], bufs[y])


def row_kernel(tile: Tile) -> tuple[Kernel, RowTiles, Buf, Var]:
    """y[m, 16] row tile by row tile: a TILE is set to the row's number, then `tile` writes y."""
    m, row = Var("m"), Var("row")
    y = Buf("y", (m, LANES), I32)
    variants = []
    for width in (ROWS, 2, 1):
        held = Buf("held", (width, LANES), I32, Mem.TILE)
        i, j = Var("i"), Var("j")
        number = ex.cast(ex.add(row, i), I32)
        fill = Map(held, (i, j), (Axis(i, width), Axis(j, LANES)), number)
        variants.append((width, (Alloc(held), fill, *tile(row, held, y))))
    tiles = RowTiles(row, m, tuple(variants))
    return Kernel("rows", (y,), (m,), (tiles,)), tiles, y, m


def run_rows(tile: Tile) -> bool:
    """Whether rows were cut short; the result equals the block level either way."""
    kernel, tiles, y, m = row_kernel(tile)
    fragment = lowered(kernel)
    verify_fragment(fragment)
    for rows in (1, 4, 7):
        want, got = (np.zeros((rows, LANES), np.int32) for _ in range(2))
        run_kernel(kernel, {y: want}, {m: rows})
        run_fragment_kernel(fragment, {y: got}, {m: rows})
        np.testing.assert_array_equal(got, want)
        assert want[-1, 0] == rows - 1
    return clip_rows(tiles, 8) is not None


def height(buf: Buf) -> int:
    return int(buf.shape[0])  # type: ignore[arg-type]  # a TILE


def by_axis(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    i, j = Var("i"), Var("j")
    axes = (Axis(i, height(held)), Axis(j, LANES))
    return (Map(y, (ex.add(row, i), j), axes, Load(held, (i, j))),)


def by_loop(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    """A loop over the rows: its index is no axis that could be cut."""
    i, j = Var("i"), Var("j")
    copy = Map(y, (ex.add(row, i), j), (Axis(j, LANES),), Load(held, (i, j)))
    return (For(i, 0, height(held), (copy,)),)


def by_number(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    """Each row by its number; a partly empty tile has no row of that number."""
    j = Var("j")
    return tuple(
        Map(y, (ex.add(row, n), j), (Axis(j, LANES),), Load(held, (ex.lit(n), j)))
        for n in range(height(held))
    )


def by_halves(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    """Two axes, each shorter than the tile."""
    out: list[Stmt] = []
    half = max(1, height(held) // 2)
    for first in range(0, height(held), half):
        i, j = Var("i"), Var("j")
        at = ex.add(i, first)
        axes = (Axis(i, half), Axis(j, LANES))
        out.append(Map(y, (ex.add(row, at), j), axes, Load(held, (at, j))))
    return tuple(out)


def backwards(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    """The last row first: cut short, it would begin with rows that are not there."""
    i, j = Var("i"), Var("j")
    last = height(held) - 1
    back = ex.sub(last, i)
    axes = (Axis(i, height(held)), Axis(j, LANES))
    return (Map(y, (ex.add(row, back), j), axes, Load(held, (back, j))),)


def by_number_alone(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    """As before, and without the tile."""
    out: list[Stmt] = []
    for n in range(height(held)):
        j, at = Var("j"), ex.add(row, n)
        out.append(Map(y, (at, j), (Axis(j, LANES),), ex.cast(at, I32)))
    return tuple(out)


def first_row_apart(row: Var, held: Buf, y: Buf) -> tuple[Stmt, ...]:
    """An axis of one row, which must not grow to all that live."""
    i = Var("i")
    more = ex.add(Load(held, (i, ZERO)), 100)
    return (*by_axis(row, held, y), Map(y, (ex.add(row, i), ex.lit(1)), (Axis(i, 1),), more))


OTHERWISE = [by_loop, by_number, by_number_alone, by_halves, backwards, first_row_apart]


def test_rows_reached_by_an_axis_are_cut() -> None:
    assert run_rows(by_axis)


@pytest.mark.parametrize("tile", OTHERWISE)
def test_rows_reached_otherwise_are_not(tile: Tile) -> None:
    assert not run_rows(tile)


MATRICES = ("q4_1", "q8_0", "f16", "mxfp4", "nvfp4", "nvfp4_rows", "fp8")
PROGRAMS = st.one_of(elementwise(), reductions(), dots(), *(matmuls(f) for f in MATRICES))


@given(PROGRAMS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_program_equals_block_level(program: Program) -> None:
    """Bit for bit, and without a race, whatever its maps, folds, dots and row tiles do."""
    fragment = lowered(program.kernel)
    verify_fragment(fragment)
    for m in SIZES:
        arrays = program.arrays(m, 1)
        other = {b: a.copy() for b, a in arrays.items()}
        run_kernel(program.kernel, arrays, {program.m: m})
        run_fragment_kernel(fragment, other, {program.m: m}, groups=2)
        assert other[program.out].tobytes() == arrays[program.out].tobytes()
