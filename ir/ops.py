"""The operations of the Graph IR: one frozen record each, with its type rule.

A record's fields are the op's attributes, its docstring is its meaning and the interpreter
(`speccc.ir.interp_graph`) is the definition to the last bit. `OPS` lists them all by mnemonic.
Ops that hold an inner graph, or read and write state, are in `speccc.ir.ops_state`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import ClassVar

from speccc.errors import VerifyError
from speccc.ir.types import BF16, F16, F32, I32, Dim, DType, Sym, TensorType

Types = tuple[TensorType, ...]


class Fn(Enum):
    """Scalar functions of `Map` (all f32) and combiners of `Reduce` (add, max)."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAX = "max"
    MIN = "min"
    NEG = "neg"
    EXP = "exp"
    SQRT = "sqrt"
    RSQRT = "rsqrt"  # 1 / sqrt(x), both rounded
    SILU = "silu"  # x / (1 + exp(-x))


UNARY = frozenset({Fn.NEG, Fn.EXP, Fn.SQRT, Fn.RSQRT, Fn.SILU})
REDUCERS = frozenset({Fn.ADD, Fn.MAX})


def need(ok: bool, message: str) -> None:
    """VerifyError(message) unless ok."""
    if not ok:
        raise VerifyError(message)


def arity(ins: Types, *allowed: int) -> None:
    """VerifyError unless the number of inputs is one of `allowed`."""
    need(len(ins) in allowed, f"takes {' or '.join(map(str, allowed))} inputs, got {len(ins)}")


def is_float(t: TensorType) -> bool:
    """Whether elements are f32, f16, bf16 or a block format (all decode to f32)."""
    return not isinstance(t.elem, DType) or t.elem in (F32, F16, BF16)


def factor(shape: tuple[Dim, ...]) -> tuple[int, tuple[Sym, ...]]:
    """A shape's element count as (integer, sorted symbols): equal when counts are equal."""
    ints = prod(d for d in shape if isinstance(d, int))
    return ints, tuple(sorted((d for d in shape if isinstance(d, Sym)), key=lambda s: s.name))


def broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """NumPy's broadcast of two shapes (a symbol only meets itself or 1)."""
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    padded = (1,) * (len(long) - len(short)) + short
    need(
        all(x == y or x == 1 or y == 1 for x, y in zip(long, padded, strict=True)),
        f"shapes {show(a)} and {show(b)} do not broadcast",
    )
    return tuple(y if x == 1 else x for x, y in zip(long, padded, strict=True))


def show(shape: tuple[Dim, ...]) -> str:
    """A shape as text, e.g. [m, 576]."""
    return f"[{', '.join(str(d) for d in shape)}]"


