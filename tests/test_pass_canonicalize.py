"""Canonicalize: before and expected, what it declines, and equal bits on generated graphs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graph_gen import Case, cases, same_bits
from hypothesis import given, settings

from speccc.ir import graph_build as g
from speccc.ir import ops
from speccc.ir.graph import Graph, Value, apply
from speccc.ir.ops import Fn
from speccc.ir.types import F16, F32, Sym
from speccc.passes.canonicalize import MAX_FOLDED, RULES, Canonicalize, canonicalize

M = Sym("m", 1, 4)
X = g.param("x", (M, 2, 8))
FLAT = g.param("flat", (M, 8))


def graph_of(*results: Value) -> Graph:
    return Graph((X, FLAT), results, tuple(f"y{i}" for i in range(len(results))))


def cut(x: Value, start: int, stop: int) -> Value:
    return apply(ops.Slice(1, start, stop), x)


EXPECTED = {
    "fold-constants": (g.mul(FLAT, g.add(g.constant(1.0), g.constant(2.0))),
                       g.mul(FLAT, g.constant(3.0))),
    "drop-reshape": (g.reshape(X, M, 2, 8), X),
    "drop-cast": (apply(ops.Cast(F32), X), X),
    "drop-slice": (cut(FLAT, 0, 8), FLAT),
    "drop-repeat": (g.repeat(X, 1, 1), X),
    "drop-concat": (apply(ops.Concat(1), X), X),
    "merge-reshapes": (g.reshape(g.reshape(X, M, 16), M, 4, 4), g.reshape(X, M, 4, 4)),
    "merge-transposes": (g.transpose(g.transpose(X, 1, 0, 2), 1, 0, 2), X),
    "slice-of-concat": (cut(apply(ops.Concat(1), FLAT, cut(FLAT, 1, 3)), 8, 10), cut(FLAT, 1, 3)),
    "merge-slices": (cut(cut(FLAT, 2, 7), 1, 3), cut(FLAT, 3, 5)),
    "drop-neutral": (g.mul(g.constant(1.0), g.map_(Fn.SUB, X, g.constant(0.0))), X),
    "double-negation": (g.map_(Fn.NEG, g.map_(Fn.NEG, X)), X),
}  # fmt: skip


def test_every_rule_has_an_example() -> None:
    assert list(EXPECTED) == [r.name for r in RULES]


@pytest.mark.parametrize("rule", EXPECTED)
def test_before_and_expected(rule: str) -> None:
    before, expected = EXPECTED[rule]
    done = canonicalize(graph_of(before))
    assert done.graph == graph_of(expected)
    assert rule in done.hits


@pytest.mark.parametrize(
    "y",
    [
        g.add(X, g.constant(0.0)),  # -0.0 + 0.0 is 0.0
        g.map_(Fn.SUB, g.constant(0.0), X),
        g.map_(Fn.DIV, g.constant(1.0), X),
        g.mul(g.param("x", (M, 2, 8)), g.constant(np.ones((3, 1, 1, 1)))),  # broadcasts
        g.cast(g.cast(X, F16), F32),  # rounds
        g.transpose(X, 1, 0, 2),
        cut(apply(ops.Concat(1), FLAT, FLAT), 4, 12),
        g.repeat(g.constant(np.ones(8)), 0, MAX_FOLDED),  # too large to fold
    ],
)
def test_declines_what_would_change_bits_or_size(y: Value) -> None:
    graph = graph_of(y)
    assert Canonicalize().run(graph) == graph


@settings(deadline=None, max_examples=80)
@given(cases())
def test_equal_bits(case: Case) -> None:
    assert same_bits(case.run(), case.run(Canonicalize().run(case.graph)))


def test_generated_graphs_reach_the_rules() -> None:
    hits: Counter[str] = Counter()

    @settings(deadline=None, max_examples=150, database=None, derandomize=True)
    @given(cases(24))
    def collect(case: Case) -> None:
        hits.update(canonicalize(case.graph).hits)

    collect()
    rare = {"drop-cast", "drop-concat"}  # node makers do not build them
    assert {r.name for r in RULES} - rare <= set(hits)
