"""Reader of the graph text that `speccc.ir.graph_text` prints."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from speccc.errors import InputError, VerifyError
from speccc.ir.formats import FORMATS
from speccc.ir.graph import Graph, Node, Value, node
from speccc.ir.ops import Fn, Op
from speccc.ir.ops_state import OPS
from speccc.ir.types import DTYPES, Dim, DType, Sym, TensorType

_TOKEN = re.compile(
    r"""\s+|\#.*|(?P<token>
      x"[0-9a-f]*" | "(?:[^"\\]|\\.)*" | @\w+ | %\d+ | \d+\.\.\d+
    | -?inf | nan | -?\d+(?:\.\d+)?(?:e[+-]?\d+)? | [A-Za-z_][\w.]* | [\[\](){}=,:] )""",
    re.VERBOSE,
)
_WORDS: dict[str, object] = {
    **{f"fn.{f.value}": f for f in Fn},
    **{f"dtype.{d.name}": d for d in DTYPES.values()},
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}


def parse_graph(text: str) -> Graph:
    """The last graph of a text, which is the outermost; InputError names a bad line."""
    parser = _Parser()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            parser.line(_tokens(line))
        except (ValueError, VerifyError) as e:
            raise InputError(str(e), where=f"line {number}") from e
    if parser.last is None or parser.open:
        raise InputError("ends before a graph does", where="graph text")
    return parser.last


def _tokens(line: str) -> list[str]:
    out, at = [], 0
    while at < len(line):
        found = _TOKEN.match(line, at)
        if found is None:
            raise ValueError(f"cannot read {line[at : at + 20]!r}")
        if found["token"]:
            out.append(found["token"])
        at = found.end()
    return out


@dataclass
class _Line:
    """The tokens of one line, read from the left."""

    tokens: list[str]
    at: int = 0

    def peek(self) -> str:
        """The next token, or nothing at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        """Take the next token."""
        token = self.peek()
        self.at += 1
        return token

    def want(self, *tokens: str) -> None:
        """Take these tokens; ValueError when others are there."""
        for token in tokens:
            found = self.next()
            if found != token:
                raise ValueError(f"expected {token!r}, found {found or 'the end'!r}")

    def taken(self, token: str) -> bool:
        """Take the next token if it is this one."""
        hit = self.peek() == token
        self.at += hit
        return hit


@dataclass
class _Parser:
    """What the lines so far have defined."""

    symbols: dict[str, Sym] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    params: tuple[Value, ...] = ()
    results: dict[str, Value] = field(default_factory=dict)
    open: str = ""
    last: Graph | None = None

    def line(self, tokens: list[str]) -> None:
        """Read one line."""
        if not tokens:
            return
        at = _Line(tokens)
        first = at.next()
        if first.startswith("%"):
            self.node(first, at)
        elif first in _STATEMENTS:
            _STATEMENTS[first](self, at)
        else:
            raise ValueError(f"a line cannot begin with {first!r}")
        if at.peek():
            raise ValueError(f"unexpected {at.peek()!r}")

    def symbol(self, at: _Line) -> None:
        """sym NAME lo..hi"""
        name, bounds = at.next(), at.next().split("..")
        self.symbols[name] = Sym(name, int(bounds[0]), int(bounds[-1]))

    def begin(self, at: _Line) -> None:
        """graph @NAME {"""
        self.open = at.next()
        at.want("{")
        self.nodes, self.params, self.results = {}, (), {}

    def end(self, at: _Line) -> None:
        """}"""
        if not self.open:
            raise ValueError("no graph is open")
        self.last = Graph(self.params, tuple(self.results.values()), tuple(self.results))
        self.graphs[self.open], self.open = self.last, ""

    def parameters(self, at: _Line) -> None:
        """params(%0, ..)"""
        self.params = self.values(at)

    def outputs(self, at: _Line) -> None:
        """results("name"=%0, ..)"""
        at.want("(")
        while not at.taken(")"):
            name = str(json.loads(at.next()))
            at.want("=")
            self.results[name] = self.value(at)
            at.taken(",")

    def node(self, name: str, at: _Line) -> None:
        """%N = op{attributes}(inputs) : types"""
        at.want("=")
        kind = at.next()
        if kind not in OPS:
            raise ValueError(f"there is no op {kind!r}")
        op = self.op(OPS[kind], at)
        made = node(op, self.values(at))
        at.want(":")
        said = [self.type(at.next(), at)] if at.peek() else []
        while at.taken(","):
            said.append(self.type(at.next(), at))
        if tuple(said) != made.outs:
            raise ValueError(f"{kind} gives {', '.join(map(str, made.outs))}")
        self.nodes[name] = made

    def op(self, kind: type[Op], at: _Line) -> Op:
        """The op record from its attributes."""
        attrs: dict[str, object] = {}
        if at.taken("{"):
            while not at.taken("}"):
                key = at.next()
                at.want("=")
                attrs[key] = self.attribute(at)
                at.taken(",")
        try:
            return kind(**attrs)
        except TypeError as e:
            raise ValueError(f"{kind.mnemonic}: {e}") from e

    def attribute(self, at: _Line) -> object:
        """One attribute's value."""
        token = at.next()
        if token == "(":
            items = []
            while not at.taken(")"):
                items.append(self.attribute(at))
                at.taken(",")
            return tuple(items)
        if token in _WORDS:
            return _WORDS[token]
        if token.startswith('x"'):
            return bytes.fromhex(token[2:-1])
        if token.startswith("@"):
            return self.graph(token)
        if token.startswith('"') or token[:1].isdigit() or token.startswith("-"):
            return json.loads(token)
        return self.type(token, at) if at.peek() == "[" else self.dim(token)

    def graph(self, token: str) -> Graph:
        """A graph that has been read."""
        if token not in self.graphs:
            raise ValueError(f"graph {token} is not defined before its use")
        return self.graphs[token]

    def type(self, name: str, at: _Line) -> TensorType:
        """f32[m, 8]"""
        elem: DType | None = DTYPES.get(name)
        if elem is None and name not in FORMATS:
            raise ValueError(f"there is no element type {name!r}")
        at.want("[")
        shape: list[Dim] = []
        while not at.taken("]"):
            shape.append(self.dim(at.next()))
            at.taken(",")
        return TensorType(tuple(shape), elem or FORMATS[name])

    def dim(self, token: str) -> Dim:
        """A size or a symbol."""
        if token.isdigit():
            return int(token)
        if token not in self.symbols:
            raise ValueError(f"symbol {token!r} is not defined")
        return self.symbols[token]

    def values(self, at: _Line) -> tuple[Value, ...]:
        """(%0, %1:1, ..)"""
        at.want("(")
        out: list[Value] = []
        while not at.taken(")"):
            out.append(self.value(at))
            at.taken(",")
        return tuple(out)

    def value(self, at: _Line) -> Value:
        """%0 or %0:1"""
        name = at.next()
        port = int(at.next()) if at.taken(":") else 0
        if name not in self.nodes or port >= len(self.nodes[name].outs):
            raise ValueError(f"{name}:{port} is not defined before its use")
        return Value(self.nodes[name], port)


_STATEMENTS = {
    "sym": _Parser.symbol,
    "graph": _Parser.begin,
    "}": _Parser.end,
    "params": _Parser.parameters,
    "results": _Parser.outputs,
}
