"""The runner of graph passes: verification, observation, dumps; and the whole graph pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from graph_gen import Case, cases, same_bits
from graph_models import TinySession, tiny_graph
from hypothesis import given, settings
from models import Tiny

from speccc.errors import VerifyError
from speccc.ir import graph_build as g
from speccc.ir.graph import Graph
from speccc.ir.graph_text import parse_graph
from speccc.ir.ops import Fn
from speccc.passes.graph_pipeline import GRAPH_PASSES, optimize
from speccc.passes.pipeline import DumpStages, GraphPass, Stage, run_passes

X = g.param("x", (8,))
GRAPH = Graph((X,), (X,), ("y",))


class Square(GraphPass):
    """Replaces the results by their squares."""

    name: ClassVar[str] = "square"

    def run(self, graph: Graph) -> Graph:
        return Graph(graph.params, tuple(g.mul(v, v) for v in graph.results), graph.names)

    def report(self, before: Graph, after: Graph) -> str:
        return "squared"


class Idle(GraphPass):
    """Does nothing."""

    name: ClassVar[str] = "idle"

    def run(self, graph: Graph) -> Graph:
        return graph


class Break(GraphPass):
    """Loses a parameter."""

    name: ClassVar[str] = "break"

    def run(self, graph: Graph) -> Graph:
        return Graph((), graph.results, graph.names)


class Rename(GraphPass):
    """Changes the interface."""

    name: ClassVar[str] = "rename"

    def run(self, graph: Graph) -> Graph:
        return Graph(graph.params, graph.results, ("z",))


def test_stages_are_told_and_dumped_when_changed(tmp_path: Path) -> None:
    told: list[Stage] = []
    dump = DumpStages(tmp_path / "dump")

    def observe(stage: Stage) -> None:
        told.append(stage)
        dump(stage)

    after = run_passes(GRAPH, [Idle(), Square(), Idle()], observe)
    assert [(s.number, s.name, s.changed) for s in told] == [
        (0, "input", True),
        (1, "idle", False),
        (2, "square", True),
        (3, "idle", False),
    ]
    assert all(s.seconds >= 0 for s in told)
    files = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert files == ["00-input.graph", "02-square.graph"]
    text = (tmp_path / "dump" / "02-square.graph").read_text()
    assert text.startswith("# squared\n")
    assert parse_graph(text) == after == Graph((X,), (g.map_(Fn.MUL, X, X),), ("y",))


def test_the_pass_that_breaks_a_graph_is_named() -> None:
    with pytest.raises(VerifyError, match=r"after break: .*input x is not a parameter"):
        run_passes(GRAPH, [Break()])
    with pytest.raises(VerifyError, match="after rename: the graph's parameters or results"):
        run_passes(GRAPH, [Rename()])


def test_a_broken_graph_does_not_enter() -> None:
    with pytest.raises(VerifyError):
        run_passes(Graph((), (X,), ("y",)), [])


@settings(deadline=None, max_examples=60)
@given(cases(20))
def test_the_whole_pipeline_keeps_bits(case: Case) -> None:
    after = optimize(case.graph)
    assert same_bits(case.run(), case.run(after))
    assert optimize(after) == after


@pytest.mark.parametrize("mode", ["f32", "int8"])
def test_a_llama_keeps_its_bits_at_every_stage(mode: str) -> None:
    graph, weights = tiny_graph(Tiny(layers=3, tied=False), "q4_1")
    stages: list[Stage] = []
    optimize(graph, stages.append)
    assert [s.name for s in stages] == ["input", *(p.name for p in GRAPH_PASSES)]
    assert "saves" in stages[2].report
    first: bytes | None = None
    for stage in stages:
        session = TinySession(stage.graph, weights, 16, mode)
        rows = session.forward([5, 6, 7]).tobytes() + session.forward([8, 9], [-1, -1]).tobytes()
        rows += b"".join(x.tobytes() for x in session.caches.values())
        first = first or rows
        assert rows == first, stage.name
