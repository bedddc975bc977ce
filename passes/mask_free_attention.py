"""softmax(q k^T * scale + tree mask) v, heads repeated or not -> the mask-free `Attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from speccc.ir import graph_build as g
from speccc.ir import ops, ops_state
from speccc.ir.graph import Graph, Node, Value, add_origins, apply
from speccc.ir.graph_analysis import nbytes
from speccc.ir.ops import Fn
from speccc.ir.rewrite import Rule, rewrite
from speccc.ir.types import F16, F32
from speccc.passes.pipeline import GraphPass


@dataclass(frozen=True)
class MaskFreeAttention(GraphPass):
    """batched_matmul(softmax(batched_matmul(q, keys) * scale + tree_mask), values) -> attention.

    `keys` and `values` are caches [ctx, g, d] brought into place by transposes, casts to f32 and a
    repeat of the heads. Declines when the mask is anything but the `TreeMask` of that context.
    """

    name: ClassVar[str] = "mask-free-attention"

    def run(self, graph: Graph) -> Graph:
        """Replace every attention that matches."""
        return rewrite(graph, (Rule(self.name, ops.BatchedMatmul, match_attention),)).graph

    def report(self, before: Graph, after: Graph) -> str:
        """Bytes of masks and repeated caches that are no longer made, at the largest sizes."""
        return f"saves {saved_bytes(before, after)} bytes of masks and repeated keys and values"


def saved_bytes(before: Graph, after: Graph) -> int:
    """Bytes of masks and repeats of `before` that `after` does not make."""
    kept = set(after.nodes())
    gone = (n for n in before.nodes() if n not in kept)
    kinds = (ops_state.TreeMask, ops.Repeat)
    return sum(nbytes(n.outs[0]) for n in gone if isinstance(n.op, kinds))


def match_attention(n: Node) -> Value | None:
    """The transposed `Attention` that replaces a batched matmul of weights and values, or None."""
    weights, values = n.inputs
    if not isinstance(weights.node.op, ops.Softmax):
        return None
    masked = _masked(weights.node.inputs[0])
    if masked is None:
        return None
    mask, scores = masked
    product, scale = _scaled(scores)
    if not isinstance(product.node.op, ops.BatchedMatmul):
        return None
    q, keys = product.node.inputs
    k = _cache(keys, (1, 2, 0))
    v = _cache(values, (1, 0, 2))
    if k is None or v is None or k.type.shape[0] != mask.type.shape[1]:
        return None
    if k.type.shape[:2] != v.type.shape[:2] or k.type.elem != v.type.elem:
        return None
    length, parents = mask.node.inputs
    op = ops_state.Attention(scale)
    out = apply(op, g.transpose(q, 1, 0, 2), k, v, length, parents)
    add_origins(out.node, n, weights.node, product.node)
    return g.transpose(out, 1, 0, 2)


def _masked(v: Value) -> tuple[Value, Value] | None:
    """(tree mask, scores) of their sum in either order."""
    if v.node.op != ops.Map(Fn.ADD):
        return None
    for mask, scores in (v.node.inputs, v.node.inputs[::-1]):
        if isinstance(mask.node.op, ops_state.TreeMask) and scores.type == v.type:
            return mask, scores
    return None


def _scaled(v: Value) -> tuple[Value, float]:
    """(x, c) of x * c with a one-element constant, in either order; (v, 1) of anything else."""
    if v.node.op == ops.Map(Fn.MUL):
        for x, c in (v.node.inputs, v.node.inputs[::-1]):
            op = c.node.op
            if isinstance(op, ops.Constant) and len(op.data) == 4 and x.type == v.type:
                return x, float(np.frombuffer(op.data, np.float32)[0])
    return v, 1.0


def _cache(v: Value, wanted: tuple[int, int, int]) -> Value | None:
    """The [ctx, g, d] cache behind transposes, casts and a repeat of axis 0.

    Axis i of `v` must be the cache's axis wanted[i]; None otherwise.
    """
    axes = (0, 1, 2)
    repeated = False
    while True:
        op = v.node.op
        if isinstance(op, ops.Transpose):
            axes = tuple(op.perm[a] for a in axes)  # type: ignore[assignment]
        elif isinstance(op, ops.Repeat) and op.axis == axes[0] and not repeated:
            repeated = True
        elif not (isinstance(op, ops.Cast) and v.node.inputs[0].type.elem in (F16, F32)):
            return v if axes == wanted else None
        v = v.node.inputs[0]
