"""The yardstick of quality: the naive graph over dequantised weights, in float32 throughout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speccc.errors import UnsupportedError
from speccc.ir.build_llama import MAX_ROWS, build_llama, weight_types
from speccc.ir.frontends.source import ModelSource
from speccc.ir.interp_graph import Array, Interpreter
from speccc.ir.ops import Input
from speccc.ir.types import F32, DType
from speccc.runtime.protocols import Logits

STATE_FROM = 4  # the graph's parameters before its caches: tokens, positions, length, parents


class Float32Session:
    """A session of chains only; the KV cache is float32 as well."""

    def __init__(self, source: ModelSource, context: int) -> None:
        types = weight_types(source.weights)
        self._graph = build_llama(source.config, types, context=context, cache=F32)
        self._interpreter = Interpreter(source.weights)
        self._caches: dict[str, Array] = {}
        self._length = 0
        self._context = context
        for param in self._graph.params[STATE_FROM:]:
            op = param.node.op
            if isinstance(op, Input) and isinstance(op.type.elem, DType):
                inner = (size for size in op.type.shape[1:] if isinstance(size, int))
                self._caches[op.name] = np.zeros((context, *inner), np.float32)

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""
        return self._length

    @property
    def context(self) -> int:
        """The most tokens the KV cache can hold."""
        return self._context

    def forward(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Logits:
        """Append a chain of tokens; float32 logits [m, vocab]."""
        if parents is not None:
            raise UnsupportedError("the float32 yardstick has no trees")
        rows = [
            self._pass(tokens[start : start + MAX_ROWS])
            for start in range(0, len(tokens), MAX_ROWS)
        ]
        return np.concatenate(rows)

    def _pass(self, tokens: Sequence[int]) -> Logits:
        count = len(tokens)
        inputs = {
            "tokens": np.asarray(tokens, np.int32),
            "positions": np.arange(self._length, self._length + count, dtype=np.int32),
            "length": np.asarray(self._length, np.int32),
            "parents": np.arange(-1, count - 1, dtype=np.int32),
        }
        out = self._interpreter.run(self._graph, {**inputs, **self._caches})
        logits = out.pop("logits")
        self._caches = out
        self._length += count
        return np.asarray(logits, np.float32)

    def keep(self, rows: Sequence[int]) -> None:
        """There are no trees to keep a path of."""
        raise UnsupportedError("the float32 yardstick has no trees")

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on."""
        self._length = length
