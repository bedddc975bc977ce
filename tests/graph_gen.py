"""Hypothesis strategies: random graphs with random inputs, and stacks of random layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from speccc.ir import graph_build as g
from speccc.ir import ops, ops_state
from speccc.ir.formats import FORMATS
from speccc.ir.frontends.source import Weight
from speccc.ir.graph import Graph, Value, apply
from speccc.ir.interp_graph import Array, Tensor, run
from speccc.ir.ops import Fn
from speccc.ir.types import F16, F32, I32, DType, Sym, TensorType

ROWS = Sym("m", 1, 4)
SLOTS = Sym("ctx", 4, 8)
Draw = Callable[[st.SearchStrategy[int]], int]


@dataclass
class Case:
    """A graph with inputs and weights to run it on."""

    graph: Graph
    inputs: dict[str, Array]
    weights: dict[str, Tensor]

    def run(self, graph: Graph | None = None) -> dict[str, Array]:
        """Results of the graph, or of another graph of the same interface."""
        return run(graph or self.graph, self.inputs, self.weights)


def same_bits(a: dict[str, Array], b: dict[str, Array]) -> bool:
    """Whether results have equal bits (NaNs are alike)."""
    if a.keys() != b.keys():
        return False
    for name, x in a.items():
        y = b[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        nan = np.isnan(x) & np.isnan(y)
        if np.where(nan, 0, x).tobytes() != np.where(nan, 0, y).tobytes():
            return False
    return True


@dataclass
class Maker:
    """Grows a graph by random steps; `fresh` weights and inputs are numbered."""

    draw: Draw
    rows: int = 3
    slots: int = 8
    seed: int = 0
    pool: list[Value] = field(default_factory=list)
    params: list[Value] = field(default_factory=list)
    state: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.positions = self.param("positions", (ROWS,), I32, np.arange(self.rows))
        self.length = self.param("length", (), I32, np.asarray(2))
        parents = [self.rng.integers(-1, r) if r else -1 for r in range(self.rows)]
        self.parents = self.param("parents", (ROWS,), I32, np.asarray(parents))

    def param(self, name: str, shape: tuple[int | Sym, ...], dtype: DType, x: Array) -> Value:
        """A graph parameter and its value."""
        value = g.param(name, shape, dtype)
        self.params.append(value)
        self.inputs[name] = x.astype(dtype.numpy)
        return value

    def x(self, *dims: int) -> Value:
        """A random f32 parameter [m, ..]."""
        data = self.rng.standard_normal((self.rows, *dims))
        return self.param(f"x{len(self.params)}", (ROWS, *dims), F32, data)

    def weight(self, *shape: int, kind: str = "f32") -> Value:
        """A new random weight."""
        name = f"w{len(self.weights)}"
        x = self.rng.standard_normal(shape).astype(np.float32)
        if kind == "f32":
            self.weights[name] = x
            return g.weight(name, TensorType(shape, F32))
        raw = FORMATS[kind].encode(x).reshape(-1)
        self.weights[name] = Weight(name, shape, FORMATS[kind], raw)
        return g.weight(name, TensorType(shape, FORMATS[kind]))

    def cache(self, *dims: int, dtype: DType = F16) -> Value:
        """A new cache parameter [ctx, ..]."""
        data = self.rng.standard_normal((self.slots, *dims))
        return self.param(f"cache{len(self.params)}", (SLOTS, *dims), dtype, data)

    def pick(self, low: int, high: int) -> int:
        """A drawn integer, both ends included."""
        return self.draw(st.integers(low, high))

    def choose(self, rank: int | None = None, rows: bool = False) -> Value | None:
        """A drawn value of the pool with that rank (and m rows)."""
        fits = [
            v
            for v in self.pool
            if (rank is None or len(v.type.shape) == rank)
            and (not rows or v.type.shape[0] == ROWS)
            and all(isinstance(d, int) for d in v.type.shape[1:])
        ]
        if not fits:
            return None
        # Half the time the newest, so that chains grow and not only bushes.
        return fits[-1] if self.pick(0, 1) else fits[self.pick(0, len(fits) - 1)]

    def append(self, cache: Value, new: Value) -> Value:
        """A cache append whose result is a result of the graph."""
        after = g.cache_append(cache, new, self.length)
        self.state[f"after{len(self.state)}"] = after
        return after

    def case(self, results: list[Value]) -> Case:
        """The finished graph."""
        named = {f"y{i}": v for i, v in enumerate(dict.fromkeys(results))} | self.state
        graph = Graph(tuple(self.params), tuple(named.values()), tuple(named))
        return Case(graph, self.inputs, self.weights)


def _matmul(mk: Maker) -> Value | None:
    x = mk.choose(2, rows=True)
    if x is None:
        return None
    k = int(x.type.shape[1])  # type: ignore[arg-type]
    kind = ("f32", "q4_1", "q8_0")[mk.pick(0, 2)] if k % 32 == 0 else "f32"
    return g.matmul(x, mk.weight((4, 32)[mk.pick(0, 1)], k, kind=kind))[0]


def _norm(mk: Maker) -> Value | None:
    x = mk.choose(2, rows=True)
    if x is None:
        return None
    return apply(ops.RmsNorm(1e-5), x, mk.weight(int(x.type.shape[1])))  # type: ignore[arg-type]


def _unary(mk: Maker) -> Value | None:
    x = mk.choose()
    fn = (Fn.NEG, Fn.SILU, Fn.NEG, Fn.EXP)[mk.pick(0, 3)]
    if x is None:
        return None
    return g.map_(fn, g.map_(fn, x) if fn is Fn.NEG and mk.pick(0, 1) else x)


def _binary(mk: Maker) -> Value | None:
    a, b = mk.choose(), mk.choose()
    if a is None or b is None or a.type != b.type:
        return None
    return g.map_((Fn.ADD, Fn.MUL, Fn.SUB, Fn.MAX)[mk.pick(0, 3)], a, b)


def _constant(mk: Maker) -> Value | None:
    x = mk.choose()
    number = (1.0, -0.0, 0.0, 0.5)[mk.pick(0, 3)]
    c = g.map_(Fn.NEG, g.constant(-number)) if mk.pick(0, 1) else g.constant(number)
    fn = (Fn.ADD, Fn.MUL, Fn.SUB)[mk.pick(0, 2)]
    return None if x is None else g.map_(fn, *((x, c) if mk.pick(0, 1) else (c, x)))


def _split(mk: Maker) -> Value | None:
    x = mk.choose(2, rows=True)
    if x is None:
        return None
    d = int(x.type.shape[1])  # type: ignore[arg-type]
    return g.reshape(x, ROWS, d // 4, 4)


def _join(mk: Maker) -> Value | None:
    x = mk.choose(3, rows=True)
    if x is None:
        return None
    _, h, d = x.type.shape
    return g.reshape(x, ROWS, int(h) * int(d))  # type: ignore[arg-type]


def _transpose(mk: Maker) -> Value | None:
    x = mk.choose(3, rows=True)
    if x is None:
        return None
    turned = g.transpose(x, 1, 0, 2)
    return g.transpose(turned, 1, 0, 2) if mk.pick(0, 1) else g.transpose(turned, 1, 2, 0)


def _slice(mk: Maker) -> Value | None:
    x = mk.choose(2, rows=True)
    if x is None:
        return None
    d = int(x.type.shape[1])  # type: ignore[arg-type]
    part = apply(ops.Slice(1, 0, min(d, (4, 8, d)[mk.pick(0, 2)])), x)
    return apply(ops.Slice(1, 0, 4), part) if mk.pick(0, 1) else part


def _concat(mk: Maker) -> Value | None:
    a, b = mk.choose(2, rows=True), mk.choose(2, rows=True)
    if a is None or b is None:
        return None
    both = apply(ops.Concat(1), a, b)
    if mk.pick(0, 1):
        return both
    return apply(ops.Slice(1, 0, int(a.type.shape[1])), both)  # type: ignore[arg-type]


def _cast(mk: Maker) -> Value | None:
    x = mk.choose()
    return None if x is None else g.cast(g.cast(x, F16 if mk.pick(0, 1) else F32), F32)


def _rope(mk: Maker) -> Value | None:
    x = mk.choose(3, rows=True)
    return None if x is None else apply(ops.Rope(10000.0, 4), x, mk.positions)


def _append(mk: Maker) -> Value | None:
    x = mk.choose(3, rows=True)
    if x is None or x.type.shape[2] != 4:
        return None
    mk.append(mk.cache(*x.type.shape[1:]), x)  # type: ignore[arg-type]
    return None


def _softmax(mk: Maker) -> Value | None:
    x = mk.choose()
    return None if x is None else apply(ops.Softmax(), x)


def _reduce(mk: Maker) -> Value | None:
    x = mk.choose(2, rows=True)
    if x is None:
        return None
    return g.map_(Fn.SUB, x, apply(ops.Reduce((Fn.ADD, Fn.MAX)[mk.pick(0, 1)], 1), x))


def attend(mk: Maker, q: Value, groups: int = 1) -> Value:
    """Naive attention of q [m, h, 4] over new caches, as a graph builder writes it."""
    h = int(q.type.shape[1])  # type: ignore[arg-type]
    k, v = (mk.append(mk.cache(groups, 4), mk.x(groups, 4)) for _ in range(2))
    keys = g.repeat(g.transpose(g.cast(k, F32), 1, 2, 0), 0, h // groups)
    values = g.repeat(g.transpose(g.cast(v, F32), 1, 0, 2), 0, h // groups)
    scores = apply(ops.BatchedMatmul(), g.transpose(q, 1, 0, 2), keys)
    mask = apply(ops_state.TreeMask(SLOTS), mk.length, mk.parents)
    shown = apply(ops.Softmax(), g.add(g.mul(scores, g.constant(0.5)), mask))
    return g.transpose(apply(ops.BatchedMatmul(), shown, values), 1, 0, 2)


def _attention(mk: Maker) -> Value | None:
    q = mk.choose(3, rows=True)
    if q is None or q.type.shape[2] != 4:
        return None
    return attend(mk, q, (1, int(q.type.shape[1]))[mk.pick(0, 1)])  # type: ignore[arg-type]


STEPS = (
    _matmul, _norm, _unary, _binary, _constant, _split, _join, _transpose, _slice, _concat,
    _cast, _rope, _append, _softmax, _reduce, _attention, _matmul, _matmul,
)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, steps: int = 14) -> Case:
    """A random graph: matmuls of several formats, norms, maps, moves, caches and attention."""
    mk = Maker(draw, rows=draw(st.integers(1, 4)), seed=draw(st.integers(0, 2**16)))
    mk.pool = [mk.x(32), mk.x(8, 4)]
    for _ in range(draw(st.integers(1, steps))):
        made = STEPS[mk.pick(0, len(STEPS) - 1)](mk)
        if made is not None:
            mk.pool.append(made)
    extra = mk.choose()
    return mk.case([mk.pool[-1]] if extra is None else [mk.pool[-1], extra])


@st.composite
def stacks(draw: st.DrawFn, most: int = 4) -> tuple[Case, int]:
    """The same random layer two or more times in a row with new weights, between other nodes."""
    mk = Maker(draw, rows=draw(st.integers(1, 4)), seed=draw(st.integers(0, 2**16)))
    plan = [mk.pick(0, 3) for _ in range(mk.pick(0, 4))]
    trips = mk.pick(2, most)
    fmt = ("f32", "q4_1")[mk.pick(0, 1)]
    x = g.map_(Fn.EXP, mk.x(32))
    for _ in range(trips):
        h = g.matmul(x, mk.weight(32, 32, kind=fmt))[0]
        for step in plan:
            h = _LAYER[step](mk, h, x)
        x = g.map_(Fn.SUB, h, x)
    return mk.case([apply(ops.Softmax(), x)]), trips


_LAYER: tuple[Callable[[Maker, Value, Value], Value], ...] = (
    lambda mk, h, x: g.map_(Fn.SILU, h),
    lambda mk, h, x: apply(ops.RmsNorm(1e-5), h, mk.weight(32)),
    lambda mk, h, x: g.reshape(attend(mk, g.reshape(h, ROWS, 8, 4), 2), ROWS, 32),
    lambda mk, h, x: g.add(x, g.matmul(h, mk.weight(32, 32))[0]),
)
