"""FuseRegions: before and expected, what it leaves out, and equal bits on generated graphs."""

from __future__ import annotations

import numpy as np
from graph_gen import Case, cases, same_bits, stacks
from graph_models import TinySession, tiny_graph
from hypothesis import given, settings
from models import Tiny

from speccc.ir import graph_build as g
from speccc.ir import ops, ops_state
from speccc.ir.graph import Graph, Value, apply, make_body, node
from speccc.ir.graph_verify import verify
from speccc.ir.interp_graph import run
from speccc.ir.ops import Fn
from speccc.ir.ops_state import LEAVES, Fused
from speccc.ir.region import read_region
from speccc.ir.types import F16, F32, I32, Sym, TensorType
from speccc.passes.fuse_projections import FuseProjections
from speccc.passes.fuse_regions import FuseRegions
from speccc.passes.mask_free_attention import MaskFreeAttention

M = Sym("m", 1, 4)
X = g.param("x", (M, 32))
W, V = (g.weight(n, TensorType((32, 32), F32)) for n in "wv")
NORM = g.weight("norm", TensorType((32,), F32))


def graph_of(*results: Value) -> Graph:
    return Graph((X,), results, tuple(f"y{i}" for i in range(len(results))))


def fused(results: list[Value], outside: list[Value]) -> tuple[Value, ...]:
    n = node(Fused(make_body(results, outside)), outside)
    return tuple(Value(n, i) for i in range(len(results)))


def kinds(graph: Graph) -> list[str]:
    return [n.op.mnemonic for n in graph.nodes() if not isinstance(n.op, LEAVES)]


def test_norm_matmul_and_residual_are_one_region() -> None:
    y = g.add(X, g.matmul(apply(ops.RmsNorm(1e-5), X, NORM), W)[0])
    after = FuseRegions().run(graph_of(y))
    assert after == graph_of(*fused([y], [X, NORM, W]))
    region = read_region(after.results[0].node.op.body)  # type: ignore[attr-defined]
    assert [n.op for n in region.epilogue] == [ops.Map(Fn.ADD)]
    assert region.norm is not None
    assert region.norm.op == ops.RmsNorm(1e-5)
    assert (region.position(region.x), region.position(region.weights[0])) == (0, 2)


def test_equal_layers_share_one_body() -> None:
    first = g.map_(Fn.SILU, g.matmul(X, W)[0])
    second = g.map_(Fn.SILU, g.matmul(first, V)[0])
    after = FuseRegions().run(graph_of(second))
    assert kinds(after) == ["fused", "fused"]
    assert len({n.op for n in after.nodes() if isinstance(n.op, Fused)}) == 1


def test_values_read_elsewhere_are_results() -> None:
    y = g.matmul(X, W)[0]
    z = g.map_(Fn.SILU, y)
    after = FuseRegions().run(graph_of(z, apply(ops.Softmax(), y)))
    y2, z2 = fused([y, z], [X, W])
    assert after == graph_of(z2, apply(ops.Softmax(), y2))


def test_a_region_does_not_wait_for_what_comes_after_it() -> None:
    """softmax(y) is not there when y's matmul starts, so the sum stays outside."""
    y = g.matmul(X, W)[0]
    after = FuseRegions().run(graph_of(g.add(y, apply(ops.Softmax(), y))))
    assert kinds(after) == ["fused", "softmax", "map"]


def test_two_matmuls_meet_in_the_later_one() -> None:
    y = g.mul(g.map_(Fn.SILU, g.matmul(X, W)[0]), g.matmul(X, V)[0])
    after = FuseRegions().run(graph_of(y))
    assert kinds(after) == ["fused", "fused"]
    bodies = [n.op.body for n in after.nodes() if isinstance(n.op, Fused)]
    assert [len(read_region(b).epilogue) for b in bodies] == [1, 1]


def test_a_shared_norm_is_done_in_each_region() -> None:
    h = apply(ops.RmsNorm(1e-5), X, NORM)
    after = FuseRegions().run(graph_of(g.matmul(h, W)[0], g.matmul(h, V)[0]))
    assert kinds(after) == ["fused", "fused"]


