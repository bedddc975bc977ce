"""The parts of a fused region's body, for those who lower it."""

from __future__ import annotations

from dataclasses import dataclass

from speccc.errors import VerifyError
from speccc.ir.graph import Graph, Node, Value
from speccc.ir.ops import Input, Matmul, Reshape, RmsNorm
from speccc.ir.ops_state import LEAVES


@dataclass(frozen=True, slots=True)
class Region:
    """[Reshape] [RmsNorm] Matmul, then row-wise nodes, of the body of a `Fused` node.

    `x` is the parameter that is read (before reshape and norm), `weights` are parameters.
    `epilogue` lists the nodes after the matmul, inputs before users.
    """

    body: Graph
    x: Value
    norm: Node | None
    matmul: Node
    weights: tuple[Value, ...]
    epilogue: tuple[Node, ...]

    def position(self, param: Value) -> int:
        """Which input of the `Fused` node feeds a parameter."""
        return self.body.params.index(param)


def read_region(body: Graph) -> Region:
    """The parts of a body that `FuseRegions` made; VerifyError on any other body."""
    inner = [n for n in body.nodes() if not isinstance(n.op, LEAVES)]
    matmuls = [n for n in inner if isinstance(n.op, Matmul)]
    if len(matmuls) != 1:
        raise VerifyError(f"a region has one matmul, not {len(matmuls)}")
    at = inner.index(matmuls[0])
    x, norm = matmuls[0].inputs[0], None
    for n in reversed(inner[:at]):
        if x.node is not n or not isinstance(n.op, (Reshape, RmsNorm)):
            raise VerifyError(f"{n.op.mnemonic} does not lead to the region's matmul")
        norm = n if isinstance(n.op, RmsNorm) else norm
        x = n.inputs[0]
    weights = matmuls[0].inputs[1:]
    if not all(isinstance(v.node.op, Input) for v in (x, *weights)):
        raise VerifyError("a region's matmul reads something that is not a parameter")
    return Region(body, x, norm, matmuls[0], weights, tuple(inner[at + 1 :]))
