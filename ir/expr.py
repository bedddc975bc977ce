"""Scalar expressions of the tile IR: index arithmetic and element values, with a NumPy meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Union

from speccc.errors import VerifyError
from speccc.ir.types import BOOL, F32, INDEX, DType, Kind

if TYPE_CHECKING:
    from speccc.ir.tile import Buf


class Fn(Enum):
    """Operations on scalars; integer division and remainder are of non-negative numbers."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # float division
    IDIV = "idiv"
    MOD = "mod"
    MIN = "min"
    MAX = "max"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHL = "shl"
    SHR = "shr"  # logical
    LT = "lt"
    LE = "le"
    EQ = "eq"
    DOT4 = "dot4"  # the sum of the products of four pairs of signed bytes, i32
    FMA = "fma"  # a * b + c, rounded once
    SELECT = "select"  # condition, then, else
    NEG = "neg"
    ABS = "abs"
    RINT = "rint"  # to the nearest integer, ties to even
    SQRT = "sqrt"
    EXP = "exp"
    BITCAST = "bitcast"  # same width, to the expression's dtype
    CAST = "cast"  # float -> f16 saturates


COMPARE = frozenset({Fn.LT, Fn.LE, Fn.EQ})


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    value: float | int
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """An integer variable: a loop index, a size or a scalar parameter. Identity is the object."""

    name: str
    dtype: DType = INDEX


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a buffer."""

    buf: Buf
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        """The buffer's element type."""
        return self.buf.dtype


@dataclass(frozen=True, slots=True)
class LoadBytes:
    """The little-endian `dtype` at byte `at` of a u8 buffer; a bf16 is only good for a cast."""

    buf: Buf
    at: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on operands of one type; `dtype` is the result's."""

    fn: Fn
    args: tuple[Expr, ...]
    dtype: DType


Expr = Union[Const, Var, Load, LoadBytes, Apply]  # noqa: UP007 (forward references)
Scalar = Union[Expr, int, float]  # noqa: UP007


def lit(value: Scalar, dtype: DType = INDEX) -> Expr:
    """An expression for a Python number (of `dtype`), or the expression itself."""
    if isinstance(value, (int, float)):
        return Const(value, dtype)
    return value


def _binary(fn: Fn, a: Scalar, b: Scalar) -> Expr:
    dtype = next((e.dtype for e in (a, b) if not isinstance(e, (int, float))), None)
    if dtype is None:
        dtype = INDEX if isinstance(a, int) and isinstance(b, int) else F32
    x, y = lit(a, dtype), lit(b, dtype)
    if x.dtype != y.dtype:
        raise VerifyError(f"{fn.value}: operands are {x.dtype} and {y.dtype}")
    folded = _fold(fn, x, y)
    return folded or Apply(fn, (x, y), BOOL if fn in COMPARE else dtype)


_INT_FOLD: dict[Fn, Callable[[int, int], int]] = {
    Fn.ADD: lambda a, b: a + b,
    Fn.SUB: lambda a, b: a - b,
    Fn.MUL: lambda a, b: a * b,
    Fn.IDIV: lambda a, b: a // b,
    Fn.MOD: lambda a, b: a % b,
    Fn.MIN: min,
    Fn.MAX: max,
}


def _fold(fn: Fn, x: Expr, y: Expr) -> Expr | None:
    """Constant folding of integer arithmetic and its neutral elements (floats are left alone)."""
    if x.dtype.kind is Kind.FLOAT:
        return None
    cx = x.value if isinstance(x, Const) else None
    cy = y.value if isinstance(y, Const) else None
    if cx is not None and cy is not None and fn in _INT_FOLD:
        return Const(_INT_FOLD[fn](int(cx), int(cy)), x.dtype)
    if (fn in (Fn.ADD, Fn.SUB) and cy == 0) or (fn in (Fn.MUL, Fn.IDIV) and cy == 1):
        return x
    if (fn is Fn.ADD and cx == 0) or (fn is Fn.MUL and cx == 1):
        return y
    if fn is Fn.MUL and (cx == 0 or cy == 0):
        return Const(0, x.dtype)
    return None


def add(a: Scalar, b: Scalar) -> Expr:
    """a + b."""
    return _binary(Fn.ADD, a, b)


def sub(a: Scalar, b: Scalar) -> Expr:
    """a - b."""
    return _binary(Fn.SUB, a, b)


def mul(a: Scalar, b: Scalar) -> Expr:
    """a * b."""
    return _binary(Fn.MUL, a, b)


def div(a: Scalar, b: Scalar) -> Expr:
    """a / b, floats."""
    return _binary(Fn.DIV, a, b)


