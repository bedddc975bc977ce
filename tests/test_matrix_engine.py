"""Sums by matrix engines: what they take; the bound holds for engines and for nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulation.engine_sum import engine_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.interp_expr import fma
from speccc.ir.interp_tile import run_kernel
from speccc.ir.matrix_engine import ENGINES, engine_bound, holds, stored
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.packed import load_le
from speccc.ir.tile import LANES, Alloc, Axis, Buf, Dot, Kernel, Map, Mem, Share
from speccc.ir.tile_text import print_kernel
from speccc.ir.types import BF16, E4M3, F16, F32, U8, DType

Array = npt.NDArray[Any]
BLOB, K = Buf("w", (64,), U8), Var("k")
TYPES = st.sampled_from([F16, BF16, E4M3])


def rounded(dtype: DType, x: Array) -> Array:
    """Some value of the type near each x."""
    if dtype == F16:
        return x.astype(np.float16).astype(np.float32)
    if dtype == BF16:
        return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return MINIFLOATS[E4M3].decode(MINIFLOATS[E4M3].nearest(x))


def golden(a: Array, b: Array) -> Array:
    acc = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        acc = fma(a[:, k : k + 1], b[k : k + 1], acc)
    return acc


def an_engine(dtype: DType, a: Array, b: Array, width: int, seed: int) -> Array:
    """An engine as bad as the table allows, `width` products at a time in an order of its own."""
    engine, n = ENGINES[dtype], a.shape[1]
    zero, step = np.zeros((len(a), b.shape[1]), np.float32), engine.step or n
    acc, rng = zero, np.random.default_rng(seed)
    for at in range(0, n, step):
        order = at + rng.permutation(min(step, n - at))
        acc = acc + engine_sum(a[:, order], b[order], zero, engine.fraction, width)
    return acc


@given(
    dtype=TYPES,
    k=st.integers(1, 150),
    width=st.sampled_from([1, 4, 8, 16]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_an_engine_is_within_the_bound_and_a_wrong_one_is_not(
    dtype: DType, k: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rounded(dtype, rng.standard_normal(s, np.float32)) for s in ((5, k), (k, 16)))
    right, bound = golden(a, b), engine_bound(dtype, a, b)
    got = an_engine(dtype, a, b, width, seed)
    assert (np.abs(got - right) <= bound).all()
    # One column of k by another's weights, and a result that is an eighth too large.
    swapped = b[np.r_[1:k, 0]]
    for wrong in (golden(a, swapped), right * np.float32(1.125)):
        assert k == 1 or (np.abs(wrong - right) > bound).any()


def test_the_bound_is_of_the_size_that_types_have() -> None:
    a, b = np.ones((1, 4096), np.float32), np.ones((4096, 1), np.float32)
    relative = {d: float(engine_bound(d, a, b)[0, 0]) / 4096 for d in ENGINES}
    assert relative[F16] == relative[BF16] < 2.6 * 4096 * 2**-23
    assert 64 * 2**-13 < relative[E4M3] < 68 * 2**-13


@pytest.mark.parametrize("dtype", list(ENGINES))
def test_holds(dtype: DType) -> None:
    """Every value of the type, and none between two of them."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint32)
    values = {
        F16: lambda: codes.astype(np.uint16).view(np.float16).astype(np.float32),
        BF16: lambda: (codes << 16).view(np.float32),
        E4M3: lambda: MINIFLOATS[E4M3].decode(codes.astype(np.uint8)),
    }[dtype]()
    assert holds(dtype, values).all()
    own = np.unique(values[np.isfinite(values)])
    middle = ((own[1:].astype(np.float64) + own[:-1]) / 2).astype(np.float32)
    between = (own[:-1] < middle) & (middle < own[1:])
    assert not holds(dtype, middle[between]).any()
    assert between.sum() > 200


@pytest.mark.parametrize("dtype", list(ENGINES))
def test_stored(dtype: DType) -> None:
    value = load_le(BLOB, ex.mul(K, 2), dtype)
    found = stored(dtype, value)
    assert found is not None
    assert found.dtype == (U8 if dtype == E4M3 else dtype)
    assert [stored(d, value) for d in ENGINES if d != dtype] == [None, None]
    assert stored(dtype, ex.mul(value, 2.0)) is None
    assert stored(dtype, ex.lit(1.0, F32)) is None


def dot_kernel(dtype: DType) -> tuple[Kernel, tuple[Buf, Buf, Buf]]:
    """y[1, 16] = x[1, 4] times four columns of 16 stored numbers."""
    x, w = Buf("x", (1, 4), F32), Buf("w", (4 * LANES * dtype.nbytes,), U8)
    y, acc = Buf("y", (1, LANES), F32), Buf("acc", (1, LANES), F32, Mem.TILE)
    i, j, k, u, one = (Var(n) for n in ("i", "j", "k", "u", "one"))
    at = ex.mul(ex.add(ex.mul(k, LANES), j), dtype.nbytes)
    dot = Dot(acc, i, j, k, 0, 4, Load(x, (i, k)), load_le(w, at, dtype), dtype)
    axes = (Axis(u, LANES),)
    zero, out = ((ex.lit(0), u) for _ in range(2))
    body = (
        Alloc(acc),
        Map(acc, zero, axes, ex.lit(0.0, F32)),
        dot,
        Map(y, out, axes, Load(acc, out)),
    )
    return Kernel("dots", (x, w, y), (), (Share(one, 1, body),)), (x, w, y)


@pytest.mark.parametrize("dtype", list(ENGINES))
def test_the_golden_machine_adds_in_order_and_refuses_other_values(dtype: DType) -> None:
    kernel, (x, w, y) = dot_kernel(dtype)
    assert f"dot.{dtype}(" in print_kernel(kernel)
    one = {F16: 0x3C00, BF16: 0x3F80, E4M3: 0x38}[dtype]
    raw = np.full(4 * LANES, one, np.uint16 if dtype.bits == 16 else np.uint8).view(np.uint8)
    row = np.array([[1.0, -0.5, 0.25, 3.0]], np.float32)
    arrays = {x: row, w: raw, y: np.zeros((1, LANES), np.float32)}
    run_kernel(kernel, arrays, {})
    assert (arrays[y] == 3.75).all()
    arrays[x] = row + np.float32(2.0**-20)
    with pytest.raises(VerifyError, match=f"dot into acc: a has values that are no {dtype}"):
        run_kernel(kernel, arrays, {})
