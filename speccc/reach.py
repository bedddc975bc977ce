"""Weights that are larger than a target's numbers reach: its kernels see windows of them."""

from __future__ import annotations

from dataclasses import replace

from speccc.errors import UnsupportedError
from speccc.ir.graph import Graph
from speccc.passes.lower_graph import Lowered, LowerGraph

REACH = dict.fromkeys(("vulkan", "sycl", "metal"), 2**31 - 1)
"""Bytes of a buffer by backend: the kernels find them by a signed 32-bit number."""


def lower_for(target: str, lowering: LowerGraph, graph: Graph) -> Lowered:
    """The plan for a target. UnsupportedError when one matrix alone is larger than its reach."""
    lowered = lowering.run(graph)
    reach = REACH.get(target.partition(":")[0])
    if reach is None or lowered.weights.matrix_bytes <= reach:
        return lowered
    largest = max(lowered.weights.matrices, key=lambda s: s.matrix.nbytes)
    if largest.matrix.nbytes > reach:
        raise UnsupportedError(
            f"--target {target}: {largest.name} has {largest.matrix.nbytes} bytes, it reaches "
            f"{reach}: use a smaller format or --target cpu"
        )
    return replace(lowering, windowed=True).run(graph)
