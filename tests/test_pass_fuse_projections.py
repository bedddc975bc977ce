"""FuseProjections: before and expected, what it declines, equal bits."""

from __future__ import annotations

from graph_gen import Case, cases, same_bits
from graph_models import TinySession, tiny_graph
from hypothesis import given, settings
from models import Tiny

from speccc.ir import graph_build as g
from speccc.ir import ops
from speccc.ir.formats import Q4_1, Q8_0, Format
from speccc.ir.graph import Graph, Value
from speccc.ir.ops import Fn
from speccc.ir.types import F32, DType, Sym, TensorType
from speccc.passes.fuse_projections import FuseProjections

X = g.param("x", (Sym("m", 1, 4), 32))


def weight(name: str, elem: DType | Format = Q4_1, rows: int = 32) -> Value:
    return g.weight(name, TensorType((rows, 32), elem))


def graph_of(*results: Value) -> Graph:
    return Graph((X,), results, tuple(f"y{i}" for i in range(len(results))))


def test_before_and_expected() -> None:
    a, b, c = (weight(n, rows=r) for n, r in (("a", 32), ("b", 8), ("c", 8)))
    before = graph_of(*(g.matmul(X, w)[0] for w in (a, b, c)))
    assert FuseProjections().run(before) == graph_of(*g.matmul(X, a, b, c))


def test_groups_below_groups() -> None:
    a, b, c, d = (weight(n) for n in "abcd")
    (p,), (q,) = g.matmul(X, a), g.matmul(X, b)
    h = g.mul(p, q)
    before = graph_of(g.matmul(h, c)[0], g.matmul(h, d)[0])
    p, q = g.matmul(X, a, b)
    assert FuseProjections().run(before) == graph_of(*g.matmul(g.mul(p, q), c, d))


def test_formats_stay_apart_unless_told() -> None:
    a, b, c = weight("a"), weight("b", Q8_0), weight("c")
    before = graph_of(*(g.matmul(X, w)[0] for w in (a, b, c)))
    p, r = g.matmul(X, a, c)
    assert FuseProjections().run(before) == graph_of(p, g.matmul(X, b)[0], r)
    assert FuseProjections(mixed=True).run(before) == graph_of(*g.matmul(X, a, b, c))


def test_declines_one_matmul_and_computed_weights() -> None:
    one = graph_of(g.matmul(X, weight("a"))[0])
    assert FuseProjections().run(one) is one
    made = g.map_(Fn.NEG, weight("b", F32))
    two = graph_of(g.matmul(X, weight("a", F32))[0], g.matmul(X, made)[0])
    assert FuseProjections().run(two) is two


@settings(deadline=None, max_examples=80)
@given(cases())
def test_equal_bits(case: Case) -> None:
    for mixed in (False, True):
        assert same_bits(case.run(), case.run(FuseProjections(mixed).run(case.graph)))


def test_a_llama_layer_has_four_matmuls() -> None:
    before, weights = tiny_graph(Tiny(), "q4_1")
    after = FuseProjections().run(before)
    counts = [len(n.outs) for n in after.nodes() if isinstance(n.op, ops.Matmul)]
    assert counts == [3, 1, 2, 1] * 2 + [1]
    rows = [TinySession(x, weights, 8, "int8").forward([5, 6, 7]) for x in (before, after)]
    assert rows[0].tobytes() == rows[1].tobytes()
