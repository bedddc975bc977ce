"""Scalar expressions -> Triton text; the text works on scalars and on tiles alike.

A variable that runs along a dimension of the tile at hand is a tensor of one dimension, placed by
a subscript; so every load is as small as what its index depends on, and is masked by the same.
A bf16 is held as its raw 16 bits, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from speccc.errors import UnsupportedError, VerifyError
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
from speccc.ir.fragment import loads
from speccc.ir.interp_expr import EXP, F16_MAX, Array, evaluate
from speccc.ir.tile import Buf
from speccc.ir.types import BF16, F16, F32, I8, I32, INDEX, DType, Kind

TYPES = {
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.uint16",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "i32": "tl.int32",
    "u32": "tl.uint32",
    "index": "tl.int64",
    "bool": "tl.int1",
}
POINTERS = {
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*u16",
    "i8": "*i8",
    "u8": "*u8",
    "i32": "*i32",
    "u32": "*u32",
    "index": "*i64",
}
"""Types of buffer arguments in a kernel's signature."""

_NAN = "propagate_nan=tl.PropagateNan.ALL"
_FORMS: dict[Fn, str] = {
    Fn.ADD: "({} + {})",
    Fn.SUB: "({} - {})",
    Fn.MUL: "({} * {})",
    Fn.DIV: "tl.div_rn({}, {})",
    Fn.IDIV: "({} // {})",
    Fn.MOD: "({} % {})",
    Fn.AND: "({} & {})",
    Fn.OR: "({} | {})",
    Fn.XOR: "({} ^ {})",
    Fn.SHL: "({} << {})",
    Fn.LT: "({} < {})",
    Fn.LE: "({} <= {})",
    Fn.EQ: "({} == {})",
    Fn.FMA: "tl.fma({}, {}, {})",
    Fn.SELECT: "tl.where({}, {}, {})",
    Fn.NEG: "(-{})",
    Fn.ABS: "tl.abs({})",
    Fn.RINT: "rint({})",
    Fn.SQRT: "tl.sqrt_rn({})",
    Fn.EXP: "exp({})",
}
_DIVISIONS = (Fn.IDIV, Fn.MOD)
_EXTREMES = {Fn.MIN: "minimum", Fn.MAX: "maximum"}


@dataclass(frozen=True, slots=True)
class Tiled:
    """A variable as a tensor along dimension `dim` of the tile; `live` where it is in range."""

    text: str
    dim: int
    live: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A tile kept in registers, as the text of a tensor along `dims` of the tile at hand."""

    text: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Scope:
    """What names stand for while an expression of a tile of `ndim` dimensions is written.

    `moving` has the addresses of loads that a loop moves along, `fixed` the values of those it does
    not.
    """

    env: Mapping[Var, str | Tiled]
    bases: Mapping[Buf, str]
    held: Mapping[Buf, Held]
    moving: Mapping[Expr, str]
    fixed: Mapping[Expr, str]
    note: Callable[[Var], None]
    ndim: int = 0

    def mask(self, seen: Iterable[Var]) -> str | None:
        """Where all of these variables are in range; None when they always are."""
        tiled = (self.env.get(v) for v in sorted(seen, key=lambda v: v.name))
        texts = [
            placed(t.live, (t.dim,), self.ndim) for t in tiled if isinstance(t, Tiled) and t.live
        ]
        return " & ".join(dict.fromkeys(texts)) or None


def placed(text: str, dims: tuple[int, ...], ndim: int) -> str:
    """The tensor `text` along `dims` of a tile of `ndim` dimensions."""
    if not dims or ndim == len(dims):
        return text
    return f"{text}[{', '.join(':' if d in dims else 'None' for d in range(ndim))}]"


def f32(value: float) -> str:
    """An f32 literal that round-trips."""
    narrow = float(np.float32(value))
    return repr(narrow) if math.isfinite(narrow) else f'float("{narrow}")'


def helpers() -> str:
    """`rint` and `exp` as the IR defines them (constants of `EXP`)."""
    poly = "\n".join(f"    p = tl.fma(p, r, {f32(c)})" for c in EXP.poly[1:])
    return f'''@triton.jit
def rint(x):
    """To the nearest integer, ties to even, sign kept: beside 2**23 no bits hold a fraction."""
    a = tl.abs(x)
    whole = tl.where(a < 8388608.0, (a + 8388608.0) - 8388608.0, a)
    sign = x.to(tl.uint32, bitcast=True) & 2147483648
    return (whole.to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def exp(x):
    """e**x, the same bits on every target."""
    clamped = tl.minimum(tl.maximum(x, {f32(EXP.low)}, {_NAN}), {f32(EXP.high)}, {_NAN})
    n = rint(clamped * {f32(EXP.log2e)})
    r = tl.fma(n, {f32(-EXP.ln2_hi)}, clamped)
    r = tl.fma(n, {f32(-EXP.ln2_lo)}, r)
    p = r * 0.0 + {f32(EXP.poly[0])}
{poly}
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < {f32(EXP.low)}, 0.0, p * scale)
'''


def render(e: Expr | int, scope: Scope) -> str:
    """The text of `e`; loads of tiles are masked. UnsupportedError names what has no form."""
    if isinstance(e, int):
        return str(e)
    if isinstance(e, Const):
        return f32(e.value) if e.dtype.kind is Kind.FLOAT else str(int(e.value))
    if isinstance(e, Var):
        return _variable(e, scope)
    if isinstance(e, (Load, LoadBytes)):
        return _load(e, scope)
    if not variables(e) and not loads(e):
        return _constant(e)
    return _apply(e, [render(a, scope) for a in e.args])


def _constant(e: Apply) -> str:
    """Worked out here: Python would do it in more bits."""
    value = evaluate(e, {}, _no_read)
    text = f32(float(value)) if e.dtype.kind is Kind.FLOAT else str(int(value))
    return text if e.dtype in (F32, INDEX) else f"tl.cast({text}, {TYPES[e.dtype.name]})"


def _no_read(load: Load | LoadBytes, index: tuple[Array, ...]) -> Array:
    raise VerifyError("a constant reads nothing")


def _variable(v: Var, scope: Scope) -> str:
    scope.note(v)
    known = scope.env[v]
    return placed(known.text, (known.dim,), scope.ndim) if isinstance(known, Tiled) else known


def _load(e: Load | LoadBytes, scope: Scope) -> str:
    if e in scope.fixed:
        return scope.fixed[e]
    if e.buf in scope.held:
        held = scope.held[e.buf]
        return placed(held.text, held.dims, scope.ndim)
    mask = scope.mask(variables(e))
    at = scope.moving.get(e) or pointer(e, scope)
    return f"tl.load({at}" + (f", mask={mask}, other=0)" if mask else ")")


def pointer(e: Load | LoadBytes, scope: Scope) -> str:
    """The text of an element's address."""
    if isinstance(e, LoadBytes):
        at = f"{scope.bases[e.buf]} + {render(e.at, scope)}"
        return f"({at}).to(tl.pointer_type({TYPES[e.dtype.name]}))"
    return address(e.buf, e.index, scope)


