"""What a target asks of a plan: windows of weights its numbers do not reach, work for its units."""

from __future__ import annotations

from dataclasses import replace

from speccc.errors import UnsupportedError
from speccc.ir.graph import Graph
from speccc.passes.lower_graph import Lowered, LowerGraph

REACH = dict.fromkeys(("vulkan", "sycl", "metal"), 2**31 - 1)
"""Bytes of a buffer by backend: the kernels find them by a signed 32-bit number."""
MANY_UNITS = ("cuda", "rocm", *REACH)
"""Backends of devices with more units than a model has panels of heads: there many share a sum over
slots of attention. To a few cores of a CPU that is a barrier more, and nothing gained."""


def lower_for(target: str, lowering: LowerGraph, graph: Graph) -> Lowered:
    """The plan for a target. UnsupportedError when one matrix alone is larger than its reach."""
    backend = target.partition(":")[0]
    lowering = replace(lowering, split=backend in MANY_UNITS)
    lowered, reach = lowering.run(graph), REACH.get(backend)
    if reach is None or lowered.weights.matrix_bytes <= reach:
        return lowered
    largest = max(lowered.weights.matrices, key=lambda s: s.matrix.nbytes)
    if largest.matrix.nbytes > reach:
        raise UnsupportedError(
            f"--target {target}: {largest.name} has {largest.matrix.nbytes} bytes, it reaches "
            f"{reach}: use a smaller format or --target cpu"
        )
    return replace(lowering, windowed=True).run(graph)
