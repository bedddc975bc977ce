"""Canonical forms: fold constants and drop what does nothing, to the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from speccc.ir import graph_build as g
from speccc.ir import ops
from speccc.ir.graph import Graph, Node, Value, apply
from speccc.ir.interp_graph import Array, Frame, Interpreter
from speccc.ir.ops import Fn
from speccc.ir.rewrite import Rewritten, Rule, rewrite
from speccc.ir.types import F32, DType
from speccc.passes.pipeline import GraphPass

MAX_FOLDED = 4096
"""Most elements of a constant that folding may make."""


@dataclass(frozen=True)
class Canonicalize(GraphPass):
    """reshape(reshape(x)) -> reshape(x), transpose(transpose(x)) -> transpose(x) or x, x * 1 -> x.

    Constants are folded; casts, slices, repeats and concats that change nothing go.
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, graph: Graph) -> Graph:
        """The fixed point of `RULES`."""
        return canonicalize(graph).graph


def canonicalize(graph: Graph) -> Rewritten:
    """The canonical graph and the rules' hit counts."""
    return rewrite(graph, RULES)


def _same_type(n: Node) -> Value | None:
    """Reshape, cast, slice, repeat or concat of one value that gives the same type: the value."""
    if len(n.inputs) != 1 or n.inputs[0].type != n.outs[0]:
        return None
    return n.inputs[0]


def _reshape_twice(n: Node) -> Value | None:
    inner = n.inputs[0].node
    if not isinstance(inner.op, ops.Reshape):
        return None
    return apply(n.op, inner.inputs[0])


def _transpose(n: Node) -> Value | None:
    if not isinstance(n.op, ops.Transpose):
        return None
    if n.op.perm == tuple(range(len(n.op.perm))):
        return n.inputs[0]
    inner = n.inputs[0].node
    if not isinstance(inner.op, ops.Transpose):
        return None
    perm = tuple(inner.op.perm[p] for p in n.op.perm)
    return apply(ops.Transpose(perm), inner.inputs[0])


def _slice_of_concat(n: Node) -> Value | None:
    inner = n.inputs[0].node
    if not isinstance(n.op, ops.Slice) or inner.op != ops.Concat(n.op.axis):
        return None
    at = 0
    for part in inner.inputs:
        size = part.type.shape[n.op.axis]
        if not isinstance(size, int):
            return None
        if (at, at + size) == (n.op.start, n.op.stop):
            return part
        at += size
    return None


def _slice_twice(n: Node) -> Value | None:
    inner = n.inputs[0].node
    if not isinstance(n.op, ops.Slice) or not isinstance(inner.op, ops.Slice):
        return None
    if inner.op.axis != n.op.axis:
        return None
    start = inner.op.start + n.op.start
    both = ops.Slice(n.op.axis, start, start + n.op.stop - n.op.start)
    return apply(both, inner.inputs[0])


# x + 0.0 is not x when x is -0.0, but x + -0.0 and x - 0.0 are.
_NEUTRAL_RIGHT = {Fn.MUL: 1.0, Fn.DIV: 1.0, Fn.ADD: -0.0, Fn.SUB: 0.0}
_NEUTRAL_LEFT = {Fn.MUL: 1.0, Fn.ADD: -0.0}


def _is_full_of(v: Value, number: float | None) -> bool:
    op = v.node.op
    if number is None or not isinstance(op, ops.Constant):
        return False
    one = np.float32(number).tobytes()
    return op.type.elem == F32 and op.data == one * (len(op.data) // 4)


def _neutral(n: Node) -> Value | None:
    if not isinstance(n.op, ops.Map) or len(n.inputs) != 2:
        return None
    left, right = n.inputs
    if left.type == n.outs[0] and _is_full_of(right, _NEUTRAL_RIGHT.get(n.op.fn)):
        return left
    if right.type == n.outs[0] and _is_full_of(left, _NEUTRAL_LEFT.get(n.op.fn)):
        return right
    return None


def _double_negation(n: Node) -> Value | None:
    inner = n.inputs[0].node
    negated = n.op == ops.Map(Fn.NEG) == inner.op
    return inner.inputs[0] if negated else None


_FOLDABLE = (
    ops.Map, ops.Reduce, ops.Reshape, ops.Transpose, ops.Slice, ops.Concat, ops.Repeat, ops.Cast,
)  # fmt: skip


def _fold(n: Node) -> Value | None:
    if not isinstance(n.op, _FOLDABLE):
        return None
    if not all(isinstance(v.node.op, ops.Constant) for v in n.inputs):
        return None
    out = n.outs[0]
    if prod(d for d in out.shape if isinstance(d, int)) > MAX_FOLDED:
        return None
    interp = Interpreter()
    frame = Frame(interp, {})
    ins = tuple(_constant_array(v, interp, frame) for v in n.inputs)
    (result,) = interp.evaluate(n, ins, frame)
    if not isinstance(result, np.ndarray) or not isinstance(out.elem, DType):
        return None
    return g.constant(result, out.elem)


def _constant_array(v: Value, interp: Interpreter, frame: Frame) -> Array:
    (x,) = interp.evaluate(v.node, (), frame)
    return interp.floats_or_raw(x)


RULES = (
    Rule("fold-constants", ops.Op, _fold),
    Rule("drop-reshape", ops.Reshape, _same_type),
    Rule("drop-cast", ops.Cast, _same_type),
    Rule("drop-slice", ops.Slice, _same_type),
    Rule("drop-repeat", ops.Repeat, _same_type),
    Rule("drop-concat", ops.Concat, _same_type),
    Rule("merge-reshapes", ops.Reshape, _reshape_twice),
    Rule("merge-transposes", ops.Transpose, _transpose),
    Rule("slice-of-concat", ops.Slice, _slice_of_concat),
    Rule("merge-slices", ops.Slice, _slice_twice),
    Rule("drop-neutral", ops.Map, _neutral),
    Rule("double-negation", ops.Map, _double_negation),
)
