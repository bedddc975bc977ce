"""Scalar expressions -> TensorIR values of 1 or more lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import tirx

from speccc.errors import VerifyError
from speccc.ir.expr import (
    Apply,
    Const,
    Expr,
    Fn,
    Load,
    LoadBytes,
    Var,
    add,
    lit,
    mul,
    stride,
    variables,
)
from speccc.ir.interp_expr import EXP, F16_MAX
from speccc.ir.tile import Buf
from speccc.ir.types import BF16, BOOL, F16, F32, I32, U32, DType, Kind
from speccc.targets.cpu import tir
from speccc.targets.cpu.tir import Block, Node


class NotVector(Exception):
    """The expression has no vector form here; the caller falls back to one lane."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer's elements are: a flat TensorIR buffer and the offset of element 0."""

    buffer: Node
    base: Node


@dataclass
class Scope:
    """What the rendered code can see: variables and buffers, by the IR's own objects."""

    variables: dict[Var, Node] = field(default_factory=dict)
    places: dict[Buf, Place] = field(default_factory=dict)

    def child(self) -> Scope:
        """A scope for an inner block."""
        return Scope(dict(self.variables), dict(self.places))


def flat_index(buf: Buf, idx: tuple[Expr, ...]) -> Expr:
    """The row-major element number as one expression."""
    at: Expr = lit(0)
    for i, size in zip(idx, buf.shape, strict=True):
        at = add(mul(at, size), i)
    return at


@dataclass
class Lanes:
    """Renders expressions as vectors along `axis`, whose value in lane 0 is `start`."""

    scope: Scope
    block: Block
    axis: Var | None = None
    start: Node | None = None
    lanes: int = 1

    def scalar(self, e: Expr) -> Node:
        """One lane; the axis variable has its lane 0 value."""
        inner = Scope(dict(self.scope.variables), self.scope.places)
        if self.axis is not None:
            inner.variables[self.axis] = self.start
        return Lanes(inner, self.block).render(e)

    def render(self, e: Expr) -> Node:
        """The value of `e`, `lanes` wide."""
        if self.lanes > 1 and self.axis not in variables(e):
            return tir.broadcast(self.scalar(e), self.lanes)
        if isinstance(e, Const):
            return tir.const(e.value, e.dtype, self.lanes)
        if isinstance(e, Var):
            return self._variable(e)
        if isinstance(e, Load):
            return self._load(e)
        if isinstance(e, LoadBytes):
            return self._load_bytes(e)
        return self._apply(e)

    def _variable(self, e: Var) -> Node:
        if e is self.axis:
            return tir.ramp(self.start, 1, self.lanes)
        if e not in self.scope.variables:
            raise VerifyError(f"variable {e.name} has no value here")
        return self.scope.variables[e]

    def _load(self, e: Load) -> Node:
        place = self.scope.places[e.buf]
        at = flat_index(e.buf, e.index)
        step = 0 if self.axis is None else stride(at, self.axis)
        if step is None and self.lanes > 1:
            raise NotVector(e.buf.name)
        base = place.base + self.scalar(at)
        return tir.load(place.buffer, base, self.lanes, step or 1)

    def _load_bytes(self, e: LoadBytes) -> Node:
        place = self.scope.places[e.buf]
        width = e.dtype.nbytes
        step = width if self.axis is None or self.lanes == 1 else stride(e.at, self.axis)
        if step != width:
            raise NotVector(e.buf.name)
        raw = tir.load(place.buffer, place.base + self.scalar(e.at), self.lanes * width)
        return tirx.reinterpret(tir.type_name(e.dtype, self.lanes), raw)

    def _apply(self, e: Apply) -> Node:
        args = [self.render(a) for a in e.args]
        value = RENDER[e.fn](self, e, args)
        # TVM's analyzer fails on a bound vector of truth values.
        return value if e.dtype == BOOL else self.block.bind(e.fn.value, value)

    def llvm(self, name: str, x: Node) -> Node:
        """A unary LLVM intrinsic on f32."""
        suffix = "f32" if self.lanes == 1 else f"v{self.lanes}f32"
        return tir.intrinsic(tir.type_name(F32, self.lanes), f"llvm.{name}.{suffix}", x)

    def exp(self, x: Node) -> Node:
        """e**x by the steps of `speccc.ir.interp_expr.exp`."""
        n, block = self.lanes, self.block

        def c(value: float) -> Node:
            return tir.const(value, F32, n)

        clamped = block.bind("x", tirx.max(tirx.min(x, c(EXP.high)), c(EXP.low)))
        whole = block.bind("n", self.llvm("nearbyint", clamped * c(EXP.log2e)))
        r = block.bind("r", tir.fma(whole, c(-EXP.ln2_hi), clamped, n))
        r = block.bind("r", tir.fma(whole, c(-EXP.ln2_lo), r, n))
        p = c(EXP.poly[0])
        for coefficient in EXP.poly[1:]:
            p = block.bind("p", tir.fma(p, r, c(coefficient), n))
        exponent = tirx.Cast(tir.type_name(I32, n), whole) + tir.const(127, I32, n)
        bits = exponent << tir.const(23, I32, n)
        scaled = p * tirx.reinterpret(tir.type_name(F32, n), bits)
        return tirx.Select(x < c(EXP.low), c(0.0), scaled)


