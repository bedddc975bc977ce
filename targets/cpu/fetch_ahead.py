"""The first weights a worker will read in the next phase, fetched before it waits for the others.

At a barrier memory would stand still: the slowest worker still computes, and the next phase starts
with a cache miss. Which bytes come first is read off the next kernel's tile program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Var
from speccc.ir.tile import Buf, For, Kernel, ScaledDot, Share, Stmt, nested
from speccc.targets.cpu import tir
from speccc.targets.cpu.render_expr import Scope, render_scalar
from speccc.targets.cpu.tir import Block, Node

FETCHED = 2048
"""Bytes of each stream: as many lines as a core can have on their way at once."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Weights that a `Share` reads in order: the byte its unit `unit` begins at."""

    blob: Buf
    at: Expr
    unit: Var
    extent: Expr | int


def streams(kernel: Kernel) -> tuple[Stream, ...]:
    """The weight streams of a kernel's first units; none when its first work is not such a dot."""
    found: dict[tuple[Buf, Expr], Stream] = {}
    for share in [s for s in kernel.body if isinstance(s, Share)][:1]:
        for dot, starts in _dots(share.body, {}):
            panel = ex.mul(ex.substitute(dot.panel, starts), dot.w.panel_bytes)
            at = ex.add(ex.substitute(dot.offset, starts), panel)
            found.setdefault((dot.blob, at), Stream(dot.blob, at, share.var, share.extent))
    return tuple(found.values())


def _dots(
    body: tuple[Stmt, ...], starts: Mapping[Var, Expr]
) -> Iterator[tuple[ScaledDot, dict[Var, Expr]]]:
    """Every dot, with the values its loop variables start at."""
    for s in body:
        if isinstance(s, ScaledDot):
            yield s, dict(starts)
        if isinstance(s, For):
            starts = {**starts, s.var: ex.lit(s.lo) if isinstance(s.lo, int) else s.lo}
        for inner in nested(s):
            yield from _dots(inner, starts)


def render_fetch(stream: Stream, scope: Scope, out: Block, first: Callable[[Node], Node]) -> None:
    """Asks for the stream's first lines; `first` is the worker's first unit of so many."""
    inner = scope.child()
    extent = out.bind("units", render_scalar(stream.extent, scope, out))
    inner.variables[stream.unit] = out.bind("first", first(extent))
    place = scope.places[stream.blob]
    at = out.bind("next", place.base + render_scalar(stream.at, inner, out))
    line = tir.loop_var("line")
    step = tir.prefetch(place.buffer, at + line * tir.index(tir.CACHE_LINE))
    out.add(tir.serial(line, tir.index(FETCHED // tir.CACHE_LINE), [step]))
