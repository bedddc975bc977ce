"""Dots of floats as matrix instructions: near golden, alike for any number of rows, or refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from engine_rig import Product, check, fails, golden, inputs, product, swapped_steps
from fragment_rig import Array, rewritten, s8, without_barrier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speccc.errors import UnsupportedError, VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.fragment import (
    FragmentKernel,
    FragMma,
    MmaShape,
    Subgroups,
    shared_bytes,
    walk,
)
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_expr import cast
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.tile import LANES, Axis, Buf, Dot, For, Kernel, Map, RowTiles, Stmt
from speccc.ir.types import BF16, F16, F32, DType
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.float_dot_to_fragment import DEPTH, FloatTiles, choose
from speccc.targets.clike.schedule import engine_shapes
from speccc.targets.devices import profile, profile_names

FORMATS = {"f16": F16, "bf16": BF16, "fp8": F16}
"""Of weights, and the type of the fragments that hold them."""
SIDES = ((8, 8, 8), (8, 16, 16), (16, 8, 16), (16, 16, 16))
CLIKE = tuple(n for n in profile_names() if n.split(":")[0] in ("vulkan", "sycl", "metal"))


def floats(dtype: DType, sides: tuple[int, int, int]) -> MmaShape:
    """An instruction for floats, f32 accumulators."""
    return MmaShape(dtype, dtype, F32, *sides)


def lowered(
    p: Product, sides: tuple[int, int, int] = (8, 16, 16), subgroups: int = 2
) -> FragmentKernel:
    """On a device that has no instruction but that of the weights' type."""
    kernel = DotToFragment(None, 8, subgroups, floats=(floats(FORMATS[p.w.format.name], sides),))
    made = kernel.run(p.kernel)
    verify_fragment(made)
    return made


def interpreted(p: Product, kernel: FragmentKernel, bufs: dict[Buf, Array]) -> Array:
    own = {**bufs, p.y: bufs[p.y].copy()}
    run_fragment_kernel(kernel, own, {p.m: len(bufs[p.x])}, groups=2)
    return own[p.y]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(SIDES),
    st.sampled_from([1, 7, 16, 50, DEPTH, 100, 130]),
    st.sampled_from([1, 5, 9, 33]),
    st.sampled_from([(1,), (3, 2, 1), (8, 7, 6, 5, 4, 3, 2, 1)]),
    st.integers(1, 9),
    st.integers(0, 99),
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_product(
    fmt: str,
    sides: tuple[int, int, int],
    k: int,
    m: int,
    widths: tuple[int, ...],
    subgroups: int,
    seed: int,
) -> None:
    """Tails of k, rows that fill no fragment, more rows than a tile: no race, near golden."""
    p = product(fmt, 20, k, widths)
    kernel = lowered(p, sides, subgroups)
    assert any(isinstance(s, FragMma) for s in walk(kernel.body))
    check(p, lambda bufs: interpreted(p, kernel, bufs), m, seed)


@pytest.mark.parametrize("fmt", FORMATS)
def test_devices_without_the_type_have_goldens_bits(fmt: str) -> None:
    """bf16 fits no half: such a device adds in order, and so does one without any matrix."""
    p = product(fmt, 20, 50)
    other = BF16 if FORMATS[fmt] == F16 else F16
    bufs = inputs(p, 9)
    for shapes in ((), (floats(other, (8, 8, 8)),)):
        kernel = DotToFragment(None, 8, 2, floats=shapes).run(p.kernel)
        assert not any(isinstance(s, FragMma) for s in walk(kernel.body))
        np.testing.assert_array_equal(interpreted(p, kernel, bufs), golden(p, bufs))


def test_a_dot_without_an_engine_keeps_its_order() -> None:
    """Though the device has an instruction for its type."""
    p = product("f16", 20, 50)

    def rule(s: Stmt) -> Stmt:
        return replace(s, engine=None) if isinstance(s, Dot) else s

    kernel = Kernel("ordered", p.kernel.bufs, p.kernel.scalars, rewritten(p.kernel.body, rule))
    made = DotToFragment(None, 8, 2, floats=(floats(F16, (8, 8, 8)),)).run(kernel)
    assert not any(isinstance(s, FragMma) for s in walk(made.body))


def test_a_step_of_k_read_elsewhere_fails_the_bound() -> None:
    """The control: the bound tells a wrong sum from a rounded one."""
    p = product("f16", 20, 64)
    fails(p, partial(interpreted, p, swapped_steps(lowered(p))))


def test_barriers_around_the_product_are_needed() -> None:
    """Without one, invocations meet: staging, products and sums touch the same tiles."""
    p = product("f16", 20, 130)
    kernel = lowered(p)
    bufs = inputs(p, 9)
    for number in range(2):
        with pytest.raises(VerifyError, match=r"^race"):
            interpreted(p, without_barrier(kernel, number), bufs)


