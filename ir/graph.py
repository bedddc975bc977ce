"""The Graph IR: interned nodes without effects, between a frontend and the tile programs.

A `Node` is an op record (`speccc.ir.ops`, `speccc.ir.ops_state`) applied to `Value`s. Nodes are
interned: building the same op on the same values gives the same object, so equality is identity,
common subexpressions merge by themselves and a `Graph` can be a dictionary key. What must not be
part of a node's identity (names for messages and dumps) sits in a side table, `origin_of`.

State is explicit: a KV cache comes in as a parameter and goes out as a result, so two effects never
merge. Sizes may be symbols with bounds (`m`, `ctx`).

The form the passes end in, which `speccc.passes` lowers to tile programs, has these nodes only:

* `Embed(table, tokens)`;
* `Fused(body)`, one matmul region. Its body is
  `[Reshape] [RmsNorm] Matmul(x, w..) [Reshape | Rope | CacheAppend | Map ..]`; every outside value,
  weights included, is a body parameter, and layers of one shape share one body object;
* `Attention(q, k, v, length, parents)` on the caches as they are after the append;
* `Loop(body, trips)` over such nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from speccc.errors import VerifyError
from speccc.ir.ops import Input, Op, Weight
from speccc.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Node:
    """An op applied to values. Make nodes with `node`, which interns them."""

    __slots__ = ("__weakref__", "inputs", "op", "outs")
    op: Op
    inputs: tuple[Value, ...]
    outs: tuple[TensorType, ...]

    def __repr__(self) -> str:
        return f"<{self.op.mnemonic} {', '.join(str(t) for t in self.outs)}>"


class Value(NamedTuple):
    """Result `port` of a node."""

    node: Node
    port: int = 0

    @property
    def type(self) -> TensorType:
        """The value's type."""
        return self.node.outs[self.port]


_interned: WeakValueDictionary[tuple[Op, tuple[Value, ...]], Node] = WeakValueDictionary()
_origins: WeakKeyDictionary[Node, frozenset[str]] = WeakKeyDictionary()


def node(op: Op, inputs: Iterable[Value] = (), *, origin: str = "") -> Node:
    """The interned node of `op` on `inputs`; VerifyError (op, origin, reason) if types disagree."""
    key = (op, tuple(inputs))
    found = _interned.get(key)
    if found is None:
        try:
            outs = op.infer(tuple(v.type for v in key[1]))
        except VerifyError as e:
            raise VerifyError(
                str(e), where=f"{op.mnemonic}{f' ({origin})' if origin else ''}"
            ) from e
        found = _interned[key] = Node(op, key[1], outs)
    if origin:
        _origins[found] = _origins.get(found, frozenset()) | {origin}
    return found


def on_inputs(old: Node, inputs: tuple[Value, ...]) -> Node:
    """The interned node of `old`'s op on `inputs`: itself where they are its own."""
    return old if inputs == old.inputs else node(old.op, inputs)


def apply(op: Op, *inputs: Value, origin: str = "") -> Value:
    """The first result of `op` on `inputs`."""
    return Value(node(op, inputs, origin=origin))


def origin_of(n: Node) -> str:
    """The names a node was made for, sorted and comma-separated; empty when none were given.

    Names that differ in numbers only (a node of a body that layers share) are one with stars.
    """
    alike: dict[str, set[str]] = {}
    for name in _origins.get(n, ()):
        alike.setdefault(re.sub(r"\d+", "*", name), set()).add(name)
    return ", ".join(sorted(star if len(us) > 1 else min(us) for star, us in alike.items()))


def add_origins(to: Node, *sources: Node) -> None:
    """Add the origins of `sources` to those of `to` (a rewrite keeps names this way)."""
    names = frozenset().union(*(_origins.get(s, frozenset()) for s in sources))
    if names:
        _origins[to] = _origins.get(to, frozenset()) | names


@dataclass(frozen=True, slots=True)
class Graph:
    """Parameters (`Input` values, in calling order) and named results.

    Weights are leaves found from the results. Two graphs are equal when they are built alike.
    """

    params: tuple[Value, ...]
    results: tuple[Value, ...]
    names: tuple[str, ...]

    def nodes(self) -> tuple[Node, ...]:
        """Every node the results or parameters need, inputs first (depth first, deterministic)."""
        return tuple(topological(self.params + self.results))

    def param(self, name: str) -> Value:
        """The parameter of that name; KeyError if there is none."""
        return next_named(self.params, name)

    def result(self, name: str) -> Value:
        """The result of that name; KeyError if there is none."""
        if name not in self.names:
            raise KeyError(name)
        return self.results[self.names.index(name)]

    def weights(self) -> dict[str, TensorType]:
        """Names and types of the weights, in order of first use."""
        return {n.op.name: n.op.type for n in self.nodes() if isinstance(n.op, Weight)}


def next_named(params: Iterable[Value], name: str) -> Value:
    """The `Input` value called `name`; KeyError if there is none."""
    for p in params:
        if isinstance(p.node.op, Input) and p.node.op.name == name:
            return p
    raise KeyError(name)


def topological(roots: Iterable[Value]) -> Iterator[Node]:
    """Nodes reachable from `roots`, each after its inputs; without recursion, in a fixed order."""
    done: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root.node, False)]
        while stack:
            at, expanded = stack.pop()
            if at in done:
                continue
            if expanded:
                done.add(at)
                yield at
                continue
            stack.append((at, True))
            stack.extend((v.node, False) for v in reversed(at.inputs) if v.node not in done)


def make_body(
    results: Iterable[Value], outside: Iterable[Value], names: Iterable[str] = ()
) -> Graph:
    """The graph that computes `results` with each value of `outside` replaced by a parameter p<i>.

    Result names are r0, r1, .. unless given. Leaves other than constants must be in `outside`.
    """
    given = tuple(outside)
    inside: dict[Value, Value] = {v: apply(Input(f"p{i}", v.type)) for i, v in enumerate(given)}
    params = tuple(inside[v] for v in given)
    wanted = tuple(results)
    copied = substitute(wanted, inside)
    labels = tuple(names) or tuple(f"r{i}" for i in range(len(wanted)))
    return Graph(params, copied, labels)


def substitute(wanted: tuple[Value, ...], known: dict[Value, Value]) -> tuple[Value, ...]:
    """`wanted` rebuilt with the values in `known` replaced; `known` grows by what is rebuilt."""
    stack: list[tuple[Value, bool]] = [(v, False) for v in reversed(wanted)]
    while stack:
        at, expanded = stack.pop()
        if at in known:
            continue
        if not expanded:
            stack.append((at, True))
            stack.extend((v, False) for v in reversed(at.node.inputs) if v not in known)
            continue
        made = on_inputs(at.node, tuple(known[v] for v in at.node.inputs))
        add_origins(made, at.node)
        for i in range(len(made.outs)):
            known.setdefault(Value(at.node, i), Value(made, i))
    return tuple(known[v] for v in wanted)
