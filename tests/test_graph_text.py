"""Graph text prints and reads back to the same interned graph; bad text is named by line."""

from __future__ import annotations

import pytest
from graph_gen import Case, cases, stacks
from graph_models import tiny_graph
from hypothesis import given, settings
from models import LLAMA3_SCALING, Tiny

from speccc.errors import InputError
from speccc.ir import graph_build as g
from speccc.ir.graph import Graph
from speccc.ir.graph_text import parse_graph, print_graph
from speccc.ir.ops import Fn
from speccc.ir.types import Sym
from speccc.passes.graph_pipeline import optimize


@settings(deadline=None, max_examples=60)
@given(cases())
def test_round_trip(case: Case) -> None:
    assert parse_graph(print_graph(case.graph)) == case.graph


@settings(deadline=None, max_examples=30)
@given(stacks())
def test_round_trip_with_bodies(stack: tuple[Case, int]) -> None:
    graph = optimize(stack[0].graph)
    text = print_graph(graph)
    assert "graph @b0" in text
    assert parse_graph(text) == graph


def test_bodies_inside_bodies_have_their_own_names() -> None:
    graph = optimize(tiny_graph(Tiny(rope_scaling=LLAMA3_SCALING, tied=False), "q4_1")[0])
    text = print_graph(graph)
    heads = [line for line in text.splitlines() if line.startswith("graph")]
    assert len(heads) == len(set(heads)) > 4
    assert parse_graph(text) == graph


def test_text_is_readable() -> None:
    x = g.param("x", (Sym("m", 1, 4), 8))
    graph = Graph((x,), (g.map_(Fn.EXP, x, origin="here"),), ("y",))
    assert print_graph(graph) == (
        "sym m 1..4\n"
        "graph @main {\n"
        '  %0 = input{name="x", type=f32[m, 8]}() : f32[m, 8]  # x\n'
        "  %1 = map{fn=fn.exp}(%0) : f32[m, 8]  # here\n"
        "  params(%0)\n"
        '  results("y"=%1)\n'
        "}\n"
    )


GOOD = (
    'graph @main {\n%0 = input{name="x", type=f32[8]}() : f32[8]\nparams(%0)\nresults("y"=%0)\n}\n'
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("input{", "inputs{", "line 2: there is no op 'inputs'"),
        (": f32[8]\np", ": f32[9]\np", r"line 2: input gives f32\[8\]"),
        ("type=f32[8]", "type=f99[8]", "line 2: there is no element type 'f99'"),
        ("type=f32[8]", "type=f32[m]", "line 2: symbol 'm' is not defined"),
        (", type=f32[8]", "", "line 2: input: .*type"),
        ("params(%0)", "params(%1)", "line 3: %1:0 is not defined"),
        ("params(%0)", "params(%0) ~", "line 3: cannot read '~'"),
        ("params(%0)", "params(%0", "line 3"),
        ("results", "result", "line 4: a line cannot begin with 'result'"),
        ("\n}\n", "\n", "graph text: ends before"),
    ],
)
def test_bad_text_is_named_by_line(old: str, new: str, message: str) -> None:
    assert parse_graph(GOOD).names == ("y",)
    with pytest.raises(InputError, match=message):
        parse_graph(GOOD.replace(old, new, 1))
