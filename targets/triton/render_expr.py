"""Scalar expressions -> Triton text; the text works on scalars and on tiles alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from speccc.errors import UnsupportedError
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var, variables
from speccc.ir.interp_expr import EXP, F16_MAX
from speccc.ir.tile import Buf
from speccc.ir.types import F16, I8, I32, DType, Kind

TYPES = {
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "i32": "tl.int32",
    "u32": "tl.uint32",
    "index": "tl.int64",
    "bool": "tl.int1",
}

_FORMS: dict[Fn, str] = {
    Fn.ADD: "({} + {})",
    Fn.SUB: "({} - {})",
    Fn.MUL: "({} * {})",
    Fn.DIV: "tl.div_rn({}, {})",
    Fn.IDIV: "({} // {})",
    Fn.MOD: "({} % {})",
    Fn.MIN: "tl.minimum({}, {})",
    Fn.MAX: "tl.maximum({}, {})",
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

Place = Callable[[Buf, Expr | None, tuple[Expr, ...]], str]
"""(buffer, byte offset or None, index) -> text of the pointer."""


def f32(value: float) -> str:
    """An f32 literal that round-trips."""
    return repr(float(np.float32(value)))


def helpers() -> str:
    """`rint` and `exp` as the IR defines them (constants of `EXP`)."""
    poly = "\n".join(f"    p = tl.fma(p, r, {f32(c)})" for c in EXP.poly[1:])
    return f'''@triton.jit
def rint(x):
    """To the nearest integer, ties to even: adding 1.5 * 2**23 leaves no bits for a fraction."""
    return tl.where(tl.abs(x) < 4194304.0, (x + 12582912.0) - 12582912.0, x)


@triton.jit
def exp(x):
    """e**x, the same bits on every target."""
    clamped = tl.minimum(tl.maximum(x, {f32(EXP.low)}), {f32(EXP.high)})
    n = rint(clamped * {f32(EXP.log2e)})
    r = tl.fma(n, {f32(-EXP.ln2_hi)}, clamped)
    r = tl.fma(n, {f32(-EXP.ln2_lo)}, r)
    p = r * 0.0 + {f32(EXP.poly[0])}
{poly}
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < {f32(EXP.low)}, 0.0, p * scale)
'''


@dataclass(frozen=True, slots=True)
class Mask:
    """The text that masks loads whose index reads one of the tiled variables."""

    text: str
    tiled: frozenset[Var]


def render(e: Expr, env: Mapping[Var, str], place: Place, mask: Mask | None) -> str:
    """The text of `e`; loads of tiles are masked. UnsupportedError names what has no form."""
    if isinstance(e, Const):
        if e.dtype.kind is Kind.FLOAT:
            return f32(e.value)
        return str(int(e.value))
    if isinstance(e, Var):
        return env[e]
    if isinstance(e, (Load, LoadBytes)):
        at = place(e.buf, None, e.index) if isinstance(e, Load) else place(e.buf, e.at, ())
        if isinstance(e, LoadBytes):
            at = f"({at}).to(tl.pointer_type({TYPES[e.dtype.name]}))"
        if mask is None or not variables(e) & mask.tiled:
            return f"tl.load({at})"
        return f"tl.load({at}, mask={mask.text}, other=0)"
    return _apply(e, [render(a, env, place, mask) for a in e.args])


def _apply(e: Apply, args: list[str]) -> str:
    if e.fn is Fn.CAST:
        return cast(args[0], e.args[0].dtype, e.dtype)
    if e.fn is Fn.BITCAST:
        return f"({args[0]}).to({TYPES[e.dtype.name]}, bitcast=True)"
    if e.fn is Fn.SHR:
        # `>>` copies the sign of a signed number; the IR's shift brings in zeros.
        signed = e.dtype.kind is Kind.INT
        if not signed:
            return f"({args[0]} >> {args[1]})"
        if e.dtype not in (I8, I32):
            return f"({args[0]} >> {args[1]})"
        unsigned = f"tl.uint{e.dtype.bits}"
        bits = f"({args[0]}).to({unsigned}, bitcast=True) >> ({args[1]})"
        return f"({bits}).to({TYPES[e.dtype.name]}, bitcast=True)"
    form = _FORMS.get(e.fn)
    if form is None:
        raise UnsupportedError(f"no form of {e.fn.value}", where="triton")
    return form.format(*args)


def cast(text: str, source: DType, dtype: DType) -> str:
    """A conversion; a float to f16 saturates."""
    if dtype == F16 and source.kind is Kind.FLOAT:
        text = f"tl.minimum(tl.maximum({text}, {-F16_MAX}), {F16_MAX})"
    return f"({text}).to({TYPES[dtype.name]})"
