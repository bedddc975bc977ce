"""Graphs as text that reads back to the same interned graph.

    sym m 1..512
    graph @main {
      %0 = input{name="x", type=f32[m, 8]}() : f32[m, 8]
      %1 = map{fn=fn.exp}(%0) : f32[m, 8]  # origin
      params(%0)
      results("y"=%1)
    }

Inner graphs (@b0, ..) come before the graphs that use them. `%2:1` is result 1 of node %2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from speccc.errors import VerifyError
from speccc.ir.graph import Graph, Node, Value, origin_of
from speccc.ir.graph_parse import parse_graph
from speccc.ir.ops import Fn
from speccc.ir.ops_state import Fused, Loop, symbols
from speccc.ir.types import DType, Sym, TensorType

__all__ = ["parse_graph", "print_graph"]


def print_graph(graph: Graph) -> str:
    """The text of a graph and of every graph inside it; deterministic."""
    printer = _Printer()
    printer.graph(graph, "main")
    head = [f"sym {s.name} {s.lo}..{s.hi}" for s in printer.symbols.values()]
    return "\n".join([*head, *printer.lines, ""])


@dataclass
class _Printer:
    """Lines so far, and the names of symbols and bodies."""

    lines: list[str] = field(default_factory=list)
    symbols: dict[str, Sym] = field(default_factory=dict)
    bodies: dict[Graph, str] = field(default_factory=dict)

    def graph(self, graph: Graph, name: str) -> None:
        """One graph, its bodies first."""
        order = graph.nodes()
        for n in order:
            self.bodies_of(n)
        number = {n: i for i, n in enumerate(order)}
        self.lines.append(f"graph @{name} {{")
        self.lines.extend(self.node(n, number) for n in order)
        params = ", ".join(_ref(p, number) for p in graph.params)
        pairs = zip(graph.names, graph.results, strict=True)
        results = ", ".join(f"{json.dumps(k)}={_ref(v, number)}" for k, v in pairs)
        self.lines.extend([f"  params({params})", f"  results({results})", "}"])

    def bodies_of(self, n: Node) -> None:
        """Print the body of a region or a loop unless it has been."""
        for s in (s for t in n.outs for s in symbols(t)):
            self.symbols[s.name] = s
        if isinstance(n.op, (Fused, Loop)) and n.op.body not in self.bodies:
            for inner in n.op.body.nodes():
                self.bodies_of(inner)
            name = self.bodies[n.op.body] = f"b{len(self.bodies)}"
            self.graph(n.op.body, name)

    def node(self, n: Node, number: dict[Node, int]) -> str:
        """One line."""
        attrs = ", ".join(self.attributes(n))
        ins = ", ".join(_ref(v, number) for v in n.inputs)
        outs = ", ".join(str(t) for t in n.outs)
        braces = f"{{{attrs}}}" if attrs else ""
        origin = origin_of(n)
        note = f"  # {_short(origin)}" if origin else ""
        return f"  %{number[n]} = {n.op.mnemonic}{braces}({ins}) : {outs}{note}"

    def attributes(self, n: Node) -> Iterator[str]:
        """The op's fields as name=value."""
        for f in fields(n.op):
            yield f"{f.name}={self.attribute(getattr(n.op, f.name))}"

    def attribute(self, x: object) -> str:
        """One attribute's value."""
        if isinstance(x, Graph):
            return f"@{self.bodies[x]}"
        if isinstance(x, Sym):
            self.symbols[x.name] = x
        if isinstance(x, tuple):
            return f"({', '.join(self.attribute(e) for e in x)})"
        for kind, show in _SHOW.items():
            if isinstance(x, kind):
                return show(x)
        raise VerifyError(f"an attribute is a {type(x).__name__}, which has no text")


_SHOW: dict[type, Callable[[Any], str]] = {
    str: json.dumps,
    bytes: lambda x: f'x"{x.hex()}"',
    float: repr,
    int: repr,
    Fn: lambda x: f"fn.{x.value}",
    DType: lambda x: f"dtype.{x.name}",
    TensorType: str,
    Sym: str,
}


def _ref(v: Value, number: dict[Node, int]) -> str:
    return f"%{number[v.node]}" + (f":{v.port}" if v.port else "")


def _short(origin: str, limit: int = 60) -> str:
    line = " ".join(origin.split())
    return line if len(line) <= limit else line[: limit - 2] + ".."
