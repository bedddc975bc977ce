"""Reductions of block-level kernels as Triton text, and axes as dimensions of a tile."""

from __future__ import annotations

from speccc.ir.expr import Apply, Fn
from speccc.ir.tile import LANES, Axis, Red, Reduce
from speccc.ir.types import F32, Kind
from speccc.targets.triton.expr import TYPES, Tiled, f32, placed
from speccc.targets.triton.writer import Writer

LONG = 128
"""From this extent on a reduction takes more than sixteen elements a trip where order allows it."""


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def axis(w: Writer, a: Axis, dim: int, size: int) -> None:
    """An axis as dimension `dim`, in a loop if it is longer than `size`."""
    lanes, extent = f"tl.arange(0, {size})", w.expr(a.extent)
    if not isinstance(a.extent, int) or a.extent > size:
        first = w.name(f"{a.var.name}_first")
        w.put(f"for {first} in range(0, {extent}, {size}):")
        w.depth += 1
        lanes = f"{first} + {lanes}"
    name = w.let(a.var.name, lanes)
    whole = isinstance(a.extent, int) and a.extent % size == 0
    w.env[a.var] = Tiled(name, dim, None if whole else f"({name} < {extent})")


def reduce(w: Writer, s: Reduce) -> None:
    """Sixteen partial results, taken in steps of sixteen: the order the IR fixes for a sum."""
    w.barrier(w.reads(s.value, *s.index), {s.dst})
    largest, depth = s.red is Red.MAX, w.depth
    dim = 1 if w.outer else 0
    width = _width(s)
    shape = f"{w.outer.size}, {width}" if w.outer else f"{width},"
    total = w.let("partial", f"tl.full(({shape}), {_start(s)}, {TYPES[s.dst.dtype.name]})")
    axis(w, s.axis, dim, width)
    step = _step(w, s, total, dim + 1)
    live = w.env[s.axis.var].live  # type: ignore[union-attr]
    mask = None if live is None else placed(live, (dim,), dim + 1)
    w.put(f"{total} = {step}" if mask is None else f"{total} = tl.where({mask}, {step}, {total})")
    w.depth = depth
    result = _largest(w, s, total, dim) if largest else _halved(w, total, dim)
    if s.dst in w.choices.held:
        w.put(f"{w.held[s.dst].text} = {result}")
    else:
        w.store(s.dst, s.index, result, dim, {w.outer.var} if w.outer else set())


def _width(s: Reduce) -> int:
    long = not isinstance(s.axis.extent, int) or s.axis.extent >= LONG
    return LONG if s.red is Red.MAX and long else LANES


def _start(s: Reduce) -> str:
    if s.red is Red.SUM:
        return "0"
    return f32(float("-inf")) if s.value.dtype.kind is Kind.FLOAT else str(-(2**31))


def _halved(w: Writer, total: str, dim: int) -> str:
    """16 partial sums -> one: l takes in l + 8, then l + 4, l + 2, l + 1."""
    outer = f"{w.outer.size}, " if w.outer else ""
    for width in (8, 4, 2):
        w.put(f"{total} = tl.sum(tl.reshape({total}, ({outer}2, {width})), axis={dim})")
    return f"tl.sum({total}, axis={dim})"


def _largest(w: Writer, s: Reduce, total: str, dim: int) -> str:
    """The maximum; a NaN counts as larger than all, which `tl.max` does not promise."""
    top = f"tl.max({total}, axis={dim})"
    if s.value.dtype.kind is not Kind.FLOAT:
        return top
    odd = f"tl.sum(({total} != {total}).to(tl.int32), axis={dim}) > 0"
    return f'tl.where({odd}, float("nan"), {top})'


def _step(w: Writer, s: Reduce, total: str, ndim: int) -> str:
    value = s.value
    if s.red is Red.MAX:
        nan = ", propagate_nan=tl.PropagateNan.ALL" if value.dtype.kind is Kind.FLOAT else ""
        return f"tl.maximum({total}, {w.expr(value, ndim)}{nan})"
    if isinstance(value, Apply) and value.fn is Fn.MUL and value.dtype == F32:
        a, b = (w.expr(v, ndim) for v in value.args)
        return f"tl.fma({a}, {b}, {total})"
    return f"{total} + {w.expr(value, ndim)}"
