"""NumPy interpreter of the Graph IR: the golden model and the definition of every op.

f32 arithmetic throughout. Matmuls use the decoded weights in f32 unless `activation` is "int8",
which quantises activations as the devices do (`speccc.ir.interp_matmul`). Block-format and bf16
tensors are held as `Stored` bytes or raw uint16 and decoded where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Union

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, VerifyError
from speccc.ir import ops, ops_state
from speccc.ir.formats import Format
from speccc.ir.graph import Graph, Node, Value
from speccc.ir.interp_matmul import matmul_int8
from speccc.ir.ops import Fn
from speccc.ir.types import BF16, F16, F32, DType, Sym, TensorType

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Activation = Literal["f32", "int8"]


class Stored(Protocol):
    """A tensor as its file holds it (`speccc.ir.frontends.source.Weight` is one)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""

    @property
    def format(self) -> Format:
        """Number format."""

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """Bytes, row-major, blocks along the last axis."""


Tensor = Union[Array, Stored]  # noqa: UP007


@dataclass
class Interpreter:
    """Runs graphs over one set of weights, keeping decoded weights between calls."""

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    activation: Activation = "f32"
    _decoded: dict[int, tuple[Tensor, Floats]] = field(default_factory=dict)

    def run(self, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Results by name. InputError names an input that is missing or has the wrong shape."""
        sizes: dict[Sym, int] = {}
        values: list[Tensor] = []
        for p in graph.params:
            op = p.node.op
            if not isinstance(op, ops.Input):
                raise VerifyError("a graph parameter is not an input")
            if op.name not in inputs:
                raise InputError("is missing", where=f"input {op.name}")
            given = np.asarray(inputs[op.name])
            bind(op.name, p.type, given, sizes)
            values.append(given)
        out = self.call(graph, values, sizes)
        return {name: self.floats_or_raw(v) for name, v in zip(graph.names, out, strict=True)}

    def call(
        self, graph: Graph, args: Sequence[Tensor], sizes: Mapping[Sym, int]
    ) -> tuple[Tensor, ...]:
        """The results of a graph on its parameters' values, with symbols bound."""
        env: dict[Value, Tensor] = dict(zip(graph.params, args, strict=True))
        frame = Frame(self, sizes)
        for n in graph.nodes():
            if Value(n) in env:
                continue
            outs = self.evaluate(n, tuple(env[v] for v in n.inputs), frame)
            env.update((Value(n, i), x) for i, x in enumerate(outs))
        return tuple(env[v] for v in graph.results)

    def evaluate(self, n: Node, ins: tuple[Tensor, ...], frame: Frame) -> tuple[Tensor, ...]:
        """The results of one node."""
        rule = _RULES.get(type(n.op))
        if rule is None:
            raise VerifyError(f"the interpreter has no rule for {n.op.mnemonic}")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            outs = rule(n.op, frame, *ins)
        return tuple(in_order(x) for x in outs)

    def floats(self, x: Tensor) -> Floats:
        """f32 values of any float tensor; decodings of stored tensors are kept."""
        if isinstance(x, np.ndarray):
            return decode_plain(x)
        kept = self._decoded.get(id(x))
        if kept is None:
            kept = self._decoded[id(x)] = (x, x.format.decode(x.raw, x.shape))
        return kept[1]

    def floats_or_raw(self, x: Tensor) -> Array:
        """An array for the caller: stored tensors decoded, arrays as they are."""
        return x if isinstance(x, np.ndarray) else self.floats(x)


@dataclass(frozen=True)
class Frame:
    """What a rule may ask: the interpreter and the values of symbols."""

    interp: Interpreter
    sizes: Mapping[Sym, int]

    def shape(self, dims: Sequence[int | Sym]) -> tuple[int, ...]:
        """A shape with symbols replaced."""
        return tuple(self.sizes[d] if isinstance(d, Sym) else d for d in dims)


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Tensor] | None = None,
    *,
    activation: Activation = "f32",
) -> dict[str, Array]:
    """Run a graph once: results by name."""
    return Interpreter(weights or {}, activation).run(graph, inputs)


def bind(name: str, t: TensorType, given: Array, sizes: dict[Sym, int]) -> None:
    """Check an array against its type and bind the symbols it fixes; InputError otherwise."""
    want = t.elem.numpy if isinstance(t.elem, DType) else np.dtype(np.uint8)
    ok = given.dtype == want and given.ndim == len(t.shape)
    for dim, size in zip(t.shape, given.shape):  # noqa: B905 (ranks may differ: ok is False then)
        if isinstance(dim, Sym):
            ok = ok and dim.lo <= size <= dim.hi and sizes.setdefault(dim, size) == size
        else:
            ok = ok and dim == size
    if not ok:
        raise InputError(f"takes {t}, got {given.dtype}{list(given.shape)}", where=f"input {name}")


