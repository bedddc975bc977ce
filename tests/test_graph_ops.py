"""Ops of the Graph IR: type rules, interning and meaning against independent NumPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError, VerifyError
from speccc.ir import graph_build as g
from speccc.ir import ops, ops_state
from speccc.ir.formats import NVFP4, Q4_1, Q8_0, Format
from speccc.ir.graph import Graph, Value, apply, node, origin_of
from speccc.ir.interp_graph import Array, run
from speccc.ir.interp_matmul import fma, matmul_int8
from speccc.ir.ops import Fn
from speccc.ir.types import BF16, F16, F32, I32, Sym, TensorType

M = Sym("m", 1, 16)


def value_of(v: Value, /, **inputs: Array) -> Array:
    params = tuple(n for n in Graph((), (v,), ("y",)).nodes() if isinstance(n.op, ops.Input))
    return run(Graph(tuple(Value(n) for n in params), (v,), ("y",)), inputs)["y"]


def f32(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_equal_nodes_are_one_object() -> None:
    x, y = g.param("x", (M, 8)), g.param("y", (M, 8))
    assert g.add(x, y).node is g.add(x, y).node
    assert g.add(x, y).node is not g.add(y, x).node


def test_constants_differ_by_bits() -> None:
    assert g.constant(0.0) != g.constant(-0.0)
    assert g.constant(np.nan) == g.constant(np.nan)


def test_origins_are_no_part_of_identity() -> None:
    x = g.param("x", (M, 8))
    a = g.map_(Fn.EXP, x, origin="blk.3.one")
    assert a == g.map_(Fn.EXP, x, origin="blk.4.one")
    assert origin_of(a.node) == "blk.*.one"


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (ops.Matmul(), [((M, 8), F32), ((4, 9), F32)], "a weight is"),
        (ops.Matmul(), [((M, 8), F32)], "at least one weight"),
        (ops.Map(Fn.ADD), [((M, 8), F32), ((M, 7), F32)], "do not broadcast"),
        (ops.Map(Fn.ADD), [((M, 8), F32), ((4, 8), F32)], "do not broadcast"),
        (ops.Map(Fn.EXP), [((M, 8), F16)], "an operand is"),
        (ops.RmsNorm(1e-5), [((M, 8), F32), ((7,), F32)], "the weight is"),
        (ops.Rope(1e4, 6), [((M, 2, 4), F32), ((M,), I32)], "dim 6"),
        (ops.Reshape((M, 9)), [((M, 8), F32)], r"to \[m, 9\]"),
        (ops.Transpose((0, 0)), [((M, 8), F32)], "perm"),
        (ops.Slice(1, 4, 9), [((M, 8), F32)], r"4\.\.9"),
        (ops.Slice(0, 0, 1), [((M, 8), F32)], "axis 0"),
        (ops.Concat(0), [((M, 8), F32), ((M, 8), F32)], "with"),
        (ops.Repeat(0, 2), [((M, 8), F32)], "2 times axis 0"),
        (ops.Cast(I32), [((M, 8), F32)], "to i32"),
        (ops.Embed(), [((9, 8), Q8_0), ((M,), F32)], "tokens are"),
        (ops_state.CacheAppend(), [((9, 2, 4), F16), ((M, 2, 5), F32), ((), I32)], "into"),
        (ops_state.TreeMask(9), [((1,), I32), ((M,), I32)], "length is"),
    ],
)
def test_a_type_rule_declines(op: ops.Op, types: list[tuple], message: str) -> None:
    ins = [g.param(f"x{i}", shape, elem) for i, (shape, elem) in enumerate(types)]
    with pytest.raises(VerifyError, match=message):
        apply(op, *ins)


def test_heads_must_divide_into_groups() -> None:
    q = g.param("q", (M, 3, 4))
    k = g.param("k", (9, 2, 4), F16)
    rest = (g.param("length", (), I32), g.param("parents", (M,), I32))
    with pytest.raises(VerifyError, match="3 heads over 2 groups"):
        apply(ops_state.Attention(1.0), q, k, k, *rest)


def test_rope_turns_adjacent_pairs() -> None:
    """Against complex multiplication in f64; two f32 products and a sum round to 3 ulp at most."""
    x, at = f32(5, 2, 8), np.arange(5, dtype=np.int32) * 7
    op = ops.Rope(100.0, 6, 2.0)
    y = value_of(apply(op, g.param("x", (M, 2, 8)), g.param("at", (M,), I32)), x=x, at=at)
    turn = np.exp(1j * at[:, None, None] * 100.0 ** (-np.arange(0, 6, 2) / 6) / 2)
    pairs = (x[..., 0:6:2] + 1j * x[..., 1:6:2]) * turn
    assert np.allclose(y[..., 0:6:2], pairs.real, rtol=0, atol=1e-6)
    assert np.allclose(y[..., 1:6:2], pairs.imag, rtol=0, atol=1e-6)
    assert np.array_equal(y[..., 6:], x[..., 6:])


def test_rope_factors_divide_frequencies() -> None:
    x, at = f32(3, 1, 4), np.asarray([0, 1, 2], np.int32)
    args = g.param("x", (M, 1, 4)), g.param("at", (M,), I32), g.constant([2.0, 2.0])
    by_two = value_of(apply(ops.Rope(10.0, 4), *args), x=x, at=at)
    halved = value_of(apply(ops.Rope(10.0, 4, 2.0), *args[:2]), x=x, at=at)
    assert np.array_equal(by_two, halved)


def test_rms_norm_and_softmax() -> None:
    x, w = f32(3, 16), f32(16, seed=1)
    y = value_of(apply(ops.RmsNorm(1e-3), g.param("x", (M, 16)), g.param("w", (16,))), x=x, w=w)
    exact = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-3) * w
    assert np.allclose(y, exact, rtol=1e-6, atol=0)
    p = value_of(apply(ops.Softmax(), g.param("x", (M, 16))), x=x)
    e = np.exp(x.astype(float))
    assert np.allclose(p, e / e.sum(-1, keepdims=True), rtol=1e-6, atol=0)


def test_tree_mask_shows_the_committed_context_and_ancestors() -> None:
    op = ops_state.TreeMask(8)
    v = apply(op, g.param("length", (), I32), g.param("parents", (M,), I32))
    parents = np.asarray([-1, 0, 0, 2], np.int32)
    seen = value_of(v, length=np.asarray(3, np.int32), parents=parents) == 0
    tail = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert seen[:, :3].all()
    assert not seen[:, 7:].any()
    assert np.array_equal(seen[:, 3:7], np.asarray(tail, bool))


def test_attention_is_softmax_over_visible_slots() -> None:
    """Against f64 over the visible slots only; f32 over 8 terms rounds well below 1e-5."""
    q, k, v = f32(2, 4, 4), f32(8, 2, 4, seed=1), f32(8, 2, 4, seed=2)
    names = {"q": q, "k": k, "v": v, "length": np.int32(3), "parents": np.int32([-1, -1])}
    ins = [g.param(n, x.shape, F32 if x.dtype == np.float32 else I32) for n, x in names.items()]
    y = value_of(apply(ops_state.Attention(0.5), *ins), **names)
    for row, slots in ((0, [0, 1, 2, 3]), (1, [0, 1, 2, 4])):
        for head in range(4):
            keys, values = (t[slots, head // 2].astype(float) for t in (k, v))
            e = np.exp(0.5 * keys @ q[row, head])
            assert np.allclose(y[row, head], e / e.sum() @ values, rtol=0, atol=1e-5)


def test_cache_append_writes_rows_at_length() -> None:
    cache, new = np.zeros((6, 1, 2), np.float16), np.full((2, 1, 2), 1e6, np.float32)
    ins = g.param("c", (6, 1, 2), F16), g.param("n", (M, 1, 2)), g.param("length", (), I32)
    after = value_of(g.cache_append(*ins), c=cache, n=new, length=np.asarray(3, np.int32))
    assert after[:, 0, 0].tolist() == [0, 0, 0, 65504, 65504, 0]
    with pytest.raises(InputError, match="input length"):
        value_of(g.cache_append(*ins), c=cache, n=new, length=np.asarray(5, np.int32))


def test_bf16_rounds_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    x = np.concatenate([f32(500), np.float32([0, -0.0, np.inf, 1e-40, 3.4e38])])
    y = value_of(g.cast(g.cast(g.param("x", x.shape), BF16), F32), x=x)
    assert np.array_equal(y, torch.from_numpy(x).bfloat16().float().numpy())


def test_an_input_of_the_wrong_shape_is_named() -> None:
    y = g.add(g.param("x", (M, 8)), g.param("z", (M, 8)))
    for bad in (f32(3, 7), f32(17, 8), f32(3, 8).astype(np.float64)):
        with pytest.raises(InputError, match="input x: takes"):
            value_of(y, x=bad, z=f32(3, 8))
    with pytest.raises(InputError, match="input z: takes"):
        value_of(y, x=f32(3, 8), z=f32(4, 8))


def nearest_f32(exact: Fraction) -> np.float32:
    """The f32 nearest to a rational, ties to even."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(s)) for s in (-np.inf, np.inf)] + [guess]
    return min(near, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1))


