"""The fragment level's rules: what the verifier refuses, what the interpreter catches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fragment_rig import Array, lowered, s8
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_program import proof_program

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.fragment import (
    Access,
    Barrier,
    FragLoad,
    Fragment,
    FragmentKernel,
    FragMma,
    FragStore,
    FragZero,
    LaneFold,
    LaneMap,
    Role,
    Subgroups,
    Workgroup,
    accesses,
    walk,
)
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.tile import Alloc, Axis, Buf, For, Map, Mem, Red, RowTiles, Share, Stmt
from speccc.ir.types import F32, I8, I32
from speccc.passes.insert_barriers import insert_barriers

ZERO = ex.lit(0)
SHAPE = s8(8, 8, 8)
A, B, C = (Fragment(role.value, role, SHAPE) for role in Role)


@dataclass(frozen=True)
class Demo:
    """c = a @ b^T in one fragment: rows pass through SHARED memory first."""

    a: Buf
    b: Buf
    c: Buf
    tile: Buf
    body: tuple[Stmt, ...]

    def kernel(self, body: tuple[Stmt, ...] | None = None) -> FragmentKernel:
        statements = self.body if body is None else body
        return FragmentKernel("demo", (self.a, self.b, self.c), (), Workgroup(8, 2), statements)

    def run(self, body: tuple[Stmt, ...] | None = None, groups: int = 1) -> tuple[Array, Array]:
        """(c, what it should be)."""
        rng = np.random.default_rng(3)
        a, b = (rng.integers(-128, 128, (8, 8), dtype=np.int8) for _ in range(2))
        c = np.zeros((8, 8), np.int32)
        run_fragment_kernel(self.kernel(body), {self.a: a, self.b: b, self.c: c}, {}, groups=groups)
        return c, a.astype(np.int32) @ b.astype(np.int32).T


def demo() -> Demo:
    a, b, tile = Buf("a", (8, 8), I8), Buf("b", (8, 8), I8), Buf("tile", (8, 8), I8, Mem.SHARED)
    c = Buf("c", (8, 8), I32)
    return Demo(a, b, c, tile, (Alloc(tile), copy(a, tile), Barrier(), multiply(tile, b, c)))


def copy(src: Buf, dst: Buf) -> LaneMap:
    i, j = Var("i"), Var("j")
    return LaneMap(dst, (i, j), (Axis(i, 8), Axis(j, 8)), Load(src, (i, j)))


def multiply(a: Buf, b: Buf, c: Buf) -> Subgroups:
    here = (ZERO, ZERO)
    body = (
        FragZero(C),
        FragLoad(A, a, here),
        FragLoad(B, b, here, transposed=True),
        FragMma(C, A, B),
        FragStore(C, c, here),
    )
    return Subgroups(Var("part"), 1, body)


# --------------------------------------------------------------------------------------- verifier


def test_the_demo_multiplies() -> None:
    d = demo()
    verify_fragment(d.kernel(), frozenset((SHAPE,)))
    np.testing.assert_array_equal(*d.run())


def inside(d: Demo, *body: Stmt) -> tuple[Stmt, ...]:
    """Statements of one subgroup."""
    return (*d.body[:3], Subgroups(Var("part"), 1, body))


BROKEN: dict[str, tuple[Callable[[Demo], tuple[Stmt, ...]], str]] = {
    "block level map": (
        lambda d: (Map(d.c, (ZERO, ZERO), (), ex.lit(0, I32)),),
        "Map is not a statement of the fragment level",
    ),
    "fragment outside": (lambda d: (FragZero(C),), "outside a subgroup"),
    "divergent barrier": (lambda d: inside(d, Barrier()), "Barrier under divergent control"),
    "divergent map": (lambda d: inside(d, copy(d.a, d.tile)), "LaneMap under divergent control"),
    "subgroups twice": (lambda d: inside(d, multiply(d.a, d.b, d.c)), "Subgroups inside Subgroups"),
    "tile memory": (lambda d: (Alloc(Buf("t", (1,), F32, Mem.TILE)),), "tile cannot be allocated"),
    "sized by a scalar": (
        lambda d: (Alloc(Buf("t", (ex.lit(4),), F32, Mem.SHARED)),),
        "has a size that is not a number",
    ),
    "unallocated": (lambda d: d.body[1:], "tile is not a parameter and was not allocated"),
    "set too late": (
        lambda d: inside(d, FragZero(C), FragMma(C, A, B)),
        "fragment a is used before it is set",
    ),
    "roles swapped": (
        lambda d: inside(
            d,
            FragZero(C),
            FragLoad(A, d.tile, (ZERO, ZERO)),
            FragLoad(B, d.b, (ZERO, ZERO)),
            FragMma(C, B, A),
        ),
        "fragment b is b, not a",
    ),
    "wrong type": (lambda d: inside(d, FragLoad(A, d.c, (ZERO, ZERO))), "of i8 meets c of i32"),
    "operand stored": (
        lambda d: inside(d, FragLoad(A, d.a, (ZERO, ZERO)), FragStore(A, d.tile, (ZERO, ZERO))),
        "only an accumulator is stored",
    ),
    "operand zeroed": (lambda d: inside(d, FragZero(A)), "only an accumulator is set to zero"),
    "free variable": (
        lambda d: (LaneMap(d.c, (Var("q"), ZERO), (), ex.lit(0, I32)),),
        "variable q has no value",
    ),
    "value of another type": (
        lambda d: (LaneMap(d.c, (ZERO, ZERO), (), ex.lit(0, I8)),),
        "i8 is written to c of i32",
    ),
    "too few indices": (
        lambda d: (LaneMap(d.c, (ZERO,), (), ex.lit(0, I32)),),
        "has 2 axes, not 1",
    ),
    "bound from shared": (
        lambda d: (
            *d.body[:2],
            For(
                Var("n"),
                0,
                ex.cast(Load(d.tile, (ZERO, ZERO)), ZERO.dtype),
                (Barrier(),),
            ),
        ),
        "a barrier in a loop whose bound reads tile",
    ),
}


@pytest.mark.parametrize("which", BROKEN)
def test_the_verifier_names_what_is_wrong(which: str) -> None:
    d = demo()
    make, message = BROKEN[which]
    with pytest.raises(VerifyError, match=message):
        verify_fragment(d.kernel(make(d)))


def test_the_verifier_knows_the_devices_shapes() -> None:
    with pytest.raises(VerifyError, match="the device has no i8\\*i8->i32 8x8x8"):
        verify_fragment(demo().kernel(), frozenset((s8(16, 16, 16),)))


def test_fragments_of_two_shapes_do_not_meet() -> None:
    d = demo()
    other = Fragment("b", Role.B, s8(8, 8, 4))
    body = inside(
        d,
        FragZero(C),
        FragLoad(A, d.a, (ZERO, ZERO)),
        FragLoad(other, d.b, (ZERO, ZERO)),
        FragMma(C, A, other),
    )
    with pytest.raises(VerifyError, match=r"fragment b is of .*8x8x4, not .*8x8x8"):
        verify_fragment(d.kernel(body))


# ------------------------------------------------------------------------------------------- races


def test_a_fragment_load_needs_a_barrier() -> None:
    d = demo()
    with pytest.raises(VerifyError, match="race on tile: two invocations"):
        d.run(tuple(s for s in d.body if not isinstance(s, Barrier)))


def test_invocations_race_on_one_element() -> None:
    d = demo()
    i = Var("i")
    everyone = LaneMap(d.tile, (ZERO, ZERO), (Axis(i, 16),), ex.lit(0, I8))
    with pytest.raises(VerifyError, match="race on tile: two invocations"):
        d.run((Alloc(d.tile), everyone))
    one = LaneMap(d.tile, (ZERO, ZERO), (Axis(i, 1),), ex.lit(0, I8))
    d.run((Alloc(d.tile), one))


def test_a_neighbours_element_is_a_race_and_ones_own_is_not() -> None:
    d = demo()
    i, j = Var("i"), Var("j")
    axes = (Axis(i, 8), Axis(j, 8))

    def shifted(by: int) -> LaneMap:
        value = Load(d.tile, (i, ex.mod(ex.add(j, by), 8)))
        return LaneMap(d.tile, (i, j), axes, value)

    d.run((*d.body[:2], shifted(0)))
    with pytest.raises(VerifyError, match="race on tile"):
        d.run((*d.body[:3], shifted(1)))


def test_reads_alone_do_not_race() -> None:
    d = demo()
    i, j = Var("i"), Var("j")
    corner = Load(d.tile, (ZERO, ZERO))
    spread = LaneMap(d.c, (i, j), (Axis(i, 8), Axis(j, 8)), ex.cast(corner, I32))
    c, _ = d.run((*d.body[:3], spread))
    assert (c == c[0, 0]).all()


def test_a_loop_races_with_its_own_next_turn() -> None:
    """Memory allocated in the loop is the same memory every time."""
    d = demo()
    turn = (Alloc(d.tile), copy(d.a, d.tile), Barrier(), multiply(d.tile, d.b, d.c))
    with pytest.raises(VerifyError, match="race on tile"):
        d.run((For(Var("n"), 0, 2, turn),))
    np.testing.assert_array_equal(*d.run((For(Var("n"), 0, 2, (*turn, Barrier())),)))
    # A barrier after the block that allocated counts as well.
    block = For(Var("once"), 0, 1, turn)
    np.testing.assert_array_equal(*d.run((For(Var("n"), 0, 2, (block, Barrier())),)))


def test_workgroups_race_on_global_memory() -> None:
    d = demo()
    with pytest.raises(VerifyError, match="race on c: two workgroups"):
        d.run(groups=2)
    once = Share(Var("unit"), 1, d.body)
    np.testing.assert_array_equal(*d.run((once,), groups=2))


def test_uninitialised_reads_are_caught() -> None:
    d = demo()
    with pytest.raises(VerifyError, match="tile is read where nothing was written"):
        d.run((Alloc(d.tile), multiply(d.tile, d.b, d.c)))


@pytest.mark.parametrize("at", [(ex.lit(1), ZERO), (ZERO, ex.lit(1))])
def test_fragments_stay_in_bounds(at: tuple[ex.Expr, ex.Expr]) -> None:
    d = demo()
    out = (*d.body[:3], Subgroups(Var("part"), 1, (FragLoad(A, d.tile, at),)))
    with pytest.raises(VerifyError, match=r"tile axis [01]: 1\.\.8 is outside 0\.\.7"):
        d.run(out)


# ---------------------------------------------------------------------------------------- barriers


def barriers(body: tuple[Stmt, ...]) -> int:
    return sum(isinstance(s, Barrier) for s in walk(body))


def test_barriers_come_back_where_they_were() -> None:
    d = demo()
    bare = tuple(s for s in d.body if not isinstance(s, Barrier))
    assert insert_barriers(bare) == d.body


def test_a_loop_gets_a_barrier_for_its_next_turn() -> None:
    d = demo()
    turn = tuple(s for s in d.body if not isinstance(s, Barrier))
    body = insert_barriers((For(Var("n"), 0, 3, turn),))
    assert barriers(body) == 2
    np.testing.assert_array_equal(*d.run(body))


def test_ones_own_elements_need_no_barrier() -> None:
    d = demo()
    assert barriers(insert_barriers((*d.body[:2], copy(d.tile, d.tile)))) == 0
    i, j = Var("i"), Var("j")
    narrow = LaneMap(d.tile, (i, j), (Axis(i, 8), Axis(j, 4)), Load(d.tile, (i, j)))
    assert barriers(insert_barriers((*d.body[:2], narrow))) == 1


def test_lanes_tell_who_owns_an_element() -> None:
    d = demo()
    dynamic = replace(copy(d.a, d.tile), axes=())
    assert {x.lanes for x in accesses(dynamic)} == {()}
    assert Access(d.tile, True, (2, 8)) in accesses(copy(d.a, d.tile))
    assert {x.lanes for x in accesses(multiply(d.tile, d.b, d.c))} == {None}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.booleans()), min_size=1, max_size=8))
def test_any_program_is_free_of_races_with_barriers(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    """Maps between three SHARED arrays, some in loops: inserted barriers leave no race."""
    bufs = [Buf(f"s{n}", (24,), I32, Mem.SHARED) for n in range(4)]
    body: list[Stmt] = []
    for b in bufs:
        i = Var("i")
        body += [Alloc(b), LaneMap(b, (i,), (Axis(i, 24),), ex.cast(i, I32))]
    for dst, src, shift, loop in steps:
        i = Var("i")
        at = ex.mod(ex.add(i, shift), 24) if src != dst else i
        s: Stmt = LaneMap(bufs[dst], (i,), (Axis(i, 24),), Load(bufs[src], (at,)))
        body.append(For(Var("n"), 0, 2, (s, *body[-1:])) if loop and len(body) > 8 else s)
    kernel = FragmentKernel("random", (), (), Workgroup(8, 1), insert_barriers(tuple(body)))
    verify_fragment(kernel)
    run_fragment_kernel(kernel, {}, {})


# ------------------------------------------------------------------------------------------- folds


def test_a_fold_keeps_its_order_and_its_limits() -> None:
    """Element i folds over 0..i in order; 0.1 summed in f32 depends on the order."""
    x, y = Buf("x", (40,), F32), Buf("y", (40,), F32)
    i, r = Var("i"), Var("r")
    value = Load(x, (r,))
    fold = LaneFold(y, (i,), (Axis(i, 40),), r, 0, ex.add(i, 1), Red.SUM, ex.lit(0.0, F32), value)
    kernel = FragmentKernel("prefix", (x, y), (), Workgroup(8, 1), (fold,))
    verify_fragment(kernel)
    given_x = np.random.default_rng(5).standard_normal(40).astype(np.float32)
    out = np.zeros(40, np.float32)
    run_fragment_kernel(kernel, {x: given_x, y: out}, {})
    np.testing.assert_array_equal(out, np.cumsum(given_x, dtype=np.float32))


# ------------------------------------------------------------------------------------- the lowering


def test_lowering_leaves_nothing_of_the_block_level() -> None:
    kernel = lowered(proof_program(64, 32).kernel)
    verify_fragment(kernel, frozenset((SHAPE,)))
    assert not any(isinstance(s, RowTiles) for s in walk(kernel.body))
    assert sum(isinstance(s, FragMma) for s in walk(kernel.body)) == 2 * 32 // 8


def test_row_tiles_stay_where_rows_cannot_be_cut() -> None:
    """One height only, and taller than the instruction: every variant is kept."""
    p = proof_program(64, 32, widths=(16, 1))
    taller = lowered(p.kernel)
    assert not any(isinstance(s, RowTiles) for s in walk(taller.body))
    only = proof_program(64, 32, widths=(16,))
    assert any(isinstance(s, RowTiles) for s in walk(lowered(only.kernel).body))