def in_order(x: Tensor) -> Tensor:
    """An array in C order: NumPy's order of summation, and so the bits, depend on the layout.

    NumPy's scalars become arrays of no axes; stored tensors stay.
    """
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    return np.asarray(x, order="C")


def batched_matmul(a: Floats, b: Floats) -> Floats:
    """f32[b, m, k] times f32[b, k, n], the same bits for any memory layout of the operands."""
    return np.asarray(np.matmul(np.asarray(a, order="C"), np.asarray(b, order="C")), np.float32)


def decode_plain(x: Array) -> Floats:
    """f32, f16 or bf16 (raw uint16) or i32 values as f32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32, copy=False)


def encode_plain(x: Floats, dtype: DType) -> Array:
    """f32 values as f32, f16 (saturating) or bf16 (raw uint16), to nearest even."""
    if dtype == F16:
        return np.clip(x, -65504, 65504).astype(np.float16)
    if dtype == BF16:
        bits = np.ascontiguousarray(x).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)
    return x.astype(np.float32, copy=False)


_UNARY: dict[Fn, Callable[[Floats], Array]] = {
    Fn.NEG: np.negative,
    Fn.EXP: np.exp,
    Fn.SQRT: np.sqrt,
    Fn.RSQRT: lambda x: np.float32(1) / np.sqrt(x),
    Fn.SILU: lambda x: x / (np.float32(1) + np.exp(-x)),
}
_BINARY: dict[Fn, Callable[[Floats, Floats], Array]] = {
    Fn.ADD: np.add,
    Fn.SUB: np.subtract,
    Fn.MUL: np.multiply,
    Fn.DIV: np.divide,
    Fn.MAX: np.maximum,
    Fn.MIN: np.minimum,
}


def _weight(op: ops.Weight, f: Frame) -> tuple[Tensor, ...]:
    found = f.interp.weights.get(op.name)
    if found is None:
        raise InputError("is missing", where=f"tensor {op.name}")
    if tuple(found.shape) != op.type.shape:
        raise InputError(f"takes {op.type}, got {list(found.shape)}", where=f"tensor {op.name}")
    if isinstance(op.type.elem, DType) and not isinstance(found, np.ndarray):
        return (found.raw.view(op.type.elem.numpy).reshape(found.shape),)
    return (found,)


def _constant(op: ops.Constant, f: Frame) -> tuple[Tensor, ...]:
    if not isinstance(op.type.elem, DType):
        raise VerifyError("a constant has a plain element type")
    return (np.frombuffer(op.data, op.type.elem.numpy).reshape(f.shape(op.type.shape)),)


def _embed(op: ops.Embed, f: Frame, table: Tensor, tokens: Array) -> tuple[Tensor, ...]:
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < table.shape[0]:
        raise InputError(f"a token is not in 0..{table.shape[0] - 1}", where="input tokens")
    return (f.interp.floats(table)[tokens],)


def _matmul(op: ops.Matmul, f: Frame, x: Floats, *weights: Tensor) -> tuple[Tensor, ...]:
    outs: list[Tensor] = []
    for w in weights:
        if f.interp.activation == "int8" and not isinstance(w, np.ndarray) and w.format.quantized:
            codes, scale, minimum = w.format.codes(w.raw, w.shape)
            factors = w.format.row_factors(w.raw, w.shape)
            out = matmul_int8(x, w.format.integers(codes), scale, minimum)
            outs.append(out if factors is None else out * factors)
        else:
            outs.append(x @ f.interp.floats(w).T)
    return tuple(outs)


def _map(op: ops.Map, f: Frame, *ins: Floats) -> tuple[Tensor, ...]:
    return (_UNARY[op.fn](ins[0]) if len(ins) == 1 else _BINARY[op.fn](ins[0], ins[1]),)


def _reduce(op: ops.Reduce, f: Frame, x: Floats) -> tuple[Tensor, ...]:
    fold = np.sum if op.fn is Fn.ADD else np.max
    return (fold(x, axis=op.axis, keepdims=True),)


def softmax(x: Floats) -> Floats:
    """exp(x - max) / sum over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True), np.float32)


def rms_norm(x: Floats, w: Floats, eps: float) -> Floats:
    """(x * (1 / sqrt(mean(x^2) + eps))) * w over the last axis, f32 at each step."""
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    scaled = x * (np.float32(1) / np.sqrt(mean + np.float32(eps)))
    return np.asarray(scaled * w, np.float32)


