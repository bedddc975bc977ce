"""Rows rounded to f16, bf16 or e4m3: to the nearest, by row, and what is multiplied of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tile_gen
from cpu_rig import HERE, build, golden, same_bits, single
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import tiny_llama
from test_activations import matmul
from tile_gen import SIZES, Program

from speccc.emit import EmitOptions, read_model
from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.formats import FORMATS
from speccc.ir.interp_expr import evaluate
from speccc.ir.matrix_engine import holds
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.packed import PackedMatrix
from speccc.ir.tile import Axis, Buf, Dot, Kernel, Map, walk
from speccc.ir.tile_verify import verify_kernel
from speccc.ir.types import BF16, E4M3, F16, F32, DType
from speccc.passes.quantize_rows import Norm
from speccc.passes.round_rows import BF16_TOP, round_rows, rounded, rounded_buffers
from speccc.passes.tile_matmul import ROUNDED, prepare_rows
from speccc.targets.cpu.isa import Isa

Floats = npt.NDArray[np.float32]
X = Var("x", F32)
TOPS = {F16: 65504.0, BF16: BF16_TOP, E4M3: 448.0}
EACH = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def of(dtype: DType, x: Floats) -> Floats:
    return np.asarray(evaluate(rounded(dtype, X), {X: x}, lambda *_: x))


def table(dtype: DType) -> Floats:
    """Every value that is not negative, in the order of the codes."""
    codes = np.arange(1 << (dtype.bits - 1), dtype=np.uint32)
    values: dict[DType, Any] = {
        F16: lambda: codes.astype(np.uint16).view(np.float16).astype(np.float32),
        BF16: lambda: (codes << 16).view(np.float32),
        E4M3: lambda: MINIFLOATS[E4M3].decode(codes.astype(np.uint8)),
    }
    out: Floats = values[dtype]()
    return out[np.isfinite(out)]


@pytest.mark.parametrize("dtype", list(TOPS), ids=str)
def test_the_nearest(dtype: DType) -> None:
    """Each value is itself; half way between two goes to the even code, and beside it up or down.

    Where f32 has the middle: of the largest two, of two subnormals and of any two between.
    """
    own = table(dtype)
    assert same_bits(of(dtype, own), own)
    assert same_bits(of(dtype, -own), -own)
    middle = ((own[1:].astype(np.float64) + own[:-1]) / 2).astype(np.float32)
    exact = middle.astype(np.float64) * 2 == own[1:].astype(np.float64) + own[:-1]
    even = np.where(np.arange(len(middle)) % 2 == 0, own[:-1], own[1:])
    assert exact.sum() > 100
    assert same_bits(of(dtype, middle[exact]), even[exact])
    assert same_bits(of(dtype, np.nextafter(middle, np.float32(0))[exact]), own[:-1][exact])
    assert same_bits(of(dtype, np.nextafter(middle, np.float32(np.inf))[exact]), own[1:][exact])


@pytest.mark.parametrize("dtype", list(TOPS), ids=str)
def test_what_is_too_large_and_what_is_no_number(dtype: DType) -> None:
    large = np.array([np.inf, -np.inf, 3.4e38, -3.4e38], np.float32)
    assert np.array_equal(of(dtype, large), np.sign(large) * np.float32(TOPS[dtype]))
    # The default NaN of x86, of Arm and of NVIDIA: of the last one all bits are set.
    nans = np.array([0xFFC00000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(of(dtype, nans)).all()


def rows_of(dtype: DType, x: Floats, norm: Norm | None = None) -> tuple[Floats, Floats]:
    """What golden makes of rows, and their factors (ones where they have none)."""
    m, (rows, k) = Var("m"), x.shape
    source = Buf("x", (m, k), F32)
    to = rounded_buffers(dtype, m, k)
    outs = Buf("values", (m, k), F32), Buf("factors", (m, 1), F32)
    body = round_rows(lambda r, c: Load(source, (r, c)), norm, m, k, dtype, to)
    for dst, own in zip(outs, to, strict=True):
        i, j = Var("i"), Var("j")
        value = ex.lit(1.0, F32) if own is None else Load(own, (i, j))
        body.append(Map(dst, (i, j), (Axis(i, m), Axis(j, dst.shape[1])), value))
    plan = single((Kernel("round", (source, *outs), (m,), tuple(body)),))
    arrays = {b: np.zeros((rows, int(b.shape[1])), np.float32) for b in outs}
    done = golden(plan, {source: x, **arrays}, {m: rows})
    return done[outs[0]], done[outs[1]]


@settings(EACH, max_examples=30)
@given(seed=st.integers(0, 2**16), size=st.floats(-3, 3), dtype=st.sampled_from(list(TOPS)))
def test_rows_are_near(seed: int, size: float, dtype: DType) -> None:
    """Half a step of a mantissa of 10, 7 or 3 bits, and half of the least number of the type."""
    draw = np.random.default_rng(seed)
    x = (draw.standard_normal((3, 40)) * 10.0**size).astype(np.float32)
    x[1] *= draw.random(40) < 0.1
    x[2] = 0
    got, factor = rows_of(dtype, x)
    assert holds(dtype, got).all()
    bits, least = {F16: (10, 2.0**-24), BF16: (7, 2.0**-133), E4M3: (3, 2.0**-9)}[dtype]
    near = np.abs(x) * 2.0 ** -(bits + 1) * (1 + 2.0**-20) + factor * least / 2
    assert (np.abs(got.astype(np.float64) * factor - x) <= near).all()
    assert not got[2].any()
    if dtype == E4M3:
        assert np.abs(got[0]).max() == 448
        assert np.allclose(factor[:, 0], np.abs(x).max(axis=1) / 448)


def test_a_norm_comes_before_the_rounding() -> None:
    x = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    got, _ = rows_of(BF16, x, Norm(lambda c: ex.lit(2.0, F32), 1e-5))
    exact = 2 * x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    assert (np.abs(got - exact) <= np.abs(exact) * (2.0**-8 + 2.0**-20)).all()


# ---------------------------------------------------------------------------------- products


def prepared(activations: str, *formats: str) -> tuple[Any, ...]:
    m, k = Var("m"), 64
    x = Buf("x", (m, k), F32)
    weights = [PackedMatrix(FORMATS[f], 16, k) for f in formats]
    rows, _ = prepare_rows(
        lambda r, c: Load(x, (r, c)), None, m, k, weights, activations=activations
    )
    return rows.engine, rows.quant is not None, rows.floats is not None, rows.float_factor


@pytest.mark.parametrize("activations", ROUNDED)
def test_only_weights_of_the_type_take_it(activations: str) -> None:
    """Other floats are multiplied as f32, quantised weights by int8."""
    engine = ROUNDED[activations]
    own, *rest = prepared(activations, activations)
    assert own == engine
    assert rest[:2] == [False, True]
    assert (rest[2] is not None) == (activations == "fp8")
    other = next(f for f in ROUNDED if f != activations)
    assert prepared(activations, other) == (None, False, True, None)
    assert prepared(activations, activations, other) == (None, False, True, None)
    assert prepared(activations, "f32") == (None, False, True, None)
    assert prepared(activations, "q8_0") == (None, True, False, None)
    assert prepared(activations, "q8_0", activations)[:3] == (engine, True, True)
    assert prepared("int8", activations) == (None, False, True, None)


@pytest.mark.parametrize("activations", ROUNDED)
def test_golden_is_the_product_up_to_the_rounding(activations: str) -> None:
    """Of x and the weights themselves, factors and all: half a step of each x, and 64 sums."""
    rows, k, fmt = 32, 64, FORMATS[activations]
    plan, m, bufs = matmul(rows, k, activations, activations)
    draw = np.random.default_rng(5)
    x, weights = (draw.standard_normal((n, k)).astype(np.float32) for n in (3, rows))
    raw = fmt.encode(weights * np.arange(1, rows + 1, dtype=np.float32)[:, None]).reshape(-1)
    packed = PackedMatrix(fmt, rows, k).pack(raw)
    given = dict(zip(bufs, (x * 100, packed, np.zeros((3, rows), np.float32)), strict=True))
    got = golden(plan, given, {m: 3})[bufs[2]]
    right = fmt.decode(raw, (rows, k)).astype(np.float64)
    step = {"f16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}[activations] + 66 * 2.0**-24
    least = np.abs(x).max(axis=1, keepdims=True) * 100 / 448 * 2.0**-10 if fmt.row_scale else 0
    room = (np.abs(x * 100) * step + least) @ np.abs(right).T
    assert (np.abs(got - x.astype(np.float64) * 100 @ right.T) <= room).all()
    # It is no vacuous bound: most results are further from zero.
    assert (np.abs(got) > room).mean() > 0.5


@pytest.mark.parametrize("activations", ["nvfp4", *ROUNDED])
def test_a_class_that_no_weight_takes_is_refused(activations: str, tmp_path: Path) -> None:
    path, options = tiny_llama(tmp_path, fmt="q4_1"), EmitOptions(activations=activations)
    with pytest.raises(UnsupportedError, match=f"--activations {activations}: the model has no"):
        read_model(path, options, lambda *_: None)
    took = read_model(path, replace(options, weights=activations), lambda *_: None)
    assert took.lowered.plan.body


@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
@pytest.mark.parametrize("activations", ROUNDED)
@settings(EACH, max_examples=4)
@given(data=st.data(), m=st.sampled_from(SIZES))
def test_cpu_equals_golden(activations: str, isa: Isa, data: st.DataObject, m: int) -> None:
    p: Program = data.draw(tile_gen.matmuls(activations, activations))
    verify_kernel(p.kernel)
    engines = {s.engine for s in walk(p.kernel.body) if isinstance(s, Dot)}
    assert engines == {ROUNDED[activations]}
    plan, arrays = single((p.kernel,)), p.arrays(m, 1)
    got = build(plan, {p.m: 64}, isa).run(arrays, {p.m: m})
    assert same_bits(got[p.out], golden(plan, arrays, {p.m: m})[p.out])