FLOATS = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)


@given(FLOATS, FLOATS, FLOATS)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = fma(*(np.float32([v]) for v in (a, b, c)))[0]
    assert got == nearest_f32(exact)


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        # a b is just below 2^-24, so the sum is just below a tie: f64 rounds it to the tie.
        (2**-12 * (1 + 2**-23), 2**-12 * (1 - 2**-23), 1 + 2**-23, 1 + 2**-23),
        # 8392705 * 8384513 = 2^46 + 1: a b is just above 2^-24.
        (8392705 * 2.0**-35, 8384513 * 2.0**-35, 1, 1 + 2**-23),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_fma_rounds_once_next_to_a_tie(
    a: float, b: float, c: float, expected: float, sign: int
) -> None:
    got = fma(*(np.float32([v]) for v in (sign * a, b, sign * c)))[0]
    assert got == np.float32(sign * expected)
    assert np.float32(sign * a) * np.float64(b) + sign * c != got


@pytest.mark.parametrize("fmt", [Q4_1, Q8_0, NVFP4])
def test_int8_matmul_is_the_written_formula(fmt: Format) -> None:
    """Scalar by scalar, in rationals rounded to f32 where the definition rounds."""
    x, w = f32(2, 64), f32(3, 64, seed=1)
    codes, scale, minimum = fmt.codes(fmt.encode(w), w.shape)
    integers = fmt.integers(codes)
    got = matmul_int8(x, integers, scale, minimum)
    for i in range(2):
        for j in range(3):
            acc = np.float32(0)
            for b in range(2):
                part = x[i, 32 * b : 32 * b + 32]
                xs = np.abs(part).max() / np.float32(127)
                xq = [int(np.rint(v / xs)) for v in part]
                row = [int(v) for v in integers[j, 32 * b : 32 * b + 32]]
                for at in range(0, 32, fmt.group):
                    span = slice(at, at + fmt.group)
                    dot = sum(q * v for q, v in zip(xq[span], row[span], strict=True))
                    term = Fraction(float(xs * scale[j, (32 * b + at) // fmt.group])) * dot
                    acc = nearest_f32(Fraction(float(acc)) + term)
                if minimum is not None:
                    low = Fraction(float(minimum[j, b])) * Fraction(float(xs * np.float32(sum(xq))))
                    acc = nearest_f32(Fraction(float(acc)) + low)
            assert got[i, j] == acc


def test_several_weights_give_what_each_gives() -> None:
    x = g.param("x", (M, 8))
    w, v = (g.weight(n, TensorType((4, 8), F32)) for n in "wv")
    both = node(ops.Matmul(), (x, w, v))
    graph = Graph((x,), (Value(both), Value(both, 1), *g.matmul(x, v)), ("a", "b", "c"))
    out = run(graph, {"x": f32(3, 8)}, {"w": f32(4, 8, seed=1), "v": f32(4, 8, seed=2)})
    assert np.array_equal(out["b"], out["c"])
    assert not np.array_equal(out["a"], out["b"])
