"""A matmul with what may be computed along with it -> one `Fused` region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from speccc.ir import ops, ops_state
from speccc.ir.graph import Graph, Node, Value, add_origins, make_body, node
from speccc.ir.graph_analysis import users
from speccc.ir.rewrite import is_leaf, rebuild
from speccc.passes.pipeline import GraphPass

EPILOGUE = (ops.Map, ops.Reshape, ops.Slice, ops.Rope, ops.Cast, ops_state.CacheAppend)
"""Ops that a matmul may finish: each of their results depends on one row of it."""


@dataclass(frozen=True)
class FuseRegions(GraphPass):
    """[reshape] [rms_norm] matmul [rope, cache_append, silu, mul, + residual, ..] -> fused.

    A norm is drawn into each matmul that reads it when nothing else does (doing it twice is cheaper
    than a phase of its own). The epilogue is whatever follows row by row and reads besides only
    leaves and values that are there before the matmul starts, so regions never wait on each other
    in a circle. A matmul alone is a region of one; other nodes stay as they are.
    """

    name: ClassVar[str] = "fuse-regions"

    def run(self, graph: Graph) -> Graph:
        """Fuse around every matmul."""
        regions = find_regions(graph)
        if not regions:
            return graph
        absorbed = {n for members in regions.values() for n in members}
        read_outside = _read_outside(graph, regions)
        fused: dict[Value, Value] = {}

        def replace(n: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
            if n in regions:
                fused.update(_fuse(regions[n], read_outside, fused))
            if n not in absorbed:
                made = node(n.op, (fused.get(v, w) for v, w in zip(n.inputs, inputs, strict=True)))
                own = tuple(Value(made, i) for i in range(len(made.outs)))
                fused.update((Value(n, i), v) for i, v in enumerate(own))
                return own
            outs = (Value(n, i) for i in range(len(n.outs)))
            return tuple(fused.get(v, v) for v in outs)

        return rebuild(graph, replace)


def find_regions(graph: Graph) -> dict[Node, tuple[Node, ...]]:
    """For each matmul the members of its region, inputs before users."""
    order = {n: i for i, n in enumerate(graph.nodes())}
    read_by = users(graph)
    taken: set[Node] = set()
    finishing: set[Node] = set()
    regions: dict[Node, tuple[Node, ...]] = {}
    for n in order:
        if not isinstance(n.op, ops.Matmul):
            continue
        members = {n, *_prologue(n, read_by, graph, finishing)}
        taken |= members
        before = set(members)
        _grow(members, n, order, read_by, taken)
        finishing |= members - before
        regions[n] = tuple(sorted(members, key=order.__getitem__))
    return regions


def _prologue(
    matmul: Node,
    read_by: dict[Value, tuple[Node, ...]],
    graph: Graph,
    finishing: set[Node],
) -> tuple[Node, ...]:
    """The norm and reshapes of x that only matmuls read and no other region ends in."""
    out: list[Node] = []
    at = matmul.inputs[0]
    # Matmuls that share x each get a copy; what lies under the first node has it as only reader.
    readers = read_by[at]
    if not all(isinstance(u.op, ops.Matmul) and at not in u.inputs[1:] for u in readers):
        return ()
    wanted: tuple[type[ops.Op], ...] = (ops.RmsNorm, ops.Reshape)
    while (
        isinstance(at.node.op, wanted)
        and at not in graph.results
        and read_by[at] == readers
        and at.node not in finishing
    ):
        out.append(at.node)
        readers, wanted, at = (at.node,), (ops.Reshape,), at.node.inputs[0]
    return tuple(out)


def _grow(
    members: set[Node],
    matmul: Node,
    order: dict[Node, int],
    read_by: dict[Value, tuple[Node, ...]],
    taken: set[Node],
) -> None:
    """Add to `members` every node that may finish the matmul."""
    frontier = [matmul]
    while frontier:
        at = frontier.pop()
        readers = {u for i in range(len(at.outs)) for u in read_by.get(Value(at, i), ())}
        for n in sorted(readers - taken, key=order.__getitem__):
            outside = (v for v in n.inputs if v.node not in members)
            ready = all(is_leaf(v) or order[v.node] < order[matmul] for v in outside)
            if isinstance(n.op, EPILOGUE) and ready and _rowwise(n, members):
                members.add(n)
                taken.add(n)
                # What waited for this node may be ready now.
                frontier.extend(sorted(members, key=order.__getitem__))


def _rowwise(n: Node, members: set[Node]) -> bool:
    """Whether a row of the result needs one row of the region: rows stay the first axis."""
    made = [i for i, v in enumerate(n.inputs) if v.node in members]
    if isinstance(n.op, (ops_state.CacheAppend, ops.Rope)):
        return made == [1 if isinstance(n.op, ops_state.CacheAppend) else 0]
    if isinstance(n.op, ops.Slice) and n.op.axis == 0:
        return False
    out = n.outs[0].shape
    shapes = [n.inputs[i].type.shape for i in made]
    same_rank = isinstance(n.op, ops.Reshape) or all(len(s) == len(out) for s in shapes)
    return same_rank and all(s[:1] == out[:1] for s in shapes)


def _read_outside(graph: Graph, regions: dict[Node, tuple[Node, ...]]) -> dict[Node, set[Value]]:
    """For each region (by matmul) its values that results or other regions and nodes read."""
    out: dict[Node, set[Value]] = {}
    read_by = users(graph)
    for matmul, members in regions.items():
        inside = set(members)
        values = (Value(n, i) for n in members for i in range(len(n.outs)))
        out[matmul] = {
            v for v in values if v in graph.results or not inside.issuperset(read_by.get(v, ()))
        }
    return out


def _fuse(
    members: tuple[Node, ...], read_outside: dict[Node, set[Value]], fused: dict[Value, Value]
) -> dict[Value, Value]:
    """Old value -> result of the region's node."""
    inside = set(members)
    matmul = next(n for n in members if n in read_outside and isinstance(n.op, ops.Matmul))
    reads = dict.fromkeys(v for n in members for v in n.inputs if v.node not in inside)
    outside = [v for v in reads if not isinstance(v.node.op, ops.Constant)]
    after = _after_matmul(members, matmul)
    results = [
        Value(n, i)
        for n in after
        for i in range(len(n.outs))
        if Value(n, i) in read_outside[matmul]
    ]
    body = make_body(results, outside)
    region = node(ops_state.Fused(body), (fused.get(v, v) for v in outside))
    add_origins(region, *members)
    return {v: Value(region, i) for i, v in enumerate(results)}


def _after_matmul(members: tuple[Node, ...], matmul: Node) -> tuple[Node, ...]:
    """Members from the matmul on: a prologue's values are made again by each region."""
    return members[members.index(matmul) :]
