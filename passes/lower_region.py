"""A `Fused` region -> one kernel: prologue, matmul panels, epilogue.

The epilogue's results are of two kinds. An elementwise one is written panel by panel. A result
split into heads (with or without RoPE, into a cache or not) is written group by group: RoPE pairs
lie 16 lanes apart because the weight's rows were packed evens first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir import ops, ops_state
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, Var
from speccc.ir.graph import Node, Value
from speccc.ir.plan import Role, accesses
from speccc.ir.region import Region, read_region
from speccc.ir.tile import LANES, Axis, Buf, Kernel, Map, Stmt
from speccc.ir.types import F32
from speccc.passes.lower_context import Context, columns_of
from speccc.passes.lower_head import Best, Logit, lower_head
from speccc.passes.lower_heads import HeadResult, lower_heads
from speccc.passes.quantize_rows import Norm
from speccc.passes.tile_matmul import Operand, Rows, accumulate, prepare_rows, units_by_rows
from speccc.passes.weight_layout import packed_matrix


def add_floats(a: Expr, b: Expr) -> Expr:
    """a + b, as one fma when a term is a product: no compiler may choose whether to contract it."""
    for x, y in ((a, b), (b, a)):
        negative = isinstance(x, Apply) and x.fn is Fn.NEG
        product = x.args[0] if isinstance(x, Apply) and negative else x
        if isinstance(product, Apply) and product.fn is Fn.MUL:
            left, right = product.args
            return ex.fma(ex.unary(Fn.NEG, left) if negative else left, right, y)
    return ex.add(a, b)


def sub_floats(a: Expr, b: Expr) -> Expr:
    """a - b, as one fma when a term is a product."""
    return add_floats(a, ex.unary(Fn.NEG, b))


def mul_floats(a: Expr, b: Expr) -> Expr:
    """a * b; a factor of 1 is dropped, as a compiler would."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const) and x.value == 1:
            return y
    return ex.mul(a, b)


BINARY = {
    ops.Fn.ADD: add_floats,
    ops.Fn.SUB: sub_floats,
    ops.Fn.MUL: mul_floats,
    ops.Fn.DIV: ex.div,
    ops.Fn.MAX: ex.maximum,
    ops.Fn.MIN: ex.minimum,
}


def silu(x: Expr) -> Expr:
    """x / (1 + e^-x)."""
    return ex.div(x, ex.add(ex.lit(1.0, F32), ex.unary(Fn.EXP, ex.unary(Fn.NEG, x))))


def scalar_function(fn: ops.Fn, args: list[Expr]) -> Expr:
    """A graph `Map` function on tile expressions."""
    if fn in BINARY:
        return BINARY[fn](*args)
    one = ex.lit(1.0, F32)
    unary = {
        ops.Fn.NEG: lambda x: ex.unary(Fn.NEG, x),
        ops.Fn.EXP: lambda x: ex.unary(Fn.EXP, x),
        ops.Fn.SQRT: lambda x: ex.unary(Fn.SQRT, x),
        ops.Fn.RSQRT: lambda x: ex.div(one, ex.unary(Fn.SQRT, x)),
        ops.Fn.SILU: silu,
    }
    return unary[fn](args[0])


