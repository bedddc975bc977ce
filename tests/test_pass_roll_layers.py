"""RollLayers: before and expected, where layers differ, and equal bits on generated stacks."""

from __future__ import annotations

import numpy as np
import pytest
from graph_gen import Case, cases, same_bits, stacks
from graph_models import TinySession, tiny_graph
from hypothesis import given, settings
from models import LLAMA3_SCALING, Tiny

from speccc.ir import graph_build as g
from speccc.ir import ops_state
from speccc.ir.graph import Graph, Value, make_body, node
from speccc.ir.graph_verify import verify
from speccc.ir.interp_graph import run
from speccc.ir.ops import Fn
from speccc.ir.ops_state import LEAVES, Loop
from speccc.ir.types import F32, Sym, TensorType
from speccc.passes.graph_pipeline import optimize
from speccc.passes.roll_layers import RollLayers

M = Sym("m", 1, 4)
X, S = g.param("x", (M, 32)), g.param("s", (M, 32))
W = [g.weight(f"w{i}", TensorType((32, 32), F32)) for i in range(4)]


def layer(x: Value, w: Value) -> Value:
    return g.add(g.mul(g.matmul(x, w)[0], S), x)


def graph_of(*results: Value) -> Graph:
    return Graph((X, S), results, tuple(f"y{i}" for i in range(len(results))))


def loops(graph: Graph) -> list[Loop]:
    return [n.op for n in graph.nodes() if isinstance(n.op, Loop)]


def test_before_and_expected() -> None:
    x = g.map_(Fn.EXP, X)
    y = x
    for w in W[:3]:
        y = layer(y, w)
    body = make_body([layer(X, W[0])], [X, S, W[0]])
    expected = Value(node(Loop(body, 3, carried=1, invariant=1), (x, S, *W[:3])))
    before = graph_of(g.map_(Fn.NEG, y))
    assert RollLayers().run(before) == graph_of(g.map_(Fn.NEG, expected))


def test_what_each_trip_leaves_behind_is_a_result() -> None:
    states = [X]
    for w in W:
        states.append(layer(states[-1], w))
    before = graph_of(*states[1:])
    after = RollLayers().run(before)
    (loop,) = loops(after)
    assert (loop.trips, loop.carried, len(loop.body.results)) == (4, 1, 2)
    n = after.results[0].node
    assert [v.port for v in after.results] == [1, 2, 3, 0]
    assert all(v.node is n for v in after.results)


def test_declines_one_layer() -> None:
    graph = graph_of(layer(X, W[0]))
    assert RollLayers().run(graph) == graph


def test_declines_layers_wired_differently() -> None:
    x = layer(X, W[0])
    y = g.add(x, g.mul(g.matmul(x, W[1])[0], S))
    graph = graph_of(y)
    assert RollLayers().run(graph) == graph


def same_after(graph: Graph) -> list[int]:
    """Trips of the loops that rolling makes, having checked the bits."""
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((3, 32)).astype(np.float32) for n in ("x", "s")}
    shapes = {name: t.shape for name, t in graph.weights().items()}
    weights = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    after = RollLayers().run(graph)
    assert same_bits(run(graph, inputs, weights), run(after, inputs, weights))
    return [loop.trips for loop in loops(after)]


def test_a_layer_that_reads_two_layers_back_is_left_out() -> None:
    def skip(x: Value, h: Value, w: Value) -> Value:
        return g.add(x, g.mul(g.matmul(h, w)[0], S))

    one = skip(X, X, W[0])
    two = skip(one, one, W[1])
    assert same_after(graph_of(skip(two, two, W[2]))) == [3]
    assert same_after(graph_of(skip(two, one, W[2]))) == [2]


def test_a_layer_wired_otherwise_inside_is_left_out() -> None:
    def inner(x: Value, w: Value, late: bool) -> Value:
        a = g.map_(Fn.SILU, x)
        b = g.map_(Fn.SILU, a)
        return g.add(g.matmul(b, w)[0], b if late else a)

    assert same_after(graph_of(inner(inner(X, W[0], True), W[1], True))) == [2]
    assert same_after(graph_of(inner(inner(X, W[0], True), W[1], False))) == []


def test_weights_that_are_one_in_some_layer_are_kept_apart() -> None:
    vectors = [g.weight(f"v{i}", TensorType((32,), F32)) for i in range(5)]
    x = X
    for w, scale, shift in zip(W, (0, 1, 2, 3), (4, 1, 0, 2), strict=False):
        x = g.add(g.mul(g.matmul(x, w)[0], vectors[scale]), vectors[shift])
    assert 4 not in same_after(graph_of(x))


@settings(deadline=None, max_examples=60)
@given(stacks())
def test_stacks_are_rolled_with_equal_bits(stack: tuple[Case, int]) -> None:
    case, trips = stack
    rolled = RollLayers().run(case.graph)
    verify(rolled)
    assert same_bits(case.run(), case.run(rolled))
    after = optimize(case.graph)
    assert trips in {loop.trips for loop in loops(after)}
    assert same_bits(case.run(), case.run(after))


@settings(deadline=None, max_examples=60)
@given(cases(24))
def test_equal_bits_of_any_graph(case: Case) -> None:
    after = RollLayers().run(case.graph)
    verify(after)
    assert same_bits(case.run(), case.run(after))


def test_a_llama_is_embed_loop_head() -> None:
    graph, _ = tiny_graph(Tiny(layers=5, rope_scaling=LLAMA3_SCALING), "q4_1")
    after = optimize(graph)
    kinds = [n.op.mnemonic for n in after.nodes() if not isinstance(n.op, LEAVES)]
    assert kinds == ["embed", "loop", "fused"]
    (loop,) = loops(after)
    inner = [n.op.mnemonic for n in loop.body.nodes() if not isinstance(n.op, LEAVES)]
    assert inner == ["fused", "attention", "fused", "fused", "fused"]
    assert (loop.trips, loop.carried) == (5, 1)


FIRST = {"blk.0.attn_q.weight": "q8_0"}
MIDDLE = {f"blk.2.{part}.weight": "q8_0" for part in ("ffn_gate", "ffn_up")}
LATER = {f"blk.{i}.ffn_down.weight": "q4_1" for i in (3, 4, 5)}


@pytest.mark.parametrize(
    ("formats", "trips"),
    [({}, [6]), (FIRST, [5]), (MIDDLE, [2, 3]), (LATER, [3, 3])],
)
def test_layers_of_other_formats_end_a_run(formats: dict[str, str], trips: list[int]) -> None:
    graph, weights = tiny_graph(Tiny(layers=6), formats)
    after = optimize(graph)
    found = loops(after)
    assert [loop.trips for loop in found] == trips
    assert all(loop.carried == 1 for loop in found)
    mixed = optimize(graph)
    rows = [TinySession(x, weights, 8, "int8").forward([5, 6, 7]) for x in (graph, mixed)]
    assert rows[0].tobytes() == rows[1].tobytes()


def test_a_loop_counts_its_arguments() -> None:
    body = make_body([layer(X, W[0])], [X, S, W[0]])
    op = ops_state.Loop(body, 3, carried=1, invariant=1)
    assert [op.arguments(t) for t in range(3)] == [(0, 1, 2), (None, 1, 3), (None, 1, 4)]