def test_a_norm_that_others_read_stays_outside() -> None:
    h = apply(ops.RmsNorm(1e-5), X, NORM)
    after = FuseRegions().run(graph_of(g.matmul(h, W)[0], h))
    assert kinds(after) == ["rms_norm", "fused"]
    after = FuseRegions().run(graph_of(g.matmul(h, W)[0], g.map_(Fn.NEG, h)))
    assert sorted(kinds(after)) == ["fused", "map", "rms_norm"]


def test_what_mixes_rows_stays_outside() -> None:
    y = g.matmul(X, W)[0]
    for z in (g.transpose(y, 1, 0), apply(ops.Softmax(), y), apply(ops.Reduce(Fn.ADD, 1), y)):
        assert kinds(FuseRegions().run(graph_of(z)))[0] == "fused"
        assert len(kinds(FuseRegions().run(graph_of(z)))) == 2


def test_moved_rows_stay_outside() -> None:
    """[m, 32] as [8, m, 4] and a broadcast to [4, m, 32] no longer have rows first."""
    y = g.matmul(X, W)[0]
    for z in (g.reshape(y, 8, M, 4), g.add(y, g.constant([[[1.0]]] * 4))):
        assert kinds(FuseRegions().run(graph_of(z)))[0] == "fused"
        assert len(kinds(FuseRegions().run(graph_of(z)))) == 2


def test_a_norm_that_is_also_a_weight_stays_outside() -> None:
    h = apply(ops.RmsNorm(1e-5), X, NORM)
    graph = graph_of(g.matmul(h, h)[0])
    after = FuseRegions().run(graph)
    assert kinds(after) == ["rms_norm", "fused"]
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    weights = {"norm": x[0]}
    assert same_bits(run(graph, {"x": x}, weights), run(after, {"x": x}, weights))


def test_a_cache_append_is_part_of_its_region() -> None:
    cache, length = g.param("c", (9, 4, 8), F16), g.param("length", (), I32)
    y = g.cache_append(cache, g.reshape(g.matmul(X, W)[0], M, 4, 8), length)
    before = Graph((X, cache, length), (y,), ("y",))
    assert kinds(FuseRegions().run(before)) == ["fused"]


def test_declines_without_a_matmul() -> None:
    graph = graph_of(g.map_(Fn.EXP, X))
    assert FuseRegions().run(graph) is graph


@settings(deadline=None, max_examples=150)
@given(cases(24))
def test_equal_bits(case: Case) -> None:
    after = FuseRegions().run(case.graph)
    verify(after)
    assert ops.Matmul not in {type(n.op) for n in after.nodes()}
    assert all(read_region(n.op.body) for n in after.nodes() if isinstance(n.op, Fused))
    assert same_bits(case.run(), case.run(after))


@settings(deadline=None, max_examples=40)
@given(stacks())
def test_equal_bits_of_stacks(stack: tuple[Case, int]) -> None:
    case, _ = stack
    assert same_bits(case.run(), case.run(FuseRegions().run(case.graph)))


def test_a_llama_layer_is_five_phases() -> None:
    before, weights = tiny_graph(Tiny(), "q4_1")
    after = FuseRegions().run(FuseProjections().run(MaskFreeAttention().run(before)))
    layer = ["fused", "attention", "fused", "fused", "fused"]
    found = [k for k in kinds(after) if k != "transpose"]
    assert found == ["embed", *layer, *layer, "fused"]
    bodies = {n.op.body for n in after.nodes() if isinstance(n.op, ops_state.Fused)}
    assert len(bodies) == 5
    rows = [TinySession(x, weights, 8, "int8").forward([5, 6, 7]) for x in (before, after)]
    assert rows[0].tobytes() == rows[1].tobytes()


def test_a_reshape_that_ends_one_region_does_not_start_the_next() -> None:
    """Two matmuls with only reshapes between them: each is a region, and none is left alone."""
    m = Sym("m", 1, 4)
    x = g.param("x", (m, 32), F32)
    (first,) = g.matmul(x, g.weight("a", TensorType((4, 32), F32)))
    moved = g.reshape(g.reshape(first, m, 1, 4), m, 4)
    (second,) = g.matmul(moved, g.weight("b", TensorType((4, 4), F32)))
    after = FuseRegions().run(Graph((x,), (second,), ("y",)))
    verify(after)
    kinds = [type(n.op) for n in after.nodes()]
    assert ops.Matmul not in kinds
    assert kinds.count(Fused) == 2
