"""MaskFreeAttention: before and expected, what it declines, bytes saved, equal bits."""

from __future__ import annotations

import pytest
from graph_gen import Case, cases, same_bits
from graph_models import TinySession, tiny_graph
from hypothesis import given, settings
from models import Tiny

from speccc.ir import graph_build as g
from speccc.ir import ops, ops_state
from speccc.ir.graph import Graph, Value, apply
from speccc.ir.graph_analysis import nbytes
from speccc.ir.ops import Fn
from speccc.ir.types import F16, F32, I32, Dim, Sym
from speccc.passes.canonicalize import Canonicalize
from speccc.passes.mask_free_attention import MaskFreeAttention, saved_bytes

M, CTX = Sym("m", 1, 4), Sym("ctx", 1, 32)
Q = g.param("q", (M, 4, 8))
K = g.param("k", (CTX, 2, 8), F16)
V = g.param("v", (CTX, 2, 16), F16)
LENGTH, PARENTS = g.param("length", (), I32), g.param("parents", (M,), I32)
PARAMS = (Q, K, V, LENGTH, PARENTS)
MASK = apply(ops_state.TreeMask(CTX), LENGTH, PARENTS)


def naive(
    *,
    keys: Value | None = None,
    values: Value | None = None,
    mask: Value = MASK,
    scale: Value | None = None,
    flip: bool = False,
) -> Value:
    """softmax(q k^T * scale + mask) v as [m, h, e]; `flip` swaps operands of commuting ops."""
    if keys is None:
        keys = g.repeat(g.transpose(g.cast(K, F32), 1, 2, 0), 0, 2)
    if values is None:
        values = g.repeat(g.transpose(g.cast(V, F32), 1, 0, 2), 0, 2)
    scores = apply(ops.BatchedMatmul(), g.transpose(Q, 1, 0, 2), keys)
    if scale is not None:
        scores = g.mul(scale, scores) if flip else g.mul(scores, scale)
    masked = g.add(mask, scores) if flip else g.add(scores, mask)
    out = apply(ops.BatchedMatmul(), apply(ops.Softmax(), masked), values)
    return g.transpose(out, 1, 0, 2)


def run(y: Value) -> Graph:
    graph = Graph(PARAMS, (y,), ("y",))
    return Canonicalize().run(MaskFreeAttention().run(graph))


def expected(scale: float) -> Graph:
    y = apply(ops_state.Attention(scale), Q, K, V, LENGTH, PARENTS)
    return Graph(PARAMS, (y,), ("y",))


def test_before_and_expected() -> None:
    assert run(naive(scale=g.constant(0.25))) == expected(0.25)
    assert run(naive(scale=g.constant([0.25]), flip=True)) == expected(0.25)
    assert run(naive()) == expected(1.0)


def test_heads_may_be_repeated_before_they_are_moved() -> None:
    keys = g.transpose(g.repeat(g.cast(K, F32), 1, 2), 1, 2, 0)
    values = g.cast(g.transpose(g.transpose(g.repeat(V, 1, 2), 1, 2, 0), 0, 2, 1), F32)
    assert run(naive(keys=keys, values=values, scale=g.constant(0.5))) == expected(0.5)


def other_mask(shape: tuple[Dim, ...]) -> Value:
    return g.param("mask", shape)


@pytest.mark.parametrize(
    "y",
    [
        naive(mask=other_mask((M, CTX))),
        naive(mask=g.map_(Fn.MAX, MASK, g.constant(-1.0))),
        naive(mask=g.add(MASK, other_mask((M, CTX)))),
        naive(scale=other_mask((M, CTX))),
        naive(keys=g.repeat(g.param("keys", (2, 8, CTX)), 0, 2)),
        naive(values=g.repeat(g.map_(Fn.EXP, g.transpose(g.cast(V, F32), 1, 0, 2)), 0, 2)),
    ],
)
def test_declines_other_masks_scales_and_caches(y: Value) -> None:
    graph = Graph((*PARAMS, *_extra(y)), (y,), ("y",))
    assert MaskFreeAttention().run(graph) == graph


def attended(q: Value, keys: Value, values: Value, slots: int) -> Graph:
    """Naive attention of q [h, m, d] over keys and values already in place."""
    mask = apply(ops_state.TreeMask(slots), LENGTH, PARENTS)
    scores = g.add(apply(ops.BatchedMatmul(), q, keys), mask)
    y = apply(ops.BatchedMatmul(), apply(ops.Softmax(), scores), values)
    return Graph((LENGTH, PARENTS, *_extra(y)), (y,), ("y",))


def test_declines_a_square_cache_read_the_wrong_way() -> None:
    q, k, v = (g.param(n, s) for n, s in (("q4", (4, M, 8)), ("k8", (8, 4, 8)), ("v8", (8, 4, 8))))
    values = g.transpose(v, 1, 0, 2)
    for perm, found in (((1, 2, 0), 1), ((1, 0, 2), 0)):
        after = MaskFreeAttention().run(attended(q, g.transpose(k, *perm), values, 8))
        kinds = [type(n.op) for n in after.nodes()]
        assert kinds.count(ops_state.Attention) == found


def test_declines_a_repeat_of_anything_but_heads() -> None:
    q, k, v = (g.param(n, s) for n, s in (("q2", (2, M, 8)), ("k4", (6, 2, 4)), ("v4", (6, 2, 4))))
    keys = g.repeat(g.transpose(k, 1, 2, 0), 1, 2)
    graph = attended(q, keys, g.transpose(v, 1, 0, 2), 6)
    assert MaskFreeAttention().run(graph) == graph


def _extra(y: Value) -> tuple[Value, ...]:
    nodes = Graph((), (y,), ("y",)).nodes()
    return tuple(Value(n) for n in nodes if isinstance(n.op, ops.Input) and Value(n) not in PARAMS)


def test_report_counts_masks_and_repeats() -> None:
    before = Graph(PARAMS, (naive(),), ("y",))
    after = MaskFreeAttention().run(before)
    keys, values, mask = 4 * 8 * 32 * 4, 4 * 32 * 16 * 4, 4 * 32 * 4
    assert saved_bytes(before, after) == keys + values + mask
    assert nbytes(MASK.type) == mask
    assert f"saves {keys + values + mask} bytes" in MaskFreeAttention().report(before, after)


@settings(deadline=None, max_examples=80)
@given(cases())
def test_equal_bits(case: Case) -> None:
    assert same_bits(case.run(), case.run(MaskFreeAttention().run(case.graph)))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_llama_has_no_mask_left(kv_heads: int) -> None:
    before, weights = tiny_graph(Tiny(kv_heads=kv_heads))
    after = MaskFreeAttention().run(before)
    kinds = [type(n.op) for n in after.nodes()]
    assert kinds.count(ops_state.Attention) == 2
    assert not {ops_state.TreeMask, ops.Softmax, ops.Repeat} & set(kinds)
    rows = [TinySession(graph, weights, 16).forward([5, 6, 7, 8], [-1, 0, 0, 2])
            for graph in (before, after)]  # fmt: skip
    assert rows[0].tobytes() == rows[1].tobytes()
