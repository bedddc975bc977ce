"""Thin layer over TVM's TensorIR nodes: vectors as ramps, bound values, statement lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from speccc.ir.types import DType

# TVM's Python nodes carry no useful static types.
Node = Any

CACHE_LINE = 64
"""Bytes a prefetch brings."""

TVM_NAMES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "uint16",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "u32": "uint32",
    "index": "int64",
    "bool": "bool",
}


def type_name(dtype: DType, lanes: int = 1) -> str:
    """TVM's spelling of a vector type."""
    base = TVM_NAMES[dtype.name]
    return base if lanes == 1 else f"{base}x{lanes}"


def index(n: int) -> Node:
    """An int64 literal."""
    return tirx.IntImm("int64", n)


def const(value: float | int, dtype: DType, lanes: int = 1) -> Node:
    """A literal, broadcast to `lanes`."""
    scalar = tirx.const(value, type_name(dtype))
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def broadcast(scalar: Node, lanes: int) -> Node:
    """A scalar in every lane."""
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def ramp(base: Node, stride: int, lanes: int) -> Node:
    """base + stride * (0..lanes-1)."""
    return base if lanes == 1 else tirx.Ramp(base, index(stride), lanes)


def load(buffer: Node, base: Node, lanes: int = 1, stride: int = 1) -> Node:
    """`lanes` elements from `base` on."""
    return tirx.BufferLoad(buffer, [ramp(base, stride, lanes)])


def store(buffer: Node, base: Node, value: Node, lanes: int = 1, stride: int = 1) -> Node:
    """Stores `lanes` elements from `base` on."""
    return tirx.BufferStore(buffer, value, [ramp(base, stride, lanes)])


def intrinsic(dtype: str, name: str, *args: Node) -> Node:
    """A call of an LLVM intrinsic without side effects."""
    return tirx.call_llvm_pure_intrin(dtype, name, *args)


def prefetch(buffer: Node, at: Node, level: int = 1) -> Node:
    """Asks for an element's line in a cache; an address outside the buffer does no harm."""
    where = tirx.address_of(load(buffer, at))
    # To read, as local as the level is near (3 is the first), data.
    i32 = [tirx.IntImm("int32", n) for n in (0, 4 - level, 1)]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", where, *i32))


def fma(a: Node, b: Node, c: Node, lanes: int) -> Node:
    """One-rounding a * b + c of f32."""
    suffix = "f32" if lanes == 1 else f"v{lanes}f32"
    return intrinsic(_f32(lanes), f"llvm.fma.{suffix}", a, b, c)


def _f32(lanes: int) -> str:
    return "float32" if lanes == 1 else f"float32x{lanes}"


def seq(statements: Sequence[Node]) -> Node:
    """The statements as one."""
    if not statements:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def serial(var: Node, extent: Node, body: Sequence[Node]) -> Node:
    """for var in 0..extent-1."""
    return tirx.For(var, index(0), extent, tirx.ForKind.SERIAL, seq(body))


def loop_var(name: str) -> Node:
    """A new loop variable."""
    return tirx.Var(name, "int64")


class Block:
    """A list of statements being written; `bind` names a value so that it is computed once."""

    def __init__(self) -> None:
        self.statements: list[Node] = []

    def add(self, statement: Node) -> None:
        """Appends a statement."""
        self.statements.append(statement)

    def bind(self, name: str, value: Node) -> Node:
        """A variable that holds `value` for the rest of the block."""
        var = tirx.Var(name, value.ty)
        self.add(tirx.Bind(var, value))
        return var

    def cell(self, name: str, value: Node) -> Node:
        """Like `bind`, through memory: TVM's analyzer expands bound integers, which grows
        exponentially in a chain where each value is used twice. LLVM removes the memory."""
        buffer = tirx.decl_buffer((1,), "int64", name, scope="local")
        self.add(tirx.AllocBuffer(buffer))
        self.add(store(buffer, index(0), value))
        return load(buffer, index(0))