@dataclass
class RegionLowering:
    """One fused node: `outer` maps the body's parameters to the values outside.

    A node with the logits among its results is the head: it runs on the rows of `ctx.head` alone
    and leaves in `best` what is needed to pick from them.
    """

    ctx: Context
    node: Node
    name: str
    outputs: frozenset[Value]
    best: Best | None = field(default=None, init=False)

    @property
    def is_head(self) -> bool:
        """Whether a result is an output of the plan."""
        return any(Value(self.node, n) in self.outputs for n in range(len(self.node.outs)))

    def kernel(self) -> Kernel:
        """The region's kernel; its results become buffers of the context."""
        op = self.node.op
        if not isinstance(op, ops_state.Fused):
            raise UnsupportedError(f"{op.mnemonic} is not a fused region")
        self.region = read_region(op.body)
        self.ports = {Value(self.region.matmul, p): p for p in range(len(self.region.weights))}
        self.operands: dict[int, Operand] = {}
        rows, body = self._prologue()
        for position, result in enumerate(op.body.results):
            body += self._result(result, Value(self.node, position), rows)
        return kernel_of(self.ctx, self.name, tuple(body), head=self.is_head)

    @property
    def first(self) -> Expr:
        """The step's row that is this region's row 0."""
        return self.ctx.head.first if self.is_head else ex.lit(0)

    def outer(self, param: Value) -> Value:
        """What a body parameter stands for."""
        return self.node.inputs[self.region.position(param)]

    def _prologue(self) -> tuple[Rows, list[Stmt]]:
        r = self.region
        x = self.ctx.values[self.outer(r.x)]
        k = r.matmul.inputs[0].type.shape[1]
        if not isinstance(k, int):
            raise UnsupportedError(f"{self.name}: the reduction has a symbolic size")
        packed = [packed_matrix(self.outer(w).type) for w in r.weights]
        return prepare_rows(
            lambda row, c: Load(x, (ex.add(self.first, row), c)),
            self._norm(r),
            self.ctx.m,
            k,
            packed,
            self.ctx.head.rows if self.is_head else None,
            self.ctx.activations,
        )

    def _norm(self, r: Region) -> Norm | None:
        if r.norm is None or not isinstance(r.norm.op, ops.RmsNorm):
            return None
        weight = r.norm.inputs[1]
        names, layer = self.ctx.names(self.outer(weight))
        size = weight.type.shape[0]
        if not isinstance(size, int):
            raise UnsupportedError(f"{self.name}: a norm of symbolic size")
        offset = self.ctx.weights.vector(names, size, layer)
        return Norm(lambda c: Load(self.ctx.vectors, (ex.add(offset, c),)), r.norm.op.eps)

    def operand(self, port: int, group: int | None = None) -> Operand:
        """The packed weight of a matmul result."""
        outer = self.outer(self.region.weights[port])
        names, layer = self.ctx.names(outer)
        packed = packed_matrix(outer.type)
        return Operand(packed, *self.ctx.weight(names, packed, group, layer))

    def _result(self, result: Value, outer: Value, rows: Rows) -> list[Stmt]:
        heads = self._heads(result)
        if heads is not None:
            return lower_heads(self.ctx, self.name, heads, rows, self.operand, outer)
        return (
            self._logits(result, outer, rows)
            if self.is_head
            else (self._elementwise(result, outer, rows))
        )

    def _heads(self, result: Value) -> HeadResult | None:
        """[cache_append] [rope] reshape(port): a result in heads, or None."""
        cache: Value | None = None
        rope: Node | None = None
        at = result
        if isinstance(at.node.op, ops_state.CacheAppend):
            cache, at = self.outer(at.node.inputs[0]), at.node.inputs[1]
        if isinstance(at.node.op, ops.Rope):
            rope, at = at.node, at.node.inputs[0]
        if cache is None and rope is None:
            return None
        if not isinstance(at.node.op, ops.Reshape) or at.node.inputs[0] not in self.ports:
            raise UnsupportedError(f"{self.name}: heads do not come straight from a matmul")
        factors = None
        if rope is not None and len(rope.inputs) == 3:
            factors = self.ctx.names(self.outer(rope.inputs[2]))[0][0]
        heads, size = at.type.shape[1:]
        if not isinstance(heads, int) or not isinstance(size, int):
            raise UnsupportedError(f"{self.name}: heads of symbolic size")
        op = rope.op if rope is not None and isinstance(rope.op, ops.Rope) else None
        return HeadResult(self.ports[at.node.inputs[0]], heads, size, op, factors, cache)

    def _elementwise(self, result: Value, outer: Value, rows: Rows) -> list[Stmt]:
        dst = self.ctx.activation(outer, self.name)
        columns = columns_of(result)

        def body(width: int, row: Expr, unit: Expr) -> list[Stmt]:
            out, value = self._tile(result, rows, width, row, unit)
            i, j = Var("i"), Var("j")
            at = (ex.add(row, i), ex.add(ex.mul(unit, LANES), j))
            return [*out, Map(dst, at, (Axis(i, width), Axis(j, LANES)), value(i, j))]

        return [units_by_rows("panel", -(-columns // LANES), self.ctx.m, body)]

    def _logits(self, result: Value, outer: Value, rows: Rows) -> list[Stmt]:
        if len(self.node.outs) != 1:
            raise UnsupportedError(f"{self.name}: a head with more results than the logits")
        dst = self.ctx.activation(outer, self.name, Role.OUTPUT)
        out, self.best = lower_head(
            self.ctx,
            columns_of(result),
            dst,
            lambda width, row, panel: self._tile(result, rows, width, row, panel),
        )
        return out

    def _tile(
        self, result: Value, rows: Rows, width: int, row: Expr, unit: Expr
    ) -> tuple[list[Stmt], Logit]:
        """The matmuls of one tile, and the epilogue's value at (row of the tile, lane)."""
        out: list[Stmt] = []
        accs: dict[int, Buf] = {}
        for p in sorted({self.ports[v] for v in self._ports_of(result)}):
            acc, computed = accumulate(f"acc{p}", width, rows, self.operand(p), row, unit)
            accs[p] = acc
            out += computed

        def value(i: Expr, j: Expr) -> Expr:
            at = (ex.add(ex.add(self.first, row), i), ex.add(ex.mul(unit, LANES), j))
            return self._value(result, accs, at, (i, j))

        return out, value

    def _ports_of(self, value: Value) -> list[Value]:
        if value in self.ports:
            return [value]
        return [p for v in value.node.inputs for p in self._ports_of(v)]

    def _value(
        self, v: Value, accs: dict[int, Buf], at: tuple[Expr, Expr], lane: tuple[Expr, Expr]
    ) -> Expr:
        """Element `at` of a value of the epilogue; matmul results are read from their tiles."""
        if v in self.ports:
            return Load(accs[self.ports[v]], lane)
        op = v.node.op
        if isinstance(op, ops.Input):
            return Load(self.ctx.values[self.outer(v)], at)
        if isinstance(op, ops.Constant):
            return _scalar_constant(v)
        if isinstance(op, ops.Reshape):
            return self._value(v.node.inputs[0], accs, at, lane)
        if isinstance(op, ops.Map):
            args = [self._value(a, accs, at, lane) for a in v.node.inputs]
            return scalar_function(op.fn, args)
        raise UnsupportedError(f"{self.name}: {op.mnemonic} in an epilogue")


def kernel_of(ctx: Context, name: str, body: tuple[Stmt, ...], *, head: bool = False) -> Kernel:
    """The kernel of a phase, with the buffers and sizes it may touch."""
    scalars = (*ctx.scalars, *ctx.head.sizes) if head else ctx.scalars
    return Kernel(name, buffers_of(body, ctx), scalars, body)


def _scalar_constant(v: Value) -> Expr:
    op = v.node.op
    if not isinstance(op, ops.Constant) or len(op.data) != 4:
        raise UnsupportedError("a constant tensor in an epilogue")
    return ex.lit(float(np.frombuffer(op.data, np.float32)[0]), F32)


def buffers_of(body: tuple[Stmt, ...], ctx: Context) -> tuple[Buf, ...]:
    """The plan's buffers that statements touch, in the plan's order."""
    probe = Kernel("probe", tuple(b.buf for b in ctx.bufs), (), body)
    reads, writes = accesses(probe)
    return tuple(b.buf for b in ctx.bufs if b.buf in reads | writes)
