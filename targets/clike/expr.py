"""Scalar expressions -> text, with the types and the arithmetic of the IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from speccc.errors import UnsupportedError
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var, add, lit, mul
from speccc.ir.tile import Buf, Mem
from speccc.ir.types import BF16, F16, F32, DType, Kind
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.names import Names

INFIX = {
    Fn.ADD: "+",
    Fn.SUB: "-",
    Fn.MUL: "*",
    Fn.DIV: "/",
    Fn.AND: "&",
    Fn.OR: "|",
    Fn.XOR: "^",
    Fn.LT: "<",
    Fn.LE: "<=",
    Fn.EQ: "==",
}
NARROW = 32
"""All dialects compute in 32 bits; a narrower result is cast back."""


def type_name(dialect: Dialect, dtype: DType) -> str:
    """The type that holds an element."""
    return dialect.types[dtype.name]


def literal(dialect: Dialect, value: float | int, dtype: DType) -> str:
    """A constant; floats in the fewest digits that give the same f32."""
    if dtype.kind is Kind.BOOL:
        return "true" if value else "false"
    if dtype == BF16:
        upper = int(np.float32(value).view(np.uint32)) >> 16
        return f"{dialect.bitcasts['u32', 'bf16']}({upper}u)"
    if dtype.kind is not Kind.FLOAT:
        text = f"{int(value)}u" if dtype.kind is Kind.UINT else str(int(value))
        return text if dtype.bits >= NARROW else f"{type_name(dialect, dtype)}({text})"
    single = np.float32(value)
    if not np.isfinite(single):
        return f"{dialect.bitcasts['u32', 'f32']}({int(single.view(np.uint32)):#x}u)"
    text = repr(float(single)) + dialect.float_suffix
    return text if dtype == F32 else f"{type_name(dialect, dtype)}({text})"


@dataclass
class Exprs:
    """Renders expressions; `readers` names what the text needs to read numbers from bytes."""

    dialect: Dialect
    names: Names
    readers: dict[tuple[Buf, DType], str] = field(default_factory=dict)

    def type(self, dtype: DType) -> str:
        """The type that holds an element."""
        return type_name(self.dialect, dtype)

    def variable(self, v: Var) -> str:
        """A variable's identifier."""
        return self.names.of(v, v.name)

    def buffer(self, buf: Buf) -> str:
        """A buffer's identifier."""
        return self.names.of(buf, buf.name)

    def element(self, buf: Buf, index: tuple[Expr, ...]) -> str:
        """An element as an lvalue."""
        return f"{self.buffer(buf)}[{self.position(buf, index)}]"

    def position(self, buf: Buf, index: tuple[Expr, ...]) -> str:
        """The row-major number of an element; in SCRATCH, counted from the workgroup's part."""
        at: Expr = lit(0)
        for i, size in zip(index, buf.shape, strict=True):
            at = add(mul(at, size), i)
        text = self.render(at)
        if buf.mem is not Mem.SCRATCH:
            return text
        return f"workgroup * ({self.size(buf)}) + {text}"

    def size(self, buf: Buf) -> str:
        """The number of elements."""
        count: Expr = lit(1)
        for d in buf.shape:
            count = mul(count, d)
        return self.render(count)

    def bound(self, e: Expr | int) -> str:
        """A size or a limit."""
        return str(e) if isinstance(e, int) else self.render(e)

    def render(self, e: Expr) -> str:
        """The text of an expression; infix operations below the top are in parentheses."""
        if isinstance(e, Const):
            return literal(self.dialect, e.value, e.dtype)
        if isinstance(e, Var):
            return self.variable(e)
        if isinstance(e, Load):
            return self.element(e.buf, e.index)
        if isinstance(e, LoadBytes):
            return self.dialect.reader(self, e, self.render(e.at))
        if e.fn in _SPECIAL:
            return _SPECIAL[e.fn](self, e)
        if e.fn in self.dialect.calls:
            return self.call(e.fn, *(self.render(a) for a in e.args))
        left, right = (self.inner(a) for a in e.args)
        return self._narrowed(f"{left} {INFIX[e.fn]} {right}", e.dtype)

    def call(self, fn: Fn, *args: str) -> str:
        """A function of operands that are text already."""
        return f"{self.dialect.calls[fn]}({', '.join(args)})"

    def added(self, total: str, e: Expr) -> str:
        """`total` and one more term; a product of floats by a fused multiply-add."""
        if isinstance(e, Apply) and e.fn is Fn.MUL and e.dtype == F32:
            return f"fma_ir({self.render(e.args[0])}, {self.render(e.args[1])}, {total})"
        return f"{total} + {self.inner(e)}"

    def inner(self, e: Expr) -> str:
        """An operand: parenthesised when it is an infix operation itself."""
        text = self.render(e)
        call = isinstance(e, Apply) and (e.fn in self.dialect.calls or e.fn in _CONVERSIONS)
        negative = isinstance(e, Const) and text.startswith("-")
        return text if (call or not isinstance(e, Apply)) and not negative else f"({text})"

    def _narrowed(self, text: str, dtype: DType) -> str:
        if dtype.kind is Kind.BOOL or dtype.bits >= NARROW:
            return text
        return f"{self.type(dtype)}({text})"


