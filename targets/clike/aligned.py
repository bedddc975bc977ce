"""Where numbers lie in memory: what every value of an index is a multiple of."""

from __future__ import annotations

import math
from collections.abc import Callable

from speccc.ir.expr import Apply, Const, Expr, Fn


def multiple(e: Expr) -> int:
    """An m with e = m * (some integer), whatever the variables are; 0 when e is 0 itself."""
    if isinstance(e, Const):
        return abs(int(e.value))
    if isinstance(e, Apply) and e.fn in _RULES:
        return _RULES[e.fn](*(multiple(a) for a in e.args))
    return 1


_RULES: dict[Fn, Callable[..., int]] = {
    Fn.ADD: math.gcd,
    Fn.SUB: math.gcd,
    Fn.MUL: lambda a, b: a * b,
    Fn.MOD: math.gcd,
    Fn.MIN: math.gcd,
    Fn.MAX: math.gcd,
    Fn.SELECT: lambda condition, a, b: math.gcd(a, b),
    Fn.CAST: lambda a: a,
}
