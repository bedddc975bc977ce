"""The rewriter runs to a fixed point, keeps names and origins, and names rules that never end."""

from __future__ import annotations

import pytest

from speccc.errors import VerifyError
from speccc.ir import graph_build as g
from speccc.ir.graph import Graph, Node, Value, origin_of
from speccc.ir.ops import Fn, Map
from speccc.ir.rewrite import Rule, rewrite
from speccc.ir.types import Sym

X = g.param("x", (Sym("m", 1, 4), 8))


def graph_of(*results: Value) -> Graph:
    return Graph((X,), results, tuple(f"y{i}" for i in range(len(results))))


def turn(old: Fn, new: Fn) -> Rule:
    def build(n: Node) -> Value | None:
        return g.map_(new, n.inputs[0]) if n.op == Map(old) else None

    return Rule(f"{old.value}-to-{new.value}", Map, build)


def test_rules_feed_each_other_and_are_counted() -> None:
    before = graph_of(g.map_(Fn.NEG, g.map_(Fn.EXP, X)), g.map_(Fn.SQRT, X))
    done = rewrite(before, [turn(Fn.EXP, Fn.NEG), turn(Fn.NEG, Fn.SILU)])
    assert done.graph == graph_of(g.map_(Fn.SILU, g.map_(Fn.SILU, X)), g.map_(Fn.SQRT, X))
    assert done.hits == {"exp-to-neg": 1, "neg-to-silu": 2}


def test_what_a_rule_builds_is_rewritten_too() -> None:
    def build(n: Node) -> Value | None:
        if n.op != Map(Fn.EXP):
            return None
        return g.add(g.map_(Fn.NEG, n.inputs[0]), n.inputs[0])

    done = rewrite(graph_of(g.map_(Fn.EXP, X)), [Rule("split", Map, build), turn(Fn.NEG, Fn.SILU)])
    assert done.graph == graph_of(g.add(g.map_(Fn.SILU, X), X))


def test_declining_rules_leave_the_graph() -> None:
    before = graph_of(g.map_(Fn.SILU, X))
    done = rewrite(before, [turn(Fn.EXP, Fn.NEG)])
    assert done.graph == before
    assert not done.hits


def test_origins_are_kept() -> None:
    before = graph_of(g.map_(Fn.EXP, X, origin="layer"))
    (after,) = rewrite(before, [turn(Fn.EXP, Fn.RSQRT)]).graph.results
    assert origin_of(after.node) == "layer"


def test_ping_pong_is_named() -> None:
    rules = [turn(Fn.EXP, Fn.NEG), turn(Fn.NEG, Fn.EXP)]
    with pytest.raises(VerifyError, match=r"50 rewrites without an end; last: .*-to-.*, .*-to-"):
        rewrite(graph_of(g.map_(Fn.EXP, X)), rules, limit=50)


def test_a_rule_may_not_change_a_type() -> None:
    bad = Rule("bad", Map, lambda n: g.reshape(n.inputs[0], 8, Sym("m", 1, 4)))
    with pytest.raises(VerifyError, match="rule bad changes the type"):
        rewrite(graph_of(g.map_(Fn.EXP, X)), [bad])
