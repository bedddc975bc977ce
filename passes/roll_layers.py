"""Layers of one structure in a row -> a loop over one body: code does not grow with depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from speccc.errors import VerifyError
from speccc.ir import ops_state
from speccc.ir.graph import Graph, Node, Value, add_origins, make_body, node
from speccc.ir.graph_analysis import Repeat, find_repeat
from speccc.ir.rewrite import rebuild
from speccc.passes.pipeline import GraphPass


@dataclass(frozen=True)
class RollLayers(GraphPass):
    """layer(layer(x, w0), w1) -> loop(x, w0, w1), for every run of two or more isomorphic pieces.

    Pieces are found by structure (ops, types and formats, wiring), not by name. What one hands to
    the next is carried; weights and caches are per-trip; the rest is invariant.
    """

    name: ClassVar[str] = "roll-layers"

    def run(self, graph: Graph) -> Graph:
        """Roll the longest run until there is none."""
        while (found := find_repeat(graph)) is not None:
            after = roll(graph, found)
            if len(after.nodes()) >= len(graph.nodes()):
                raise VerifyError(f"rolling {found.trips} layers left them in place")
            graph = after
        return graph


def roll(graph: Graph, r: Repeat) -> Graph:
    """The graph with one run replaced by a loop."""
    members = r.order[r.start : r.start + r.covered]
    kept = _kept(graph, r, members)
    carried = [r.at(0, *place) for place, _ in r.carried]
    # Trip 1 is the pattern: there every parameter of the body is a different value.
    outside = [*carried, *r.invariant, *(values[1] for values in r.stacked)]
    inside = [r.at(1, *place) for place in (*(p for p, _ in r.carried), *kept)]
    body = make_body(inside, outside)
    op = ops_state.Loop(body, r.trips, len(r.carried), len(r.invariant))
    inputs = [*(first for _, first in r.carried), *r.invariant, *(v for s in r.stacked for v in s)]
    places: dict[Value, int] = {}
    for i, place in enumerate(kept):
        for trip in range(r.trips):
            places[r.at(trip, *place)] = len(r.carried) + i * r.trips + trip
    for i, (place, _) in enumerate(r.carried):
        places[r.at(r.trips - 1, *place)] = i
    first, inside_run = members[0], set(members)
    known: dict[Value, Value] = {}

    def replace(n: Node, new: tuple[Value, ...]) -> tuple[Value, ...] | None:
        if n is first:
            loop = node(op, (known.get(v, v) for v in inputs))
            add_origins(loop, *members)
            known.update((v, Value(loop, i)) for v, i in places.items())
        outs = tuple(Value(n, i) for i in range(len(n.outs)))
        if n in inside_run:
            return tuple(known.get(v, v) for v in outs)
        made = node(n.op, new)
        fresh = tuple(Value(made, i) for i in range(len(made.outs)))
        known.update(zip(outs, fresh, strict=True))
        return fresh

    return rebuild(graph, replace)


def _kept(graph: Graph, r: Repeat, members: tuple[Node, ...]) -> tuple[tuple[int, int], ...]:
    """(offset, port) of values read after the run, other than the last carried ones."""
    run = set(members)
    read = set(graph.results)
    read.update(v for n in graph.nodes() if n not in run for v in n.inputs)
    places = {place for place, _ in r.carried}
    return tuple(
        (offset, port)
        for offset in range(r.period)
        for port in range(len(r.at(0, offset, 0).node.outs))
        if any(
            r.at(trip, offset, port) in read
            and not (trip == r.trips - 1 and (offset, port) in places)
            for trip in range(r.trips)
        )
    )