def idiv(a: Scalar, b: Scalar) -> Expr:
    """a // b of non-negative integers."""
    return _binary(Fn.IDIV, a, b)


def mod(a: Scalar, b: Scalar) -> Expr:
    """a % b of non-negative integers."""
    return _binary(Fn.MOD, a, b)


def minimum(a: Scalar, b: Scalar) -> Expr:
    """The smaller."""
    return _binary(Fn.MIN, a, b)


def maximum(a: Scalar, b: Scalar) -> Expr:
    """The larger."""
    return _binary(Fn.MAX, a, b)


def lt(a: Scalar, b: Scalar) -> Expr:
    """a < b."""
    return _binary(Fn.LT, a, b)


def eq(a: Scalar, b: Scalar) -> Expr:
    """a == b."""
    return _binary(Fn.EQ, a, b)


def bit_and(a: Scalar, b: Scalar) -> Expr:
    """Bitwise and."""
    return _binary(Fn.AND, a, b)


def shr(a: Scalar, b: Scalar) -> Expr:
    """Logical shift right."""
    return _binary(Fn.SHR, a, b)


def select(cond: Expr, a: Scalar, b: Scalar) -> Expr:
    """a where cond, else b; both are evaluated."""
    dtype = next(e.dtype for e in (a, b) if not isinstance(e, (int, float)))
    return Apply(Fn.SELECT, (cond, lit(a, dtype), lit(b, dtype)), dtype)


def fma(a: Scalar, b: Scalar, c: Scalar) -> Expr:
    """a * b + c in f32, rounded once."""
    return Apply(Fn.FMA, (lit(a, F32), lit(b, F32), lit(c, F32)), F32)


def unary(fn: Fn, a: Expr) -> Expr:
    """fn(a) of a's type."""
    return Apply(fn, (a,), a.dtype)


def cast(a: Expr, dtype: DType) -> Expr:
    """The value of `a` as `dtype`."""
    return a if a.dtype == dtype else Apply(Fn.CAST, (a,), dtype)


def bitcast(a: Expr, dtype: DType) -> Expr:
    """The bits of `a` as `dtype`."""
    return a if a.dtype == dtype else Apply(Fn.BITCAST, (a,), dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    """The operands of an expression."""
    if isinstance(e, Load):
        return e.index
    if isinstance(e, LoadBytes):
        return (e.at,)
    return e.args if isinstance(e, Apply) else ()


def variables(e: Expr) -> frozenset[Var]:
    """Every variable an expression reads."""
    if isinstance(e, Var):
        return frozenset((e,))
    return frozenset().union(*(variables(c) for c in children(e)))


def substitute(e: Expr, env: dict[Var, Expr]) -> Expr:
    """The expression with variables replaced."""
    if isinstance(e, Var):
        return env.get(e, e)
    if isinstance(e, Load):
        return Load(e.buf, tuple(substitute(i, env) for i in e.index))
    if isinstance(e, LoadBytes):
        return LoadBytes(e.buf, substitute(e.at, env), e.dtype)
    if isinstance(e, Apply):
        args = tuple(substitute(a, env) for a in e.args)
        if len(args) == 2 and e.fn in _INT_FOLD:
            return _binary(e.fn, *args)
        return Apply(e.fn, args, e.dtype)
    return e


def quotient(e: Expr, n: int) -> Expr | None:
    """e // n if every term of the sum that e is has n in a constant; else None."""
    if isinstance(e, Const):
        return lit(int(e.value) // n) if e.value % n == 0 else None
    if not isinstance(e, Apply) or e.fn not in (Fn.ADD, Fn.SUB, Fn.MUL):
        return None
    a, b = (quotient(x, n) for x in e.args)
    if e.fn is not Fn.MUL:
        return None if a is None or b is None else _binary(e.fn, a, b)
    if b is not None:
        return mul(e.args[0], b)
    return None if a is None else mul(a, e.args[1])


def stride(e: Expr, var: Var) -> int | None:
    """The constant c with e = c * var + (something free of var), or None if there is no such c."""
    if e is var:
        return 1
    if var not in variables(e):
        return 0
    if not isinstance(e, Apply) or len(e.args) != 2:
        return None
    a, b = (stride(x, var) for x in e.args)
    if a is None or b is None:
        return None
    if e.fn is Fn.ADD:
        return a + b
    if e.fn is Fn.SUB:
        return a - b
    if e.fn is Fn.MUL:
        for s, other in ((a, e.args[1]), (b, e.args[0])):
            if isinstance(other, Const):
                return int(s * other.value)
    return None