def _cast(r: Exprs, e: Apply) -> str:
    source, text = e.args[0].dtype, r.render(e.args[0])
    if isinstance(e.args[0], LoadBytes) and source in (F16, BF16):  # its reader gives a float
        return text if e.dtype == F32 else f"{r.type(e.dtype)}({text})"
    if source == BF16:
        bits = f"{r.dialect.bitcasts['bf16', 'u32']}({text})"
        wide = f"{r.dialect.bitcasts['u32', 'f32']}({bits} << 16)"
        return wide if e.dtype == F32 else f"{r.type(e.dtype)}({wide})"
    if e.dtype == BF16:  # of an f32 that is one: its upper half
        bits = f"{r.dialect.bitcasts['f32', 'u32']}({text}) >> 16"
        return f"{r.dialect.bitcasts['u32', 'bf16']}({bits})"
    if e.dtype == F16 and _is_half(e.args[0]):
        return f"{r.type(F16)}({text})"
    if e.dtype == F16 and source.kind is Kind.FLOAT:
        # Rounded beforehand: a device may round otherwise, or drop a conversion there and back.
        return f"{r.type(F16)}(half_round({text}))"
    if source.kind is Kind.FLOAT and e.dtype.bits < NARROW:
        text = f"int({text})"
    return f"{r.type(e.dtype)}({text})"


def _is_half(e: Expr) -> bool:
    """Whether an f32 is the value of a half."""
    return isinstance(e, Apply) and e.fn is Fn.CAST and e.args[0].dtype == F16


def _shift(r: Exprs, e: Apply) -> str:
    """Of bits: C++ before 20 has no left shift of a negative number, nor a logical right one."""
    kind = e.args[0].dtype
    if kind.bits < NARROW:
        raise UnsupportedError(f"{r.dialect.name}: a shift of {kind}; cast it to 32 bits first")
    value, by = (r.render(a) for a in e.args)
    return f"{r.type(e.dtype)}(uint({value}) {_SHIFTS[e.fn]} uint({by}))"


def _bitcast(r: Exprs, e: Apply) -> str:
    key = (e.args[0].dtype.name, e.dtype.name)
    if key not in r.dialect.bitcasts:
        raise UnsupportedError(f"{r.dialect.name}: no bit cast from {key[0]} to {key[1]}")
    return f"{r.dialect.bitcasts[key]}({r.render(e.args[0])})"


def _select(r: Exprs, e: Apply) -> str:
    condition, a, b = (r.inner(x) for x in e.args)
    return f"{condition} ? {a} : {b}"


def _negate(r: Exprs, e: Apply) -> str:
    return f"-{r.inner(e.args[0])}"


_CONVERSIONS = (Fn.CAST, Fn.BITCAST)
_SHIFTS = {Fn.SHL: "<<", Fn.SHR: ">>"}
_SPECIAL: dict[Fn, Callable[[Exprs, Apply], str]] = {
    Fn.CAST: _cast,
    **dict.fromkeys(_SHIFTS, _shift),
    Fn.BITCAST: _bitcast,
    Fn.SELECT: _select,
    Fn.NEG: _negate,
}
