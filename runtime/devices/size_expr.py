"""Sizes as a launch plan writes them, "max(1, m * 9)": read once, worked out at every step.

The text is data: only whole numbers, known names, + - * // % and min and max are understood.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping

LONGEST = 2000
"""Characters; the largest of ours has a tenth of that."""

Size = Callable[[Mapping[str, int]], int]

_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[[int, int], int]] = {"min": min, "max": max}


def read_size(text: object, names: Collection[str]) -> Size:
    """The size that an int or a text over `names` stands for. ValueError says what is wrong."""
    if type(text) is int:
        return _constant(text)
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ValueError(f"{str(text)[:40]!r} is no size")
    try:
        tree = ast.parse(text, mode="eval")
        return _node(tree.body, names)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text[:40]!r} is no size") from None


def _constant(value: int) -> Size:
    if not 0 <= value < 1 << 62:
        raise ValueError(f"{value} is no size")
    return lambda sizes: value


def _node(node: ast.expr, names: Collection[str]) -> Size:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _constant(node.value)
    if isinstance(node, ast.Name):
        name = node.id
        if name not in names:
            raise ValueError(f"{name} is no size of the plan")
        return lambda sizes: sizes[name]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _apply(_BINARY[type(node.op)], node.left, node.right, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _CALLS.get(node.func.id)
        if function is not None and len(node.args) == 2:
            return _apply(function, node.args[0], node.args[1], names)
    raise ValueError(f"{ast.unparse(node)[:40]!r} is no size")


def _apply(
    function: Callable[[int, int], int], a: ast.expr, b: ast.expr, names: Collection[str]
) -> Size:
    left, right = _node(a, names), _node(b, names)
    return lambda sizes: function(left(sizes), right(sizes))
