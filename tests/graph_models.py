"""Tiny Llama-type models as (graph, weights), without a file in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from models import Tiny, gguf_weights

from speccc.ir.build_llama import build_llama, weight_types
from speccc.ir.formats import FORMATS
from speccc.ir.frontends.source import ModelConfig, RopeConfig, Weight
from speccc.ir.graph import Graph
from speccc.ir.interp_graph import Array, Interpreter
from speccc.ir.ops import Input
from speccc.ir.types import F16, DType


def config_of(t: Tiny) -> ModelConfig:
    """The configuration a frontend would read."""
    scaling = t.rope_scaling or {}
    linear = scaling.get("rope_type") == "linear"
    factor = float(str(scaling["factor"])) if linear else 1.0
    rope = RopeConfig(t.theta, t.dim, "linear" if linear else "none", factor)
    return ModelConfig(
        "llama", "tiny", t.vocab, t.hidden, t.layers, t.heads, t.kv_heads, t.dim, t.ffn,
        t.eps, rope, t.context, t.tied,
    )  # fmt: skip


def stored(t: Tiny, fmt: str | dict[str, str] = "f32") -> dict[str, Weight]:
    """The weights by GGUF name; matrices in `fmt`, or by name in a dictionary (default f32)."""
    out = {}
    for name, x in gguf_weights(t).items():
        kind = fmt if isinstance(fmt, str) else fmt.get(name, "f32")
        chosen = FORMATS["f32" if x.ndim == 1 else kind]
        raw = chosen.encode(x).reshape(-1)
        out[name] = Weight(name, x.shape, chosen, raw)
    return out


def tiny_graph(
    t: Tiny,
    fmt: str | dict[str, str] = "f32",
    *,
    cache: DType = F16,
    context: int = 64,
) -> tuple[Graph, dict[str, Weight]]:
    """The naive graph of a tiny model and its weights."""
    weights = stored(t, fmt)
    return build_llama(config_of(t), weight_types(weights), context=context, cache=cache), weights


class TinySession:
    """Plain use of a graph with state: `forward` appends rows to the caches."""

    def __init__(self, graph: Graph, weights: dict[str, Weight], slots: int, mode: str = "f32"):
        self.graph = graph
        self.interp = Interpreter(weights, "int8" if mode == "int8" else "f32")
        self.length = 0
        self.caches: dict[str, Array] = {}
        for p in graph.params[4:]:
            op = p.node.op
            if isinstance(op, Input) and isinstance(op.type.elem, DType):
                shape = (slots, *(d for d in op.type.shape[1:] if isinstance(d, int)))
                self.caches[op.name] = np.zeros(shape, op.type.elem.numpy)

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None
    ) -> npt.NDArray[np.float32]:
        """Logits of each row; a chain unless parents are given."""
        links = list(range(-1, len(tokens) - 1)) if parents is None else list(parents)
        depths: list[int] = []
        for link in links:
            depths.append(self.length if link < 0 else depths[link] + 1)
        out = self.interp.run(self.graph, {**self.inputs(tokens, links, depths), **self.caches})
        logits = out.pop("logits")
        self.caches = out
        self.length += len(tokens)
        return np.asarray(logits, np.float32)

    def inputs(
        self, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]
    ) -> dict[str, Array]:
        """The call arguments other than caches."""
        return {
            "tokens": np.asarray(tokens, np.int32),
            "positions": np.asarray(depths, np.int32),
            "length": np.asarray(self.length, np.int32),
            "parents": np.asarray(parents, np.int32),
        }