def _cast(r: Lanes, e: Apply, args: list[Node]) -> Node:
    source, n = e.args[0].dtype, r.lanes
    if source == BF16:
        wide = tirx.Cast(tir.type_name(U32, n), args[0]) << tir.const(16, U32, n)
        return tirx.reinterpret(tir.type_name(F32, n), wide)
    if e.dtype == F16:
        top = tir.const(F16_MAX, F32, n)
        low = tir.const(-F16_MAX, F32, n)
        return tirx.Cast(tir.type_name(F16, n), tirx.max(tirx.min(args[0], top), low))
    if source.kind is Kind.FLOAT and e.dtype.bits < 32:
        return tirx.Cast(tir.type_name(e.dtype, n), tirx.Cast(tir.type_name(I32, n), args[0]))
    return tirx.Cast(tir.type_name(e.dtype, n), args[0])


def _shift_right(r: Lanes, e: Apply, args: list[Node]) -> Node:
    unsigned = DType("u", e.dtype.bits, Kind.UINT)
    name = f"uint{unsigned.bits}" + (f"x{r.lanes}" if r.lanes > 1 else "")
    shifted = tirx.Cast(name, args[0]) >> tirx.Cast(name, args[1])
    return tirx.Cast(tir.type_name(e.dtype, r.lanes), shifted)


def _bitcast(r: Lanes, e: Apply, args: list[Node]) -> Node:
    return tirx.reinterpret(tir.type_name(e.dtype, r.lanes), args[0])


def _plain(fn: Callable[..., Node]) -> Callable[[Lanes, Apply, list[Node]], Node]:
    return lambda r, e, args: fn(*args)


RENDER: dict[Fn, Callable[[Lanes, Apply, list[Node]], Node]] = {
    Fn.ADD: _plain(lambda a, b: a + b),
    Fn.SUB: _plain(lambda a, b: a - b),
    Fn.MUL: _plain(lambda a, b: a * b),
    Fn.DIV: _plain(lambda a, b: a / b),
    Fn.IDIV: _plain(tirx.truncdiv),
    Fn.MOD: _plain(tirx.truncmod),
    Fn.MIN: _plain(tirx.min),
    Fn.MAX: _plain(tirx.max),
    Fn.AND: _plain(lambda a, b: a & b),
    Fn.OR: _plain(lambda a, b: a | b),
    Fn.XOR: _plain(lambda a, b: a ^ b),
    Fn.SHL: _plain(lambda a, b: a << b),
    Fn.SHR: _shift_right,
    Fn.LT: _plain(lambda a, b: a < b),
    Fn.LE: _plain(lambda a, b: a <= b),
    Fn.EQ: _plain(lambda a, b: tirx.EQ(a, b)),
    Fn.FMA: lambda r, e, args: tir.fma(args[0], args[1], args[2], r.lanes),
    Fn.SELECT: _plain(tirx.Select),
    Fn.NEG: _plain(lambda a: -a),
    Fn.ABS: lambda r, e, args: r.llvm("fabs", args[0]),
    Fn.RINT: lambda r, e, args: r.llvm("nearbyint", args[0]),
    Fn.SQRT: lambda r, e, args: r.llvm("sqrt", args[0]),
    Fn.EXP: lambda r, e, args: r.exp(args[0]),
    Fn.BITCAST: _bitcast,
    Fn.CAST: _cast,
}


def render_scalar(e: Expr | int, scope: Scope, block: Block) -> Node:
    """One lane of an expression, or an int as int64."""
    return tir.index(e) if isinstance(e, int) else Lanes(scope, block).render(e)
