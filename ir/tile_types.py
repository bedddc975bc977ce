"""Operand types of the scalar functions of the tile IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speccc.ir.expr import COMPARE, Apply, Const, Expr, Fn, Load, LoadBytes
from speccc.ir.types import BF16, BOOL, F16, F32, I32, INDEX, DType, Kind

Rule = Callable[[DType], bool]


def _f32(t: DType) -> bool:
    return t == F32


def _integer(t: DType) -> bool:
    return t.kind in (Kind.INT, Kind.UINT)


def _number(t: DType) -> bool:
    return _f32(t) or _integer(t)


def _bits(t: DType) -> bool:
    return _integer(t) or t == BOOL


@dataclass(frozen=True, slots=True)
class _Plain:
    """A function of `arity` operands of one type that `allowed` takes, giving that type."""

    arity: int
    allowed: Rule


_PLAIN: dict[Fn, _Plain] = {
    **dict.fromkeys((Fn.ADD, Fn.SUB, Fn.MUL, Fn.MIN, Fn.MAX), _Plain(2, _number)),
    **dict.fromkeys((Fn.LT, Fn.LE, Fn.EQ), _Plain(2, _number)),
    Fn.DIV: _Plain(2, _f32),
    **dict.fromkeys((Fn.IDIV, Fn.MOD, Fn.XOR, Fn.SHL, Fn.SHR), _Plain(2, _integer)),
    **dict.fromkeys((Fn.AND, Fn.OR), _Plain(2, _bits)),
    Fn.DOT4: _Plain(2, lambda t: t == I32),
    Fn.FMA: _Plain(3, _f32),
    Fn.NEG: _Plain(1, lambda t: _f32(t) or t.kind is Kind.INT),
    **dict.fromkeys((Fn.ABS, Fn.RINT, Fn.SQRT, Fn.EXP), _Plain(1, _f32)),
}


def type_error(e: Expr) -> str | None:
    """What is wrong with the types of an expression's own operands, or None."""
    if isinstance(e, Load):
        return _not_index(e.buf.name, e.index)
    if isinstance(e, LoadBytes):
        if e.buf.dtype.nbytes != 1 or e.buf.dtype == BOOL:
            return f"bytes are read from {e.buf.name} of {e.buf.dtype}"
        return _not_index(e.buf.name, (e.at,))
    if isinstance(e, Const):
        whole = isinstance(e.value, int)
        return None if whole or e.dtype in (F32, F16) else f"constant {e.value} as {e.dtype}"
    return _apply_error(e) if isinstance(e, Apply) else None


def _not_index(name: str, index: tuple[Expr, ...]) -> str | None:
    odd = [i.dtype for i in index if i.dtype != INDEX]
    return f"buffer {name}: an index of {odd[0]}, not {INDEX}" if odd else None


def _apply_error(e: Apply) -> str | None:
    given = [a.dtype for a in e.args]
    shown = f"{e.fn.value}({', '.join(map(str, given))}) as {e.dtype}"
    if e.fn is Fn.SELECT:
        right = len(given) == 3 and given[0] == BOOL and given[1] == given[2] == e.dtype
        return None if right and e.dtype not in (BF16, BOOL) else shown
    if e.fn in (Fn.CAST, Fn.BITCAST):
        return None if len(given) == 1 and _CONVERSIONS[e.fn](given[0], e.dtype) else shown
    rule = _PLAIN[e.fn]
    result = BOOL if e.fn in COMPARE else (given[0] if given else e.dtype)
    same = len(given) == rule.arity and len(set(given)) == 1
    return None if same and rule.allowed(given[0]) and e.dtype == result else shown


def _can_cast(source: DType, to: DType) -> bool:
    if source == BF16:
        return to == F32
    return BOOL not in (source, to) and to != BF16


def _can_bitcast(source: DType, to: DType) -> bool:
    return source.bits == to.bits and BOOL not in (source, to)


_CONVERSIONS: dict[Fn, Callable[[DType, DType], bool]] = {
    Fn.CAST: _can_cast,
    Fn.BITCAST: _can_bitcast,
}