def test_subgroups_share_the_steps_that_few_rows_leave() -> None:
    """Four on a device with one fragment of columns: as many sums, in the order of k."""
    shape = floats(F16, (8, 16, 16))
    shares = [FloatTiles.of(shape, 32, LANES, n).split for n in (1, 2, 3, 4, 7, 16)]
    assert shares == [1, 2, 2, 4, 4, 4]
    assert FloatTiles.of(floats(F16, (8, 8, 8)), 32, LANES, 2).split == 1
    p = product("f16", 20, 130)
    kernel = lowered(p, subgroups=4)
    check(p, lambda bufs: interpreted(p, kernel, bufs), 9)
    (part,) = (s for s in walk(kernel.body) if isinstance(s, Subgroups))
    (steps,) = (s for s in part.body if isinstance(s, For))
    assert steps.lo != 0


def test_a_dot_goes_on_from_what_its_tile_holds() -> None:
    """Bounds that are expressions, a tile of two panels, no rows to cut: y = 2 + a b."""
    n = Var("n")
    a, b = Buf("a", (3, 70), F32), Buf("b", (70, 2 * LANES), F16)
    y, acc = Buf("y", (3, 2 * LANES), F32), Buf("acc", (3, 2 * LANES), F32)
    i, j, k, r, c = (Var(x) for x in "ijkrc")
    axes = (Axis(r, 3), Axis(c, 2 * LANES))
    dot = Dot(acc, i, j, k, ex.idiv(n, 8), n, Load(a, (i, k)), ex.cast(Load(b, (k, j)), F32), F16)
    body = (Map(acc, (r, c), axes, ex.lit(2.0, F32)), dot, Map(y, (r, c), axes, Load(acc, (r, c))))
    kernel = Kernel("spans", (a, b, y, acc), (n,), body)
    made = DotToFragment(None, 8, 2, floats=(floats(F16, (8, 16, 16)),)).run(kernel)
    verify_fragment(made)
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-9, 10, s).astype(np.float32) for s in ((3, 70), (70, 32)))
    for size in (1, 16, 70):
        bufs = {a: left, b: right.astype(np.float16), y: np.zeros((3, 32), np.float32)}
        run_fragment_kernel(made, {**bufs, acc: bufs[y].copy()}, {n: size})
        span = slice(size // 8, size)
        np.testing.assert_array_equal(bufs[y], 2 + left[:, span] @ right[span])


def test_what_serves_is_chosen() -> None:
    """The fewest tokens, then the deepest; none that is wider than a panel."""
    shapes = [floats(F16, s) for s in ((16, 16, 16), (16, 8, 8), (16, 8, 16), (1, 64, 16))]
    assert choose(shapes) == floats(F16, (16, 8, 16))
    assert choose(shapes[3:]) is None
    assert choose([s8(8, 8, 8), MmaShape(F16, F16, F16, 8, 8, 8)]) is None
    with pytest.raises(UnsupportedError, match=r"^f16\*f16->f32 1x64x16: does not multiply"):
        FloatTiles.of(shapes[3], 8, LANES, 2)


@pytest.mark.parametrize("name", CLIKE)
def test_profiles_have_what_they_list(name: str) -> None:
    """One instruction a type; a profile with some of halves has one that serves."""
    found = engine_shapes(profile(name))
    assert len({s.a for s in found}) == len(found)
    assert (F16 in {s.a for s in found}) == bool(profile(name).matrix(F16, F16, F32))


def test_tiles_are_as_tall_as_the_instructions_ask() -> None:
    """Rows of a tile fill whole fragments, and what is staged fits the least device."""
    p = product("f16", 20, 130)
    tiles = next(s for s in walk(lowered(p).body) if isinstance(s, FragMma))
    assert tiles.acc.shape.m == 8
    rows = next(s for s in walk(p.kernel.body) if isinstance(s, RowTiles))
    for sides, height in (((8, 16, 16), 32), ((16, 16, 16), 32)):
        lowering = DotToFragment(None, 8, 2, floats=(floats(F16, sides),))
        assert lowering.height(rows, 100) == height
    assert shared_bytes(lowered(p)) <= 16384


def test_bf16_is_cast_from_its_own_values_only() -> None:
    values = np.array([1.5, -0.0, np.inf, 2.0**-133], np.float32)
    np.testing.assert_array_equal(cast(cast(values, F32, BF16), BF16, F32), values)
    with pytest.raises(VerifyError, match="no bf16"):
        cast(np.array([1 + 2.0**-10], np.float32), F32, BF16)
