"""Passes over the Graph IR and the runner that verifies, times and dumps them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from speccc.errors import VerifyError
from speccc.ir.graph import Graph
from speccc.ir.graph_text import print_graph
from speccc.ir.graph_verify import verify


@dataclass(frozen=True)
class GraphPass(ABC):
    """A graph to an equal, better graph. Fields of a subclass are its options."""

    name: ClassVar[str] = ""

    @abstractmethod
    def run(self, graph: Graph) -> Graph:
        """The graph afterwards; the same object when there is nothing to do."""

    def report(self, before: Graph, after: Graph) -> str:
        """One line on what was gained, or nothing."""
        return ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What an observer is told after each pass; number 0 is the input."""

    number: int
    name: str
    graph: Graph
    changed: bool
    seconds: float
    report: str


Observer = Callable[[Stage], None]


def run_passes(graph: Graph, passes: Sequence[GraphPass], observe: Observer | None = None) -> Graph:
    """Run passes in order, verifying before the first and after each that changed something.

    VerifyError names the pass that broke the graph.
    """
    verify(graph)
    tell = observe or (lambda stage: None)
    tell(Stage(0, "input", graph, True, 0.0, ""))
    for number, step in enumerate(passes, 1):
        begun = time.perf_counter()
        after = step.run(graph)
        spent = time.perf_counter() - begun
        changed = after != graph
        if changed:
            _verify_after(step, graph, after)
        report = step.report(graph, after) if changed else ""
        tell(Stage(number, step.name, after, changed, spent, report))
        graph = after
    return graph


def _verify_after(step: GraphPass, before: Graph, after: Graph) -> None:
    verify(after, where=f"after {step.name}")
    same_interface = (
        before.params == after.params
        and before.names == after.names
        and [v.type for v in before.results] == [v.type for v in after.results]
    )
    if not same_interface:
        raise VerifyError("the graph's parameters or results changed", where=f"after {step.name}")


@dataclass(frozen=True, slots=True)
class DumpStages:
    """An observer that writes each changed stage to `folder` as <number>-<name>.graph."""

    folder: Path
    write: Callable[[Path, str], object] = Path.write_text

    def __call__(self, stage: Stage) -> None:
        """Write one stage; the folder is made when needed."""
        if not stage.changed:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        note = f"# {stage.report}\n" if stage.report else ""
        text = note + print_graph(stage.graph)
        self.write(self.folder / f"{stage.number:02}-{stage.name}.graph", text)
