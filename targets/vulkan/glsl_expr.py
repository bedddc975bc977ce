"""Scalar expressions -> GLSL text, with the types and the arithmetic of the IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from speccc.errors import UnsupportedError
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var, add, lit, mul
from speccc.ir.tile import Buf, Mem
from speccc.ir.types import BF16, F16, F32, DType, Kind
from speccc.targets.vulkan.glsl_text import Names

TYPES = {
    "f32": "float",
    "f16": "float16_t",
    "bf16": "uint16_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "i32": "int",
    "u32": "uint",
    "index": "int",
    "bool": "bool",
}

INFIX = {
    Fn.ADD: "+",
    Fn.SUB: "-",
    Fn.MUL: "*",
    Fn.DIV: "/",
    Fn.IDIV: "/",
    Fn.MOD: "%",
    Fn.AND: "&",
    Fn.OR: "|",
    Fn.XOR: "^",
    Fn.SHL: "<<",
    Fn.LT: "<",
    Fn.LE: "<=",
    Fn.EQ: "==",
}
CALLS = {
    Fn.MIN: "min",
    Fn.MAX: "max",
    Fn.FMA: "fma_ir",
    Fn.ABS: "abs",
    Fn.RINT: "roundEven",
    Fn.SQRT: "sqrt",
    Fn.EXP: "exp_ir",
}


NARROW = 32
"""GLSL computes in 32 bits; a narrower result is cast back."""


def type_name(dtype: DType) -> str:
    """The GLSL type that holds an element."""
    return TYPES[dtype.name]


def literal(value: float | int, dtype: DType) -> str:
    """A constant; floats in the fewest digits that give the same f32."""
    if dtype.kind is Kind.BOOL:
        return "true" if value else "false"
    if dtype.kind is not Kind.FLOAT:
        text = f"{int(value)}u" if dtype.kind is Kind.UINT else str(int(value))
        return text if dtype.bits >= NARROW else f"{type_name(dtype)}({text})"
    single = np.float32(value)
    if not np.isfinite(single):
        return f"uintBitsToFloat({int(single.view(np.uint32)):#x}u)"
    text = repr(float(single))
    return text if dtype == F32 else f"{type_name(dtype)}({text})"


@dataclass
class Exprs:
    """Renders expressions; remembers which byte readers the text needs."""

    names: Names
    readers: dict[tuple[Buf, DType], str] = field(default_factory=dict)

    def variable(self, v: Var) -> str:
        """A variable's identifier."""
        return self.names.of(v, v.name)

    def element(self, buf: Buf, index: tuple[Expr, ...]) -> str:
        """An element as an lvalue."""
        return f"{self.names.of(buf, buf.name)}[{self.position(buf, index)}]"

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
            return literal(e.value, e.dtype)
        if isinstance(e, Var):
            return self.variable(e)
        if isinstance(e, Load):
            return self.element(e.buf, e.index)
        if isinstance(e, LoadBytes):
            return f"{self._reader(e)}({self.render(e.at)})"
        if e.fn in _SPECIAL:
            return _SPECIAL[e.fn](self, e)
        if e.fn in CALLS:
            return f"{CALLS[e.fn]}({', '.join(self.render(a) for a in e.args)})"
        left, right = (self.inner(a) for a in e.args)
        return self._narrowed(f"{left} {INFIX[e.fn]} {right}", e.dtype)

    def inner(self, e: Expr) -> str:
        """An operand: parenthesised when it is an infix operation itself."""
        text = self.render(e)
        atomic = not isinstance(e, Apply) or e.fn in CALLS or e.fn in (Fn.CAST, Fn.BITCAST)
        negative = isinstance(e, Const) and text.startswith("-")
        return text if atomic and not negative else f"({text})"

    def _narrowed(self, text: str, dtype: DType) -> str:
        if dtype.kind is Kind.BOOL or dtype.bits >= NARROW:
            return text
        return f"{type_name(dtype)}({text})"

    def _reader(self, e: LoadBytes) -> str:
        key = (e.buf, e.dtype)
        if key not in self.readers:
            name = self.names.of(e.buf, e.buf.name)
            self.readers[key] = self.names.fresh_global(f"{name}_{e.dtype.name}_at")
        return self.readers[key]


def _cast(r: Exprs, e: Apply) -> str:
    source, text = e.args[0].dtype, r.render(e.args[0])
    if isinstance(e.args[0], LoadBytes) and source in (F16, BF16):  # its reader gives a float
        return text if e.dtype == F32 else f"{type_name(e.dtype)}({text})"
    if source == BF16:
        wide = f"uintBitsToFloat(uint({text}) << 16)"
        return wide if e.dtype == F32 else f"{type_name(e.dtype)}({wide})"
    if e.dtype == F16 and source.kind is Kind.FLOAT:
        # Rounded beforehand: a device may round otherwise, or drop a conversion there and back.
        return f"float16_t(half_round({text}))"
    if source.kind is Kind.FLOAT and e.dtype.bits < NARROW:
        text = f"int({text})"
    return f"{type_name(e.dtype)}({text})"


def _shift_right(r: Exprs, e: Apply) -> str:
    kind = e.args[0].dtype
    text = f"uint({r.render(e.args[0])}) >> uint({r.render(e.args[1])})"
    if kind.bits < NARROW:
        raise UnsupportedError(f"vulkan: a shift of {kind}; cast it to 32 bits first")
    return f"{type_name(e.dtype)}({text})"


BITCASTS = {
    ("f32", "i32"): "floatBitsToInt",
    ("f32", "u32"): "floatBitsToUint",
    ("i32", "f32"): "intBitsToFloat",
    ("u32", "f32"): "uintBitsToFloat",
    ("i32", "u32"): "uint",
    ("u32", "i32"): "int",
    ("i8", "u8"): "uint8_t",
    ("u8", "i8"): "int8_t",
}


def _bitcast(r: Exprs, e: Apply) -> str:
    key = (e.args[0].dtype.name, e.dtype.name)
    if key not in BITCASTS:
        raise UnsupportedError(f"vulkan: no bit cast from {key[0]} to {key[1]}")
    return f"{BITCASTS[key]}({r.render(e.args[0])})"


def _select(r: Exprs, e: Apply) -> str:
    condition, a, b = (r.inner(x) for x in e.args)
    return f"{condition} ? {a} : {b}"


def _negate(r: Exprs, e: Apply) -> str:
    return f"-{r.inner(e.args[0])}"


_SPECIAL: dict[Fn, Callable[[Exprs, Apply], str]] = {
    Fn.CAST: _cast,
    Fn.SHR: _shift_right,
    Fn.BITCAST: _bitcast,
    Fn.SELECT: _select,
    Fn.NEG: _negate,
}
