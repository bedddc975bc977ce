"""Graph ops that read or write state, or hold an inner graph; and the table of all ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from speccc.ir.ops import (
    BatchedMatmul,
    Cast,
    Concat,
    Constant,
    Embed,
    Input,
    Map,
    Matmul,
    Op,
    Reduce,
    Repeat,
    Reshape,
    RmsNorm,
    Rope,
    Slice,
    Softmax,
    Transpose,
    Types,
    Weight,
    arity,
    need,
)
from speccc.ir.types import F16, F32, I32, Dim, Sym, TensorType

if TYPE_CHECKING:
    from speccc.ir.graph import Graph

SCALAR_I32 = TensorType((), I32)


@dataclass(frozen=True, slots=True)
class CacheAppend(Op):
    """cache f32|f16[ctx, g, d], new f32[m, g, d], length i32[] -> the cache afterwards.

    Row r of `new`, cast to the cache's type, is written to slot length + r. The caller sees to it
    that length + m <= ctx.
    """

    mnemonic: ClassVar[str] = "cache_append"

    def infer(self, ins: Types) -> Types:
        """The cache's type."""
        arity(ins, 3)
        cache, new, length = ins
        need(len(cache.shape) == 3 and cache.elem in (F32, F16), f"cache is {cache}")
        need(new.elem == F32 and new.shape[1:] == cache.shape[1:], f"{new} into {cache}")
        need(len(new.shape) == 3 and length == SCALAR_I32, f"new is {new}, length is {length}")
        return (cache,)


@dataclass(frozen=True, slots=True)
class TreeMask(Op):
    """length i32[], parents i32[m] -> f32[m, ctx], 0 where row r sees slot c and -inf elsewhere.

    Row r sees c < length, and c - length when that is r or an ancestor of r; parents[r] < r is the
    index of its parent among these rows, or -1.
    """

    mnemonic: ClassVar[str] = "tree_mask"
    ctx: Dim

    def infer(self, ins: Types) -> Types:
        """f32[m, ctx]."""
        arity(ins, 2)
        length, parents = ins
        need(length == SCALAR_I32, f"length is {length}")
        need(len(parents.shape) == 1 and parents.elem == I32, f"parents are {parents}")
        return (TensorType((parents.shape[0], self.ctx), F32),)


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """q f32[m, h, d], k [ctx, g, d], v [ctx, g, e], length i32[], parents i32[m] -> f32[m, h, e].

    softmax(q k^T * scale) v over the slots that `TreeMask` would show to each row; head i reads
    group i // (h / g). The rows' own k and v are already in slots length..length+m-1.
    """

    mnemonic: ClassVar[str] = "attention"
    scale: float

    def infer(self, ins: Types) -> Types:
        """f32[m, h, e]."""
        arity(ins, 5)
        q, k, v, length, parents = ins
        need(len(q.shape) == len(k.shape) == len(v.shape) == 3, f"operands are {q}, {k}, {v}")
        need(q.elem == F32 and k.elem in (F32, F16) and v.elem == k.elem, f"{q}, {k}, {v}")
        need(k.shape[:2] == v.shape[:2] and q.shape[2] == k.shape[2], f"{q}, {k}, {v}")
        heads, groups = q.shape[1], k.shape[1]
        whole = isinstance(heads, int) and isinstance(groups, int) and heads % groups == 0
        need(whole, f"{heads} heads over {groups} groups")
        need(length == SCALAR_I32, f"length is {length}")
        need(parents == TensorType(q.shape[:1], I32), f"parents are {parents}")
        return (TensorType((q.shape[0], heads, v.shape[2]), F32),)


@dataclass(frozen=True, slots=True)
class Fused(Op):
    """One region computed as one kernel: the results of `body` called with the inputs.

    `body` has only `Input` (p0, p1, ..) and `Constant` leaves; equal regions share one body.
    """

    mnemonic: ClassVar[str] = "fused"
    body: Graph

    def infer(self, ins: Types) -> Types:
        """The body's result types."""
        check_call(self.body, ins)
        return tuple(v.type for v in self.body.results)


@dataclass(frozen=True, slots=True)
class Loop(Op):
    """`trips` calls of `body` in a row.

    Inputs: `carried` initial values; `invariant` values; then for each further parameter of the
    body its `trips` values (parameter-major). The body's first `carried` results feed the next
    trip. Results: the last carried values, then for each further body result its `trips` values.
    """

    mnemonic: ClassVar[str] = "loop"
    body: Graph
    trips: int
    carried: int
    invariant: int

    @property
    def stacked(self) -> int:
        """Body parameters that differ by trip."""
        return len(self.body.params) - self.carried - self.invariant

    def arguments(self, trip: int) -> tuple[int | None, ...]:
        """For each body parameter the loop input that feeds it; None when carried and trip > 0."""
        fixed = self.carried + self.invariant
        head = [None if trip and i < self.carried else i for i in range(fixed)]
        return (*head, *(fixed + s * self.trips + trip for s in range(self.stacked)))

    def infer(self, ins: Types) -> Types:
        """Carried types, then each further body result `trips` times."""
        need(self.trips >= 1 and self.stacked >= 0, f"{self.trips} trips, {self.stacked} stacked")
        fixed = self.carried + self.invariant
        arity(ins, fixed + self.stacked * self.trips)
        results = tuple(v.type for v in self.body.results)
        need(results[: self.carried] == ins[: self.carried], "a carried value changes its type")
        for trip in range(self.trips):
            picks = self.arguments(trip)
            check_call(self.body, tuple(ins[i if p is None else p] for i, p in enumerate(picks)))
        rest = results[self.carried :]
        return results[: self.carried] + tuple(t for t in rest for _ in range(self.trips))


def check_call(body: Graph, ins: Types) -> None:
    """VerifyError unless `ins` are the types of the body's parameters."""
    arity(ins, len(body.params))
    for param, given in zip(body.params, ins, strict=True):
        need(param.type == given, f"body takes {param.type}, got {given}")


OPS: dict[str, type[Op]] = {
    op.mnemonic: op
    for op in (
        Input, Weight, Constant, Embed, Matmul, BatchedMatmul, Map, Reduce, Softmax, RmsNorm,
        Rope, Reshape, Transpose, Slice, Concat, Repeat, Cast, CacheAppend, TreeMask, Attention,
        Fused, Loop,
    )
}  # fmt: skip
LEAVES = (Input, Weight, Constant)


def symbols(t: TensorType) -> tuple[Sym, ...]:
    """The symbols of a type's shape."""
    return tuple(d for d in t.shape if isinstance(d, Sym))
