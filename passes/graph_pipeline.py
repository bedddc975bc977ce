"""The order of passes from the naive graph to the form that is lowered to tile programs."""

from __future__ import annotations

from speccc.ir.graph import Graph
from speccc.passes.canonicalize import Canonicalize
from speccc.passes.fuse_projections import FuseProjections
from speccc.passes.fuse_regions import FuseRegions
from speccc.passes.mask_free_attention import MaskFreeAttention
from speccc.passes.pipeline import GraphPass, Observer, run_passes
from speccc.passes.roll_layers import RollLayers

GRAPH_PASSES: tuple[GraphPass, ...] = (
    Canonicalize(),
    MaskFreeAttention(),
    # The transposes that attention no longer needs meet and go.
    Canonicalize(),
    # Before regions: a region has one matmul, and a norm goes with it.
    FuseProjections(),
    FuseRegions(),
    # Last: layers are the same pieces only once they are regions of few kinds.
    RollLayers(),
)


def optimize(graph: Graph, observe: Observer | None = None) -> Graph:
    """The final form of a naive graph (see `speccc.ir.graph`)."""
    return run_passes(graph, GRAPH_PASSES, observe)
