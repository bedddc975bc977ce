"""The graph verifier names the node, its origin and the rule that it breaks."""

from __future__ import annotations

import pytest
from graph_gen import Case, cases
from hypothesis import given, settings

from speccc.errors import VerifyError
from speccc.ir import graph_build as g
from speccc.ir import ops_state
from speccc.ir.graph import Graph, Node, Value, apply, make_body
from speccc.ir.graph_verify import verify
from speccc.ir.ops import Fn, Map
from speccc.ir.types import F32, Sym, TensorType

X = g.param("x", (Sym("m", 1, 4), 8))


@settings(deadline=None, max_examples=30)
@given(cases())
def test_generated_graphs_pass(case: Case) -> None:
    verify(case.graph)


def refused(graph: Graph, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(graph, where="after a-pass")


def test_a_type_that_does_not_follow() -> None:
    wrong = Node(Map(Fn.EXP), (X,), (TensorType((9,), F32),))
    refused(Graph((X,), (Value(wrong),), ("y",)), r"after a-pass: %1 map: gives f32\[m, 8\] but")


def test_a_result_that_is_not_there() -> None:
    refused(Graph((X,), (Value(X.node, 1),), ("y",)), "result y is result 1")
    late = Node(Map(Fn.EXP), (Value(X.node, 2),), X.node.outs)
    refused(Graph((X,), (Value(late),), ("y",)), "reads result 2")


def test_an_input_that_is_no_parameter() -> None:
    refused(Graph((), (g.map_(Fn.EXP, X),), ("y",)), r"%0 input \(x\): input x is not a parameter")


def test_names_mean_one_thing() -> None:
    other = g.param("x", (Sym("m", 1, 4), 9))
    refused(Graph((X, other), (X,), ("y",)), "two parameters have one name")
    refused(Graph((X,), (X, X), ("y", "y")), "names do not pair up")
    refused(Graph((X,), (X,), ()), "names do not pair up")
    late = g.param("z", (Sym("m", 1, 5), 8))
    refused(Graph((X, late), (X,), ("y",)), "symbol m has two bounds")
    a, b = (g.weight("w", TensorType((n,), F32)) for n in (8, 9))
    refused(Graph((), (a, b), ("a", "b")), "tensor w has two types")


def test_a_parameter_is_an_input() -> None:
    y = g.map_(Fn.EXP, X)
    refused(Graph((y,), (y,), ("y",)), "a parameter is not an input")


def test_bodies_are_closed() -> None:
    w = g.weight("w", TensorType((8,), F32))
    body = make_body([g.add(X, w)], [X])
    call = apply(ops_state.Fused(body), X)
    refused(Graph((X,), (call,), ("y",)), "fused: a body names a weight")
    body = Graph((X,), (g.add(X, g.param("stray", (8,))),), ("r0",))
    call = apply(ops_state.Fused(body), X)
    refused(Graph((X,), (call,), ("y",)), "input stray is not a parameter")
