"""Llama-family configuration and weight types -> Graph, in the naive form that passes improve.

Parameters: tokens i32[m], positions i32[m] (depth in the tree, for RoPE), length i32[] (tokens in
the cache), parents i32[m] (`TreeMask`), then cache_k.L and cache_v.L [ctx, g, d] of each layer.
Results: logits f32[m, vocab] and the caches afterwards under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from speccc.errors import InputError, UnsupportedError
from speccc.ir import graph_build as g
from speccc.ir import ops, ops_state
from speccc.ir.formats import Format
from speccc.ir.frontends.source import EMBEDDING, HEAD, ROPE_FREQS, ModelConfig, Weight
from speccc.ir.graph import Graph, Value, apply
from speccc.ir.ops import Fn
from speccc.ir.types import DTYPES, F16, F32, I32, Dim, DType, Sym, TensorType

MAX_ROWS = 512
"""Most rows of one forward pass unless told otherwise."""


def weight_types(weights: Mapping[str, Weight]) -> dict[str, TensorType]:
    """Graph types of stored tensors: plain formats become their element type."""
    return {name: TensorType(w.shape, plain(w.format)) for name, w in weights.items()}


def plain(fmt: Format) -> DType | Format:
    """The element type of a plain format (f32, f16, bf16); a block format itself."""
    return DTYPES[fmt.name] if fmt.plain else fmt


def build_llama(
    config: ModelConfig,
    types: Mapping[str, TensorType],
    *,
    context: int | None = None,
    max_rows: int = MAX_ROWS,
    cache: DType = F16,
) -> Graph:
    """The naive graph of a Llama-family model; `context` bounds `ctx` (the model's by default).

    InputError names a missing tensor, one that no layer uses, or a rope scaling we do not know.
    """
    limit = context or config.context_length
    rows = Sym("m", 1, min(max_rows, limit))
    b = _Builder(config, types, rows, Sym("ctx", 1, limit), cache)
    if config.rope.scaling not in ("none", "linear"):
        raise UnsupportedError(f"rope scaling {config.rope.scaling!r} is not supported")
    x = apply(ops.Embed(), b.weight(EMBEDDING), b.tokens, origin="token_embd")
    for layer in range(config.n_layers):
        x = b.layer(x, layer)
    x = b.norm(x, "output_norm")
    head = EMBEDDING if HEAD not in types and config.tied_head else HEAD
    (logits,) = g.matmul(x, b.weight(head), origin="output")
    unused = sorted(set(types) - b.used)
    if unused:
        raise InputError(f"no layer of {config.architecture} uses it", where=f"tensor {unused[0]}")
    names = tuple(b.caches)
    after = tuple(b.caches[name] for name in names)
    before = tuple(b.cache_in[name] for name in names)
    params = (b.tokens, b.positions, b.length, b.parents, *before)
    return Graph(params, (logits, *after), ("logits", *names))


@dataclass
class _Builder:
    """The values that layers share, and what has been used so far."""

    config: ModelConfig
    types: Mapping[str, TensorType]
    rows: Dim
    ctx: Dim
    cache: DType
    used: set[str] = field(default_factory=set)
    cache_in: dict[str, Value] = field(default_factory=dict)
    caches: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = g.param("tokens", (self.rows,), I32)
        self.positions = g.param("positions", (self.rows,), I32)
        self.length = g.param("length", (), I32)
        self.parents = g.param("parents", (self.rows,), I32)
        mask = ops_state.TreeMask(self.ctx)
        self.mask = apply(mask, self.length, self.parents, origin="mask")

    def weight(self, name: str) -> Value:
        """A tensor that must be there."""
        if name not in self.types:
            raise InputError("is missing from the model", where=f"tensor {name}")
        self.used.add(name)
        return g.weight(name, self.types[name])

    def norm(self, x: Value, name: str) -> Value:
        """RMSNorm with the named weight."""
        w = g.cast(self.weight(f"{name}.weight"), F32)
        return apply(ops.RmsNorm(self.config.norm_eps), x, w, origin=name)

    def linear(self, x: Value, name: str) -> Value:
        """x times a weight, plus its bias if the model has one."""
        (y,) = g.matmul(x, self.weight(f"{name}.weight"), origin=name)
        if f"{name}.bias" not in self.types:
            return y
        return g.add(y, g.cast(self.weight(f"{name}.bias"), F32), origin=name)

    def layer(self, x: Value, index: int) -> Value:
        """One decoder layer: x f32[m, hidden] -> f32[m, hidden]."""
        at = f"blk.{index}"
        attended = self.attention(self.norm(x, f"{at}.attn_norm"), index)
        x = g.add(x, self.linear(attended, f"{at}.attn_output"), origin=f"{at}.attn_residual")
        h = self.norm(x, f"{at}.ffn_norm")
        gate = g.map_(Fn.SILU, self.linear(h, f"{at}.ffn_gate"), origin=f"{at}.ffn_act")
        up = self.linear(h, f"{at}.ffn_up")
        down = self.linear(g.mul(gate, up, origin=f"{at}.ffn_act"), f"{at}.ffn_down")
        return g.add(x, down, origin=f"{at}.ffn_residual")

    def attention(self, h: Value, index: int) -> Value:
        """h f32[m, hidden] -> the heads' outputs side by side f32[m, heads * d]."""
        c, at = self.config, f"blk.{index}"
        d, groups = c.head_dim, c.n_kv_heads
        q = g.reshape(self.linear(h, f"{at}.attn_q"), self.rows, c.n_heads, d)
        k = g.reshape(self.linear(h, f"{at}.attn_k"), self.rows, groups, d)
        v = g.reshape(self.linear(h, f"{at}.attn_v"), self.rows, groups, d)
        q, k = self.rope(q, f"{at}.rope_q"), self.rope(k, f"{at}.rope_k")
        keys = g.transpose(self.append(f"cache_k.{index}", k), 1, 2, 0)
        values = g.transpose(self.append(f"cache_v.{index}", v), 1, 0, 2)
        times, where = c.n_heads // groups, f"{at}.attn"
        scores = apply(
            ops.BatchedMatmul(), g.transpose(q, 1, 0, 2), g.repeat(keys, 0, times), origin=where
        )
        scores = g.mul(scores, g.constant(float(d) ** -0.5), origin=where)
        shown = apply(ops.Softmax(), g.add(scores, self.mask, origin=where), origin=where)
        out = apply(ops.BatchedMatmul(), shown, g.repeat(values, 0, times), origin=where)
        return g.reshape(g.transpose(out, 1, 0, 2), self.rows, c.n_heads * d, origin=where)

    def rope(self, x: Value, origin: str) -> Value:
        """RoPE at the rows' positions, with the model's factors if it has them."""
        r = self.config.rope
        factors = (self.weight(ROPE_FREQS),) if ROPE_FREQS in self.types else ()
        op = ops.Rope(r.theta, r.dim, r.factor if r.scaling == "linear" else 1.0)
        return apply(op, x, self.positions, *factors, origin=origin)

    def append(self, name: str, new: Value) -> Value:
        """The named cache with the new rows in it, as f32."""
        shape = (self.ctx, *new.type.shape[1:])
        self.cache_in[name] = g.param(name, shape, self.cache)
        self.caches[name] = g.cache_append(self.cache_in[name], new, self.length, origin=name)
        return g.cast(self.caches[name], F32, origin=name)
