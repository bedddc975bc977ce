"""Matmuls that read the same x -> one matmul of several weights (Q, K and V; gate and up)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from speccc.ir import ops
from speccc.ir.graph import Graph, Node, Value, node
from speccc.ir.rewrite import is_leaf, rebuild
from speccc.passes.pipeline import GraphPass


@dataclass(frozen=True)
class FuseProjections(GraphPass):
    """matmul(x, a), matmul(x, b) -> matmul(x, a, b), when the weights are leaves of one format.

    Weights stay separate tensors; packing lays them side by side. With `mixed` the formats may
    differ.
    """

    name: ClassVar[str] = "fuse-projections"
    mixed: bool = False

    def run(self, graph: Graph) -> Graph:
        """Merge every group of two or more, in the order of the first."""
        groups: dict[object, list[Node]] = {}
        for n in graph.nodes():
            if isinstance(n.op, ops.Matmul) and all(is_leaf(w) for w in n.inputs[1:]):
                groups.setdefault(self.key(n), []).append(n)
        merged = {n: tuple(group) for group in groups.values() if len(group) > 1 for n in group}
        if not merged:
            return graph

        def replace(n: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
            group = merged.get(n)
            return None if group is None else _share(group, n, inputs[0])

        return rebuild(graph, replace)

    def key(self, n: Node) -> object:
        """What the members of a group have in common."""
        elems = frozenset(w.type.elem for w in n.inputs[1:])
        return n.inputs[0] if self.mixed else (n.inputs[0], elems)


def _share(group: tuple[Node, ...], member: Node, x: Value) -> tuple[Value, ...]:
    """The results of `member` as results of the group's one matmul on x."""
    weights = [w for n in group for w in n.inputs[1:]]
    distinct = list(dict.fromkeys(weights))
    shared = node(ops.Matmul(), (x, *distinct))
    return tuple(Value(shared, distinct.index(w)) for w in member.inputs[1:])