def step_of(e: Load | LoadBytes, var: Var) -> int | None:
    """Elements a load moves by when `var` grows by one; None if that is no constant."""
    if isinstance(e, LoadBytes):
        step = stride(e.at, var)
        return step // e.dtype.nbytes if step is not None and step % e.dtype.nbytes == 0 else None
    flat: Expr = lit(0)
    for i, size in zip(e.index, e.buf.shape, strict=True):
        flat = add(mul(flat, size), i)
    return stride(flat, var)


def address(buf: Buf, index: tuple[Expr, ...], scope: Scope) -> str:
    """The text of the address of buf[index], row-major."""
    flat = "0"
    for i, size in zip(index, buf.shape, strict=True):
        at = render(i, scope)
        flat = at if flat == "0" else f"({flat}) * {render(size, scope)} + {at}"
    return f"{scope.bases[buf]} + {flat}"


def _apply(e: Apply, args: list[str]) -> str:
    if e.fn is Fn.CAST:
        return cast(args[0], e.args[0].dtype, e.dtype)
    if e.fn is Fn.BITCAST:
        return f"({args[0]}).to({TYPES[e.dtype.name]}, bitcast=True)"
    if e.fn is Fn.SHR:
        return _shift_right(e.dtype, args)
    if e.fn in _DIVISIONS and e.dtype == INDEX and not isinstance(e.args[1], Const):
        # What is divided counts units, rows or slots: 32 bits hold it, and 64 cost a call.
        args = [f"tl.cast({a}, tl.int32)" for a in args]
    if e.fn in _EXTREMES:
        nan = f", {_NAN}" if e.dtype.kind is Kind.FLOAT else ""
        return f"tl.{_EXTREMES[e.fn]}({args[0]}, {args[1]}{nan})"
    form = _FORMS.get(e.fn)
    if form is None:
        raise UnsupportedError(f"no form of {e.fn.value}", where="triton")
    return form.format(*args)


def _shift_right(dtype: DType, args: list[str]) -> str:
    """`>>` copies the sign of a signed number; the IR's shift brings in zeros."""
    if dtype not in (I8, I32):
        return f"({args[0]} >> {args[1]})"
    bits = f"({args[0]}).to(tl.uint{dtype.bits}, bitcast=True) >> ({args[1]})"
    return f"({bits}).to({TYPES[dtype.name]}, bitcast=True)"


def cast(text: str, source: DType, dtype: DType) -> str:
    """A conversion; a float to f16 saturates."""
    if source == BF16:
        return f"((({text}).to(tl.uint32) << 16).to(tl.float32, bitcast=True))"
    if dtype == F16 and source.kind is Kind.FLOAT:
        text = f"tl.minimum(tl.maximum({text}, {-F16_MAX}, {_NAN}), {F16_MAX}, {_NAN})"
    return f"tl.cast({text}, {TYPES[dtype.name]})"
