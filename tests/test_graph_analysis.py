"""Analyses of graphs: users, reachability, liveness and repeated structure."""

from __future__ import annotations

from graph_gen import Case, cases
from hypothesis import given, settings

from speccc.ir import graph_build as g
from speccc.ir.formats import Q4_1
from speccc.ir.graph import Graph, Value
from speccc.ir.graph_analysis import (
    find_repeat,
    liveness,
    nbytes,
    peak_bytes,
    reaches,
    to_networkx,
    users,
)
from speccc.ir.ops import Fn
from speccc.ir.ops_state import LEAVES
from speccc.ir.types import F16, Sym, TensorType

M = Sym("m", 1, 4)
X = g.param("x", (M, 8))


def test_bytes_count_symbols_at_their_bounds() -> None:
    assert nbytes(TensorType((M, 8), F16)) == 4 * 8 * 2
    assert nbytes(TensorType((2, 64), Q4_1)) == 2 * 2 * 20


def test_users_and_reachability() -> None:
    e = g.map_(Fn.EXP, X)
    n, y = g.map_(Fn.NEG, X), g.add(e, e)
    graph = Graph((X,), (y, n), ("y", "n"))
    assert users(graph) == {X: (e.node, n.node), e: (y.node,)}
    assert reaches(graph, X.node, y.node)
    assert not reaches(graph, n.node, y.node)


def test_peak_of_a_chain_is_two_values_and_of_a_long_hold_three() -> None:
    one = 4 * 8 * 4
    a = g.map_(Fn.EXP, X)
    b = g.map_(Fn.NEG, a)
    c = g.map_(Fn.SILU, b)
    assert peak_bytes(Graph((X,), (c,), ("y",))) == 2 * one
    assert peak_bytes(Graph((X,), (g.add(c, a),), ("y",))) == 3 * one


@settings(deadline=None, max_examples=40)
@given(cases())
def test_values_outlive_their_users(case: Case) -> None:
    graph = case.graph
    order = [n for n in graph.nodes() if not isinstance(n.op, LEAVES)]
    span = {s.value: s for s in liveness(graph)}
    for step, n in enumerate(order):
        for v in n.inputs:
            assert v not in span or span[v].start < step <= span[v].stop
    assert all(span[v].stop == len(order) for v in graph.results if v in span)
    edges = to_networkx(graph)
    assert set(edges.nodes) == set(graph.nodes())
    assert edges.number_of_edges() == len({(v.node, n) for n in graph.nodes() for v in n.inputs})


def stack(weights: list[Value]) -> Graph:
    x = X
    for w in weights:
        x = g.add(g.map_(Fn.EXP, x), g.matmul(x, w)[0])
    return Graph((X,), (x,), ("y",))


def weight(name: str, k: int = 8) -> Value:
    return g.weight(name, TensorType((8, k), X.type.elem))


def test_a_stack_is_found() -> None:
    found = find_repeat(stack([weight(f"w{i}") for i in range(3)]))
    assert found is not None
    assert (found.period, found.trips, len(found.carried)) == (3, 3, 1)
    assert found.stacked == (tuple(weight(f"w{i}") for i in range(3)),)
    assert found.invariant == ()


def test_nothing_repeats_in_one_layer_or_without_a_difference() -> None:
    assert find_repeat(stack([weight("w0")])) is None
    x = X
    for _ in range(5):
        x = g.map_(Fn.EXP, x)
    assert find_repeat(Graph((X,), (x,), ("y",))) is None


def test_a_skip_over_two_layers_is_not_a_layer() -> None:
    states: list[Value] = [X, g.map_(Fn.NEG, X)]
    for i in range(4):
        states.append(g.add(states[-2], g.matmul(states[-1], weight(f"w{i}"))[0]))
    found = find_repeat(Graph((X,), (states[-1],), ("y",)))
    assert found is None or found.period % 4 == 0