@dataclass(frozen=True, slots=True)
class Op:
    """Base of every op: `mnemonic` is its name in text."""

    mnemonic: ClassVar[str] = ""

    def infer(self, ins: Types) -> Types:
        """Result types from input types; VerifyError when the inputs do not fit."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Input(Op):
    """A graph parameter: a call argument, or state coming in."""

    mnemonic: ClassVar[str] = "input"
    name: str
    type: TensorType

    def infer(self, ins: Types) -> Types:
        """The declared type."""
        arity(ins, 0)
        return (self.type,)


@dataclass(frozen=True, slots=True)
class Weight(Op):
    """A tensor of the model by its GGUF name; block formats run along the last axis."""

    mnemonic: ClassVar[str] = "weight"
    name: str
    type: TensorType

    def infer(self, ins: Types) -> Types:
        """The declared type."""
        arity(ins, 0)
        need(all(isinstance(d, int) for d in self.type.shape), "a weight has no symbolic size")
        return (self.type,)


@dataclass(frozen=True, slots=True)
class Constant(Op):
    """A small tensor by its little-endian bytes, so that -0.0, 0.0 and NaNs stay apart."""

    mnemonic: ClassVar[str] = "constant"
    type: TensorType
    data: bytes

    def infer(self, ins: Types) -> Types:
        """The declared type."""
        arity(ins, 0)
        elem = self.type.elem
        need(isinstance(elem, DType), "a constant has a plain element type")
        count, syms = factor(self.type.shape)
        need(not syms, "a constant has no symbolic size")
        size = count * elem.nbytes
        need(len(self.data) == size, f"{self.type} takes {size} bytes, not {len(self.data)}")
        return (self.type,)


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """table[v, d], tokens i32[m] -> f32[m, d]: the decoded rows."""

    mnemonic: ClassVar[str] = "embed"

    def infer(self, ins: Types) -> Types:
        """f32[m, d]."""
        arity(ins, 2)
        table, tokens = ins
        need(len(table.shape) == 2 and is_float(table), f"table is {table}")
        need(len(tokens.shape) == 1 and tokens.elem == I32, f"tokens are {tokens}")
        return (TensorType((tokens.shape[0], table.shape[1]), F32),)


@dataclass(frozen=True, slots=True)
class Matmul(Op):
    """x f32[m, k], weights [n_i, k] -> f32[m, n_i] each: x times the transposed decoded weight.

    Each result is exactly what the one-weight matmul would give; several weights share the read
    (and quantisation) of x.
    """

    mnemonic: ClassVar[str] = "matmul"

    def infer(self, ins: Types) -> Types:
        """One f32[m, n_i] per weight."""
        need(len(ins) >= 2, "takes x and at least one weight")
        x = ins[0]
        need(len(x.shape) == 2 and x.elem == F32, f"x is {x}")
        for w in ins[1:]:
            need(len(w.shape) == 2 and is_float(w), f"a weight is {w}")
            need(w.shape[1] == x.shape[1], f"x is {x} but a weight is {w}")
        return tuple(TensorType((x.shape[0], w.shape[0]), F32) for w in ins[1:])


@dataclass(frozen=True, slots=True)
class BatchedMatmul(Op):
    """a f32[b, m, k], b f32[b, k, n] -> f32[b, m, n]."""

    mnemonic: ClassVar[str] = "batched_matmul"

    def infer(self, ins: Types) -> Types:
        """f32[b, m, n]."""
        arity(ins, 2)
        a, b = ins
        need(len(a.shape) == len(b.shape) == 3, f"operands are {a} and {b}")
        need(a.elem == b.elem == F32, f"operands are {a} and {b}")
        fits = a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
        need(fits, f"operands are {a} and {b}")
        return (TensorType((a.shape[0], a.shape[1], b.shape[2]), F32),)


@dataclass(frozen=True, slots=True)
class Map(Op):
    """An elementwise function of one or two f32 tensors, broadcast as NumPy does."""

    mnemonic: ClassVar[str] = "map"
    fn: Fn

    def infer(self, ins: Types) -> Types:
        """f32 of the broadcast shape."""
        arity(ins, 1 if self.fn in UNARY else 2)
        for t in ins:
            need(t.elem == F32, f"an operand is {t}")
        shape = ins[0].shape if len(ins) == 1 else broadcast(ins[0].shape, ins[1].shape)
        return (TensorType(shape, F32),)


@dataclass(frozen=True, slots=True)
class Reduce(Op):
    """The sum or maximum of f32 over one axis, which stays as size 1."""

    mnemonic: ClassVar[str] = "reduce"
    fn: Fn
    axis: int

    def infer(self, ins: Types) -> Types:
        """f32 with 1 on the axis."""
        arity(ins, 1)
        (x,) = ins
        need(self.fn in REDUCERS, f"cannot reduce by {self.fn.value}")
        need(x.elem == F32 and 0 <= self.axis < len(x.shape), f"axis {self.axis} of {x}")
        return (TensorType((*x.shape[: self.axis], 1, *x.shape[self.axis + 1 :]), F32),)


@dataclass(frozen=True, slots=True)
class Softmax(Op):
    """exp(x - max) / sum of them, over the last axis of f32."""

    mnemonic: ClassVar[str] = "softmax"

    def infer(self, ins: Types) -> Types:
        """The input's type."""
        arity(ins, 1)
        need(ins[0].elem == F32 and len(ins[0].shape) >= 1, f"operand is {ins[0]}")
        return ins


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """x f32[.., d], w f32[d] -> (x * (1 / sqrt(mean(x^2) + eps))) * w over the last axis."""

    mnemonic: ClassVar[str] = "rms_norm"
    eps: float

    def infer(self, ins: Types) -> Types:
        """The type of x."""
        arity(ins, 2)
        x, w = ins
        need(len(x.shape) >= 1 and x.elem == w.elem == F32, f"operands are {x} and {w}")
        need(w.shape == x.shape[-1:], f"x is {x} but the weight is {w}")
        return (x,)


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """x f32[m, h, d], positions i32[m] (, factors f32[dim/2]) -> f32[m, h, d].

    Rotates the adjacent pairs (2i, 2i+1) of the first `dim` elements of each head by
    position * theta^(-2i/dim) / divisor / factors[i]; the rest passes through.
    """

    mnemonic: ClassVar[str] = "rope"
    theta: float
    dim: int
    divisor: float = 1.0

    def infer(self, ins: Types) -> Types:
        """The type of x."""
        arity(ins, 2, 3)
        x, positions = ins[:2]
        need(len(x.shape) == 3 and x.elem == F32, f"x is {x}")
        need(positions == TensorType(x.shape[:1], I32), f"x is {x} but positions are {positions}")
        d = x.shape[2]
        need(self.dim % 2 == 0 and isinstance(d, int) and 0 < self.dim <= d, f"dim {self.dim}: {x}")
        for factors in ins[2:]:
            need(factors == TensorType((self.dim // 2,), F32), f"factors are {factors}")
        return (x,)


@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same elements in row-major order under another shape."""

    mnemonic: ClassVar[str] = "reshape"
    shape: tuple[Dim, ...]

    def infer(self, ins: Types) -> Types:
        """The new shape; element counts must agree, symbols included."""
        arity(ins, 1)
        need(isinstance(ins[0].elem, DType), f"cannot reshape {ins[0]}")
        need(factor(ins[0].shape) == factor(self.shape), f"{ins[0]} to {show(self.shape)}")
        return (TensorType(self.shape, ins[0].elem),)


@dataclass(frozen=True, slots=True)
class Transpose(Op):
    """Result axis i is input axis perm[i]."""

    mnemonic: ClassVar[str] = "transpose"
    perm: tuple[int, ...]

    def infer(self, ins: Types) -> Types:
        """The permuted shape."""
        arity(ins, 1)
        (x,) = ins
        need(isinstance(x.elem, DType), f"cannot transpose {x}")
        need(sorted(self.perm) == list(range(len(x.shape))), f"perm {self.perm} of {x}")
        return (TensorType(tuple(x.shape[p] for p in self.perm), x.elem),)


@dataclass(frozen=True, slots=True)
class Slice(Op):
    """Elements start..stop-1 of one axis of fixed size."""

    mnemonic: ClassVar[str] = "slice"
    axis: int
    start: int
    stop: int

    def infer(self, ins: Types) -> Types:
        """The shape with stop - start on the axis."""
        arity(ins, 1)
        (x,) = ins
        need(isinstance(x.elem, DType) and 0 <= self.axis < len(x.shape), f"axis of {x}")
        size = x.shape[self.axis]
        inside = isinstance(size, int) and 0 <= self.start < self.stop <= size
        need(inside, f"{self.start}..{self.stop} of axis {self.axis} of {x}")
        shape = (*x.shape[: self.axis], self.stop - self.start, *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.elem),)


@dataclass(frozen=True, slots=True)
class Concat(Op):
    """Inputs one after the other along an axis of fixed sizes."""

    mnemonic: ClassVar[str] = "concat"
    axis: int

    def infer(self, ins: Types) -> Types:
        """The shape with the sum of sizes on the axis."""
        need(len(ins) >= 1, "takes at least one input")
        first, total = ins[0], 0
        need(isinstance(first.elem, DType) and 0 <= self.axis < len(first.shape), f"axis: {first}")
        for t in ins:
            size = t.shape[self.axis] if len(t.shape) == len(first.shape) else None
            need(t.elem == first.elem and isinstance(size, int), f"{first} with {t}")
            rest = (*t.shape[: self.axis], first.shape[self.axis], *t.shape[self.axis + 1 :])
            need(rest == first.shape, f"{first} with {t}")
            total += size if isinstance(size, int) else 0
        shape = (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :])
        return (TensorType(shape, first.elem),)


@dataclass(frozen=True, slots=True)
class Repeat(Op):
    """Each element of an axis of fixed size `times` in a row (as numpy.repeat; GQA heads)."""

    mnemonic: ClassVar[str] = "repeat"
    axis: int
    times: int

    def infer(self, ins: Types) -> Types:
        """The shape with the axis `times` as long."""
        arity(ins, 1)
        (x,) = ins
        need(isinstance(x.elem, DType) and 0 <= self.axis < len(x.shape), f"axis of {x}")
        size = x.shape[self.axis]
        if not isinstance(size, int) or self.times < 1:
            raise VerifyError(f"{self.times} times axis {self.axis} of {x}")
        shape = (*x.shape[: self.axis], size * self.times, *x.shape[self.axis + 1 :])
        return (TensorType(shape, x.elem),)


@dataclass(frozen=True, slots=True)
class Cast(Op):
    """The value in another float type (f32, f16, bf16), rounded to nearest even, saturating.

    A block format or an i32 may be cast to f32.
    """

    mnemonic: ClassVar[str] = "cast"
    dtype: DType

    def infer(self, ins: Types) -> Types:
        """The same shape of the new element type."""
        arity(ins, 1)
        (x,) = ins
        need(is_float(x) or x.elem == I32, f"cannot cast {x}")
        plain = isinstance(x.elem, DType) and x.elem != I32
        need(self.dtype == F32 or (plain and self.dtype in (F16, BF16)), f"{x} to {self.dtype}")
        return (TensorType(x.shape, self.dtype),)
