"""Rewriting of graphs: rules that may decline, run to a fixed point; and plain rebuilds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from speccc.errors import VerifyError
from speccc.ir.graph import Graph, Node, Value, add_origins, on_inputs
from speccc.ir.ops import Op
from speccc.ir.ops_state import LEAVES

Built = Union[Value, "tuple[Value, ...]", None]
Replace = Callable[[Node, "tuple[Value, ...]"], "tuple[Value, ...] | None"]

LIMIT = 100_000
"""Rule applications after which two rules are taken to undo each other."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`build` sees nodes whose op is an `op`; it returns what replaces the results, or None."""

    name: str
    op: type[Op]
    build: Callable[[Node], Built]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new graph and how often each rule fired."""

    graph: Graph
    hits: Mapping[str, int]


def rewrite(graph: Graph, rules: Sequence[Rule], *, limit: int = LIMIT) -> Rewritten:
    """Apply rules, inputs before users, until none fires. Parameters and result names stay.

    VerifyError names the last two rules when `limit` applications do not end, and the rule whose
    replacement has another type than what it replaces.
    """
    run = _Run(rules, limit)
    while True:
        after = rebuild(graph, run.replace)
        if after == graph:
            return Rewritten(graph, run.hits)
        graph = after


@dataclass
class _Run:
    """The state of one rewrite: counts and the names of the last rules."""

    rules: Sequence[Rule]
    limit: int

    def __post_init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.last: tuple[str, ...] = ()

    def replace(self, old: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        """The fixed point of one node on rewritten inputs."""
        made = on_inputs(old, inputs)
        values = tuple(Value(made, i) for i in range(len(made.outs)))
        while (better := self.step(values)) is not None:
            values = better
        return values

    def step(self, values: tuple[Value, ...]) -> tuple[Value, ...] | None:
        """One rule applied to the node that makes `values`, if they are all of its results."""
        at = values[0].node
        if values != tuple(Value(at, i) for i in range(len(at.outs))):
            return None
        for rule in self.rules:
            built = rule.build(at) if isinstance(at.op, rule.op) else None
            if built is None:
                continue
            new = (built,) if isinstance(built, Value) else built
            if tuple(v.type for v in new) != at.outs:
                raise VerifyError(f"rule {rule.name} changes the type of {at!r}")
            self.count(rule.name)
            for v in new:
                add_origins(v.node, at)
            return new
        return None

    def count(self, name: str) -> None:
        """Note that a rule fired."""
        self.hits[name] += 1
        self.last = (*self.last[-1:], name)
        if self.hits.total() > self.limit:
            raise VerifyError(f"{self.limit} rewrites without an end; last: {', '.join(self.last)}")


def rebuild(graph: Graph, replace: Replace) -> Graph:
    """The graph with every node passed through `replace(node, new inputs)`, inputs before users.

    `replace` returns the values of the node's results, `()` to leave the node out (its users must
    then be replaced as well), or None to keep its op. Parameters are not passed.
    """
    known: dict[Value, Value] = {p: p for p in graph.params}
    for n in graph.nodes():
        if Value(n) in known:
            continue
        # An input that is missing belongs to a node left out, or to a leaf that comes later.
        inputs = tuple(known.get(v, v) for v in n.inputs)
        outs = replace(n, inputs)
        if outs is None:
            made = on_inputs(n, inputs)
            outs = tuple(Value(made, i) for i in range(len(made.outs)))
        for i, v in enumerate(outs):
            known[Value(n, i)] = v
            if v.node is not n:
                add_origins(v.node, n)
    return Graph(graph.params, tuple(known[v] for v in graph.results), graph.names)


def is_leaf(v: Value) -> bool:
    """Whether a value is an input, a weight or a constant."""
    return isinstance(v.node.op, LEAVES)
