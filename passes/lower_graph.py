"""The final form of a graph -> a plan, with the layout of its weights and caches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir import ops, ops_state
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.graph import Graph, Node, Value, origin_of
from speccc.ir.plan import Loop, Plan, Step, check_order, phases
from speccc.ir.tile import Axis, Buf, Kernel, Map, Share, walk
from speccc.ir.tile_verify import verify_plan
from speccc.passes.lower_attention import lower_attention
from speccc.passes.lower_context import (
    KV_TYPES,
    Context,
    HeadRows,
    KvShape,
    RopeTable,
    load_index,
)
from speccc.passes.lower_head import Best, lower_pick
from speccc.passes.lower_region import RegionLowering, buffers_of, kernel_of
from speccc.passes.lower_top import lower_top
from speccc.passes.tile_matmul import ACTIVATIONS, INT8, taken
from speccc.passes.weight_layout import LayerVar, WeightLayout, packed_matrix


@dataclass(frozen=True, slots=True)
class Lowered:
    """A plan and what its host must supply: weights, caches, RoPE tables."""

    plan: Plan
    weights: WeightLayout
    kv: KvShape
    tables: Mapping[RopeTable, tuple[Buf, Buf]]
    logits: Buf
    picks: Buf
    vocab: int
    sizes: Mapping[str, Var]
    top: int


@dataclass(frozen=True, slots=True)
class LowerGraph:
    """Lowers embed, fused, attention and loop nodes; anything else is refused by name.

    With `top` the step can give up to so many of a row's largest logits. `activations` is how rows
    are rounded for weights that take it (`passes/tile_matmul.py`), `attention` how queries and
    powers are (`passes/lower_attention.py`); with `split` many workers share a sum over slots.
    """

    kv: str = "f16"
    top: int = 0
    windowed: bool = False
    """Each matrix is bound by itself: see `WeightLayout`."""
    activations: str = INT8
    attention: str = "f32"
    split: bool = False

    def run(self, graph: Graph) -> Lowered:
        """The plan of one step."""
        if self.activations not in ACTIVATIONS:
            choices = ", ".join(ACTIVATIONS)
            raise UnsupportedError(f"--activations {self.activations}: choose one of {choices}")
        ctx = Context(
            kv_shape(graph, self.kv),
            head=HeadRows(self.top),
            weights=WeightLayout(windowed=self.windowed),
            activations=self.activations,
            attention=self.attention,
            split=self.split,
        )
        ctx.values[graph.param("tokens")] = ctx.tokens
        for index, name in enumerate(n for n in graph.names if n.startswith("cache_k.")):
            for kind in ("k", "v"):
                layer = name.removeprefix("cache_k.")
                ctx.caches[graph.param(f"cache_{kind}.{layer}")] = ex.lit(index)
        logits = graph.result("logits")
        body = _Walk(ctx, frozenset((logits,))).steps(graph)
        self._check_taken(body)
        columns = logits.type.shape[1]
        if not isinstance(columns, int):
            raise UnsupportedError(f"logits of type {logits.type}")
        if ctx.picks is None:
            raise UnsupportedError("logits that do not come straight from a matmul")
        plan = Plan("step", (*ctx.scalars, *ctx.head.sizes), tuple(ctx.bufs), body)
        check_order(plan)
        verify_plan(plan)
        sizes = {v.name: v for v in plan.sizes}
        return Lowered(
            plan=plan,
            weights=ctx.weights,
            kv=ctx.kv,
            tables=ctx.tables,
            logits=ctx.values[logits],
            picks=ctx.picks,
            vocab=columns,
            sizes=sizes,
            top=self.top,
        )

    def _check_taken(self, body: tuple[Step, ...]) -> None:
        """A class that no weight takes would be none: UnsupportedError."""
        name = self.activations
        if name != INT8 and not any(taken(name, s) for k in phases(body) for s in walk(k.body)):
            raise UnsupportedError(
                f"--activations {name}: the model has no matrix in {name}; choose --weights {name}"
            )


def kv_shape(graph: Graph, kind: str) -> KvShape:
    """The cache geometry; UnsupportedError when layers differ in it."""
    keys = [p for p in graph.params if _input_name(p).startswith("cache_k.")]
    if not keys or kind not in KV_TYPES:
        raise UnsupportedError(f"--kv {kind}: choose one of {', '.join(KV_TYPES)}")
    shapes = {p.type.shape[1:] for p in graph.params if _input_name(p).startswith("cache_")}
    if len(shapes) != 1:
        raise UnsupportedError("layers whose caches differ in shape are not supported")
    heads, size = next(iter(shapes))
    if not isinstance(heads, int) or not isinstance(size, int):
        raise UnsupportedError("a cache with more than one symbolic size")
    return KvShape(len(keys), heads, size, KV_TYPES[kind])


def _input_name(v: Value) -> str:
    return v.node.op.name if isinstance(v.node.op, ops.Input) else ""


@dataclass
class _Walk:
    """Lowers nodes in order into one context."""

    ctx: Context
    outputs: frozenset[Value]
    names: set[str] = field(default_factory=lambda: {"token_embd"})

    def steps(self, graph: Graph) -> tuple[Step, ...]:
        """The steps of a graph or loop body."""
        out: list[Step] = []
        for n in graph.nodes():
            if isinstance(n.op, (ops.Cast, *ops_state.LEAVES)):
                continue
            rule = _RULES.get(type(n.op))
            if rule is None:
                raise UnsupportedError(f"{n.op.mnemonic} ({origin_of(n)}) has no lowering here")
            out.extend(rule(self, n))
        return tuple(out)

    def fused(self, n: Node) -> tuple[Step, ...]:
        """One matmul region."""
        name = kernel_name(self.ctx, n)
        if name in self.names:
            name = re.sub(r"\W+", "_", _short(origin_of(n).split(", ")[0]))
        self.names.add(name)
        region = RegionLowering(self.ctx, n, name, self.outputs)
        kernel = region.kernel()
        if region.best is None:
            return (kernel,)
        return (kernel, self._pick(region.best))

    def _pick(self, best: Best) -> Kernel:
        """What is found among the logits of a row."""
        ctx, row = self.ctx, Var("row")
        ctx.picks, body = lower_pick(ctx, best, row)
        if ctx.head.most:
            (logits,) = self.outputs
            vocab = logits.type.shape[1]
            if not isinstance(vocab, int):
                raise UnsupportedError(f"logits of type {logits.type}")
            body += lower_top(ctx, best, ctx.values[logits], vocab, row)
        return kernel_of(ctx, "pick", (Share(row, ctx.head.rows, body),), head=True)

    def attention(self, n: Node) -> tuple[Step, ...]:
        """Mask-free attention."""
        return lower_attention(self.ctx, n, kernel_name(self.ctx, n))

    def reshape(self, n: Node) -> tuple[Step, ...]:
        """The same buffer: trailing axes are flattened anyway."""
        self.ctx.values[Value(n)] = self.ctx.values[n.inputs[0]]
        return ()

    def embed(self, n: Node) -> tuple[Step, ...]:
        """Rows of the packed table, decoded."""
        ctx = self.ctx
        table, tokens = n.inputs
        packed = packed_matrix(table.type)
        names, layer = ctx.names(table)
        blob, offset = ctx.weight(names, packed, None, layer)
        dst = ctx.activation(Value(n), "token_embd")
        row, c = Var("row"), Var("c")
        token = load_index(ctx.values[tokens], row)
        value = packed.element(blob, offset, token, c)
        body = (Share(row, ctx.m, (Map(dst, (row, c), (Axis(c, packed.k),), value),)),)
        return (Kernel("token_embd", buffers_of(body, ctx), ctx.scalars, body),)

    def loop(self, n: Node) -> tuple[Step, ...]:
        """Rolled layers: carried values keep one buffer, weights and caches step with the trip."""
        op = n.op
        if not isinstance(op, ops_state.Loop) or self.ctx.layer is not None:
            raise UnsupportedError("a loop in a loop has no lowering")
        ctx, var = self.ctx, Var("layer")
        ctx.layer = LayerVar(var, op.trips)
        carried = self._bind(n, op, var)
        self._alias(op, carried)
        body = self.steps(op.body)
        for i, buf in carried.items():
            body += self._carry(op.body.results[i], buf)
        ctx.layer = None
        for i, buf in carried.items():
            ctx.values[Value(n, i)] = buf
        self._after(n, op)
        return (Loop(var, op.trips, body),)

    def _bind(self, n: Node, op: ops_state.Loop, var: Var) -> dict[int, Buf]:
        """Gives each body parameter its buffer, cache layer or weights."""
        ctx = self.ctx
        fixed = op.carried + op.invariant
        carried: dict[int, Buf] = {}
        for i, param in enumerate(op.body.params):
            if i < fixed:
                outer = n.inputs[i]
                if outer in ctx.values:
                    ctx.values[param] = ctx.values[outer]
                if i < op.carried:
                    carried[i] = ctx.values[outer]
                elif _is_constant(outer):
                    ctx.constants[param] = ctx.names(outer)
                continue
            at = fixed + (i - fixed) * op.trips
            given = n.inputs[at : at + op.trips]
            if given[0] in ctx.caches:
                ctx.caches[param] = _consecutive([ctx.caches[v] for v in given], var)
            else:
                names = tuple(ctx.names(v)[0][0] for v in given)
                ctx.constants[param] = (names, ctx.layer)
        return carried

    def _alias(self, op: ops_state.Loop, carried: Mapping[int, Buf]) -> None:
        """Lets a region write its result over a carried value that nothing reads any more."""
        order = [n for n in op.body.nodes() if not isinstance(n.op, ops_state.LEAVES)]
        for i, buf in carried.items():
            result, param = op.body.results[i], op.body.params[i]
            readers = [n for n in order if param in n.inputs]
            last = order.index(result.node)
            free = all(order.index(n) < last for n in readers)
            if free and isinstance(result.node.op, ops_state.Fused):
                self.ctx.aliases[result] = buf

    def _carry(self, result: Value, to: Buf) -> tuple[Step, ...]:
        """Makes the last writer of a carried value write where the next trip reads it."""
        ctx = self.ctx
        made = ctx.values[result]
        if made is to:
            return ()
        row, c = Var("row"), Var("c")
        columns = made.shape[1]
        body = (Share(row, ctx.m, (Map(to, (row, c), (Axis(c, columns),), Load(made, (row, c))),)),)
        return (Kernel("carry", (made, to), ctx.scalars, body),)

    def _after(self, n: Node, op: ops_state.Loop) -> None:
        """The caches a loop gives back are the ones it was given."""
        rest = len(op.body.results) - op.carried
        for s in range(rest):
            for t in range(op.trips):
                port = op.carried + s * op.trips + t
                self.ctx.caches[Value(n, port)] = ex.lit(t)


def _is_constant(v: Value) -> bool:
    return isinstance(v.node.op, (ops.Weight, ops.Cast))


def _consecutive(layers: list[Expr], var: Var) -> Expr:
    """first + var, when the cache layers of the trips follow each other."""
    numbers = [int(e.value) for e in layers if isinstance(e, ex.Const)]
    if numbers != list(range(numbers[0], numbers[0] + len(layers))):
        raise UnsupportedError("a loop whose cache layers do not follow each other")
    return ex.add(var, numbers[0])


def kernel_name(ctx: Context, n: Node) -> str:
    """A name from the model's own: blk.*.ffn_gate with blk.*.ffn_up -> ffn_gate_up."""
    names = [_short(w) for v in n.inputs for w in _matrix_names(ctx, v)]
    if not names:
        names = [_short(origin_of(n).split(", ")[0]) or n.op.mnemonic]
    stem = names[0][: names[0].rfind("_") + 1] if len(names) > 1 else ""
    stem = stem if all(name.startswith(stem) for name in names) else ""
    return re.sub(r"\W+", "_", stem + "_".join(name.removeprefix(stem) for name in names))


def _short(name: str) -> str:
    return re.sub(r"^blk\.[*\d]+\.|\.weight$", "", name)


def _matrix_names(ctx: Context, v: Value) -> tuple[str, ...]:
    known = v in ctx.constants or isinstance(v.node.op, ops.Weight)
    return ctx.names(v)[0][:1] if known and len(v.type.shape) == 2 else ()


_RULES = {
    ops.Embed: _Walk.embed,
    ops.Reshape: _Walk.reshape,
    ops_state.Fused: _Walk.fused,
    ops_state.Attention: _Walk.attention,
    ops_state.Loop: _Walk.loop,
}