def rotary(op: ops.Rope, positions: Array, factors: Floats | None) -> tuple[Floats, Floats]:
    """cos and sin f32 [m, dim/2] of each position's angles, which are computed in f64."""
    exponent = np.arange(0, op.dim, 2, dtype=np.float64) / op.dim
    frequency = op.theta**-exponent / op.divisor
    if factors is not None:
        frequency = frequency / factors.astype(np.float64)
    angle = positions.astype(np.float64)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _rope(
    op: ops.Rope, f: Frame, x: Floats, positions: Array, factors: Floats | None = None
) -> tuple[Tensor, ...]:
    cos, sin = (t[:, None, :] for t in rotary(op, positions, factors))
    out = x.copy()
    even, odd = x[..., 0 : op.dim : 2], x[..., 1 : op.dim : 2]
    out[..., 0 : op.dim : 2] = even * cos - odd * sin
    out[..., 1 : op.dim : 2] = odd * cos + even * sin
    return (out,)


def _cache_append(
    op: ops_state.CacheAppend, f: Frame, cache: Array, new: Floats, length: Array
) -> tuple[Tensor, ...]:
    start = int(length)
    if not 0 <= start <= len(cache) - len(new):
        raise InputError(f"{start} + {len(new)} rows pass {len(cache)} slots", where="input length")
    out = cache.copy()
    out[start : start + len(new)] = encode_plain(new, F16 if cache.dtype == np.float16 else F32)
    return (out,)


def tree_mask(length: int, parents: Array, ctx: int) -> Floats:
    """f32 [m, ctx]: 0 where row r sees slot c, -inf elsewhere. InputError on a bad parent."""
    out = np.full((len(parents), ctx), -np.inf, np.float32)
    for r, parent in enumerate(parents.tolist()):
        if not -1 <= parent < r:
            raise InputError(f"parent {parent} of row {r} is not before it", where="input parents")
        if parent >= 0:
            out[r] = out[parent]
        else:
            out[r, :length] = 0
        out[r, length + r] = 0
    return out


def attention(q: Floats, k: Floats, v: Floats, mask: Floats, scale: float) -> Floats:
    """The naive computation, step by step: f32 [m, h, e]."""
    times = q.shape[1] // k.shape[1]
    keys = np.repeat(k.transpose(1, 2, 0), times, axis=0)
    values = np.repeat(v.transpose(1, 0, 2), times, axis=0)
    scores = batched_matmul(q.transpose(1, 0, 2), keys) * np.float32(scale)
    return batched_matmul(softmax(scores + mask), values).transpose(1, 0, 2)


def _attention(
    op: ops_state.Attention, f: Frame, q: Floats, k: Array, v: Array, length: Array, parents: Array
) -> tuple[Tensor, ...]:
    mask = tree_mask(int(length), parents, len(k))
    return (attention(q, decode_plain(k), decode_plain(v), mask, op.scale),)


def _loop(op: ops_state.Loop, f: Frame, *ins: Tensor) -> tuple[Tensor, ...]:
    carried = list(ins[: op.carried])
    rows: list[tuple[Tensor, ...]] = []
    for trip in range(op.trips):
        picks = op.arguments(trip)
        args = [carried[i] if i < op.carried else ins[p or 0] for i, p in enumerate(picks)]
        out = f.interp.call(op.body, args, f.sizes)
        carried = list(out[: op.carried])
        rows.append(out[op.carried :])
    stacked = zip(*rows, strict=True)
    return (*carried, *(x for per_result in stacked for x in per_result))


Rule = Callable[..., "tuple[Tensor, ...]"]
_RULES: dict[type[ops.Op], Rule] = {
    ops.Weight: _weight,
    ops.Constant: _constant,
    ops.Embed: _embed,
    ops.Matmul: _matmul,
    ops.BatchedMatmul: lambda op, f, a, b: (batched_matmul(a, b),),
    ops.Map: _map,
    ops.Reduce: _reduce,
    ops.Softmax: lambda op, f, x: (softmax(x),),
    ops.RmsNorm: lambda op, f, x, w: (rms_norm(x, w, op.eps),),
    ops.Rope: _rope,
    ops.Reshape: lambda op, f, x: (x.reshape(f.shape(op.shape)),),
    ops.Transpose: lambda op, f, x: (x.transpose(op.perm),),
    ops.Slice: lambda op, f, x: (x[(slice(None),) * op.axis + (slice(op.start, op.stop),)],),
    ops.Concat: lambda op, f, *xs: (np.concatenate(xs, axis=op.axis),),
    ops.Repeat: lambda op, f, x: (np.repeat(x, op.times, axis=op.axis),),
    ops.Cast: lambda op, f, x: (encode_plain(f.interp.floats(x), op.dtype),),
    ops_state.CacheAppend: _cache_append,
    ops_state.TreeMask: lambda op, f, length, parents: (
        tree_mask(int(length), parents, *f.shape((op.ctx,))),
    ),
    ops_state.Attention: _attention,
    ops_state.Fused: lambda op, f, *ins: f.interp.call(op.body, ins, f.sizes),
    ops_state.Loop: _loop,
}
