"""Checks that a graph obeys the rules of its level.

Inputs come before users by construction (nodes are immutable). Checked here: every type follows
from the inputs; parameters are distinct inputs and the only ones; result, weight and symbol names
mean one thing; bodies of regions and loops are closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from speccc.errors import VerifyError
from speccc.ir.graph import Graph, Node, Value, origin_of
from speccc.ir.ops import Input, Weight
from speccc.ir.ops_state import Fused, Loop, symbols
from speccc.ir.types import Sym, TensorType


def verify(graph: Graph, where: str = "") -> None:
    """VerifyError (one line: `where`, node, origin, reason) at the first rule that is broken."""
    try:
        _Verifier().graph(graph)
    except VerifyError as e:
        raise VerifyError(str(e), where=where or None) from e


@dataclass
class _Verifier:
    """What has been seen so far in the graph and its bodies."""

    symbols: dict[str, Sym] = field(default_factory=dict)
    weights: dict[str, TensorType] = field(default_factory=dict)
    bodies: set[Graph] = field(default_factory=set)

    def graph(self, graph: Graph) -> None:
        """Check one graph and the bodies in it."""
        _check_interface(graph)
        declared = {p.node for p in graph.params}
        for number, n in enumerate(graph.nodes()):
            try:
                self.node(n, declared)
            except VerifyError as e:
                name = origin_of(n)
                at = f"%{number} {n.op.mnemonic}{f' ({name})' if name else ''}"
                raise VerifyError(str(e), where=at) from e

    def node(self, n: Node, declared: set[Node]) -> None:
        """Check one node."""
        for v in n.inputs:
            if not 0 <= v.port < len(v.node.outs):
                raise VerifyError(f"reads result {v.port} of {v.node!r}")
        made = n.op.infer(tuple(v.type for v in n.inputs))
        if made != n.outs:
            raise VerifyError(f"gives {_list(made)} but says {_list(n.outs)}")
        for t in n.outs:
            for s in symbols(t):
                if self.symbols.setdefault(s.name, s) != s:
                    raise VerifyError(f"symbol {s.name} has two bounds")
        if isinstance(n.op, Input) and n not in declared:
            raise VerifyError(f"input {n.op.name} is not a parameter of the graph")
        if isinstance(n.op, Weight) and self.weights.setdefault(n.op.name, n.op.type) != n.op.type:
            raise VerifyError(f"tensor {n.op.name} has two types")
        if isinstance(n.op, (Fused, Loop)):
            self.body(n.op.body)

    def body(self, body: Graph) -> None:
        """Check an inner graph once."""
        if body in self.bodies:
            return
        self.bodies.add(body)
        if any(isinstance(n.op, Weight) for n in body.nodes()):
            raise VerifyError("a body names a weight; it must take it as a parameter")
        self.graph(body)


def _check_interface(graph: Graph) -> None:
    names = [p.node.op.name for p in graph.params if isinstance(p.node.op, Input)]
    if len(names) != len(graph.params):
        raise VerifyError("a parameter is not an input")
    if len(set(names)) != len(names):
        raise VerifyError("two parameters have one name")
    if len(graph.names) != len(graph.results) or len(set(graph.names)) != len(graph.names):
        raise VerifyError("results and their names do not pair up")
    for name, v in zip(graph.names, graph.results, strict=True):
        _check_port(name, v)


def _check_port(name: str, v: Value) -> None:
    if not 0 <= v.port < len(v.node.outs):
        raise VerifyError(f"result {name} is result {v.port} of {v.node!r}")


def _list(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))
