"""Questions about a graph: users, reachability (networkx answers), liveness, repetition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from speccc.ir.graph import Graph, Node, Value
from speccc.ir.ops import Constant
from speccc.ir.ops_state import LEAVES
from speccc.ir.types import DType, Sym, TensorType

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(graph: Graph) -> nx.DiGraph:
    """Nodes with an edge from each producer to each user."""
    import networkx as nx  # a tenth of a second that a compile does without

    out = nx.DiGraph()
    for n in graph.nodes():
        out.add_node(n)
        out.add_edges_from((v.node, n) for v in n.inputs)
    return out


def users(graph: Graph) -> dict[Value, tuple[Node, ...]]:
    """The nodes that read each value, in order; graph results are not counted."""
    out: dict[Value, tuple[Node, ...]] = {}
    for n in graph.nodes():
        for v in dict.fromkeys(n.inputs):
            out[v] = (*out.get(v, ()), n)
    return out


def reaches(graph: Graph, source: Node, target: Node) -> bool:
    """Whether `target` depends on `source`."""
    import networkx as nx

    return bool(nx.has_path(to_networkx(graph), source, target))


def nbytes(t: TensorType) -> int:
    """Bytes of a tensor at the upper bounds of its symbols."""
    shape = tuple(d.hi if isinstance(d, Sym) else d for d in t.shape)
    return prod(shape) * t.elem.nbytes if isinstance(t.elem, DType) else t.elem.size(shape)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A computed value is live from step `start` (its node) to step `stop` (its last user)."""

    value: Value
    start: int
    stop: int


def liveness(graph: Graph) -> tuple[Lifetime, ...]:
    """Lifetimes of every value that a non-leaf node makes, steps counted in `Graph.nodes` order.

    Results live to the end; a value nobody reads lives for its own step.
    """
    order = [n for n in graph.nodes() if not isinstance(n.op, LEAVES)]
    last: dict[Value, int] = {}
    for step, n in enumerate(order):
        last.update(dict.fromkeys(n.inputs, step))
    last.update(dict.fromkeys(graph.results, len(order)))
    return tuple(
        Lifetime(v, step, last.get(v, step))
        for step, n in enumerate(order)
        for v in (Value(n, i) for i in range(len(n.outs)))
    )


def peak_bytes(graph: Graph) -> int:
    """The most bytes of computed values live at one step, at the upper bounds of symbols."""
    spans = liveness(graph)
    steps = range(max((s.stop for s in spans), default=0) + 1)
    return max(
        sum(nbytes(s.value.type) for s in spans if s.start <= step <= s.stop) for step in steps
    )


@dataclass(frozen=True, slots=True)
class Repeat:
    """`trips` copies of one structure: nodes order[start + t * period + j] for trip t, offset j.

    `carried` pairs what a trip takes from the one before, (offset, port), with its first value;
    `invariant` values are the same in each trip; each of `stacked` has one value a trip.
    """

    order: tuple[Node, ...]
    start: int
    period: int
    trips: int
    carried: tuple[tuple[tuple[int, int], Value], ...]
    invariant: tuple[Value, ...]
    stacked: tuple[tuple[Value, ...], ...]

    @property
    def covered(self) -> int:
        """Nodes in the run."""
        return self.period * self.trips

    def at(self, trip: int, offset: int, port: int) -> Value:
        """Result `port` of the node at `offset` in a trip."""
        return Value(self.order[self.start + trip * self.period + offset], port)


def find_repeat(graph: Graph) -> Repeat | None:
    """The run of isomorphic pieces that covers most nodes, shortest piece first; None if none does.

    Pieces are equal in ops, types and wiring, and read something that differs by trip. Of the
    possible places to cut a run the one that carries the fewest values is taken.
    """
    order = tuple(n for n in graph.nodes() if not isinstance(n.op, LEAVES))
    labels = [(n.op, tuple(v.type for v in n.inputs), n.outs) for n in order]
    number: dict[object, int] = {}
    ids = [number.setdefault(label, len(number)) for label in labels]
    where = {n: i for i, n in enumerate(order)}
    best: Repeat | None = None
    for period in range(1, len(order) // 2 + 1):
        for start, length in _runs(ids, period):
            if best is not None and length <= best.covered:
                continue
            found = _best_cut(order, where, start, length, period)
            if found and (best is None or found.covered > best.covered):
                best = found
    return best


def _runs(ids: list[int], period: int) -> Iterator[tuple[int, int]]:
    """(start, length) of maximal stretches that repeat with a period, at least twice."""
    start = None
    for i in range(len(ids) - period + 1):
        same = i + period < len(ids) and ids[i] == ids[i + period]
        if same and start is None:
            start = i
        if not same and start is not None:
            if i - start >= period:
                yield start, i - start + period
            start = None


def _best_cut(
    order: tuple[Node, ...], where: dict[Node, int], start: int, length: int, period: int
) -> Repeat | None:
    def wired(at: int, trips: int) -> Repeat | None:
        found = _wire(order, where, at, period, trips)
        return found if found is not None and found.stacked else None

    end = start + length
    whole = [
        wired(at, (end - at) // period)
        for at in range(start, start + period)
        if end - at >= 2 * period
    ]
    found = [c for c in whole if c is not None]
    if found:
        return min(found, key=lambda c: (len(c.carried), -c.trips, c.start))
    # A layer is wired otherwise: the longest stretch without it.
    for trips in range(length // period, 1, -1):
        parts = (wired(at, trips) for at in range(start, end - trips * period + 1))
        found = [c for c in parts if c is not None]
        if found:
            return min(found, key=lambda c: (len(c.carried), c.start))
    return None


def _wire(
    order: tuple[Node, ...], where: dict[Node, int], start: int, period: int, trips: int
) -> Repeat | None:
    """The run as a `Repeat`, or None when its pieces are not wired alike."""
    carried: dict[tuple[int, int], Value] = {}
    invariant: dict[Value, None] = {}
    stacked: dict[tuple[Value, ...], None] = {}
    for offset in range(period):
        nodes = [order[start + t * period + offset] for t in range(trips)]
        for values in zip(*(n.inputs for n in nodes), strict=True):
            places = [_place(v, where, start, period, t) for t, v in enumerate(values)]
            if places[0] is not None and places[0][0] == 0:
                if len(set(places)) > 1:
                    return None
            elif places[1] is not None:
                back, *rest = places[1]
                if back != 1 or places[0] is not None or set(places[1:]) != {places[1]}:
                    return None
                if carried.setdefault((rest[0], rest[1]), values[0]) != values[0]:
                    return None
            elif any(p is not None for p in places):
                return None
            elif len(set(values)) > 1:
                stacked[values] = None
            elif not isinstance(values[0].node.op, Constant):
                invariant[values[0]] = None
    second = [v[1] for v in stacked]
    if len({*second, *invariant}) < len(second) + len(invariant):
        return None
    links = tuple(carried.items())
    return Repeat(order, start, period, trips, links, tuple(invariant), tuple(stacked))


def _place(
    v: Value, where: dict[Node, int], start: int, period: int, trip: int
) -> tuple[int, int, int] | None:
    """(trips back, offset, port) of a value made inside the run; None when made outside."""
    index = where.get(v.node, -1)
    if index < start:
        return None
    made, offset = divmod(index - start, period)
    return trip - made, offset, v.port
