"""Tile statements -> TensorIR statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from speccc.errors import UnsupportedError
from speccc.ir.expr import Apply, Fn, Var, stride
from speccc.ir.schedule import Schedule
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Map,
    Mem,
    Red,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)
from speccc.ir.types import F32
from speccc.targets.cpu import tir
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.render_expr import (
    Lanes,
    NotVector,
    Place,
    Scope,
    flat_index,
    render_scalar,
)
from speccc.targets.cpu.scaled_dot import render_scaled_dot
from speccc.targets.cpu.tir import Block, Node

UNROLLED = 64
"""Longest reduction that is written out instead of looped over."""

STACK_BYTES = 1024
"""TVM keeps constant-size buffers below this on the stack; larger ones go to the scratch arena."""


@dataclass
class Render:
    """What rendering needs beside the scope: instruction set, worker, scratch arena, choices."""

    isa: Isa
    worker: Node
    workers: Node
    scratch: dict[Buf, Place] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)

    def block(self, body: tuple[Stmt, ...], scope: Scope) -> list[Node]:
        """The statements of a block, in a scope of their own."""
        inner, out = scope.child(), Block()
        for s in body:
            _RENDER[type(s)](self, s, inner, out)
        return out.statements


def on_stack(buf: Buf) -> bool:
    """Whether a TILE buffer is small enough for the stack."""
    count = 1
    for d in buf.shape:
        count *= d if isinstance(d, int) else STACK_BYTES
    return buf.mem is Mem.TILE and count * buf.dtype.nbytes < STACK_BYTES


def _alloc(r: Render, s: Alloc, scope: Scope, out: Block) -> None:
    if not on_stack(s.buf):
        scope.places[s.buf] = r.scratch[s.buf]
        return
    count = 1
    for d in s.buf.shape:
        count *= int(d)  # type: ignore[arg-type]  # on_stack: all dimensions are ints
    buffer = tirx.decl_buffer((count,), tir.type_name(s.buf.dtype), s.buf.name, scope="local")
    out.add(tirx.AllocBuffer(buffer))
    scope.places[s.buf] = Place(buffer, tir.index(0))


def _for(r: Render, s: For, scope: Scope, out: Block) -> None:
    lo = out.bind("lo", render_scalar(s.lo, scope, out))
    hi = render_scalar(s.hi, scope, out)
    _loop(r, s.var, lo, hi, s.body, scope, out)


def _loop(
    r: Render, var: Var, lo: Node, hi: Node, body: tuple[Stmt, ...], scope: Scope, out: Block
) -> None:
    n = tir.loop_var(var.name)
    inner = scope.child()
    inner.variables[var] = lo + n
    out.add(tir.serial(n, hi - lo, r.block(body, inner)))


def _share(r: Render, s: Share, scope: Scope, out: Block) -> None:
    extent = out.bind("units", render_scalar(s.extent, scope, out))
    _DEALS[r.schedule.deal](r, s, extent, scope, out)


def first_unit(deal: str, worker: Node, workers: Node, extent: Node) -> Node:
    """The unit a worker begins with."""
    return worker if deal == "turns" else tirx.truncdiv(worker * extent, workers)


def _runs(r: Render, s: Share, extent: Node, scope: Scope, out: Block) -> None:
    lo = out.bind("first", first_unit("runs", r.worker, r.workers, extent))
    hi = out.bind("last", tirx.truncdiv((r.worker + tir.index(1)) * extent, r.workers))
    _loop(r, s.var, lo, hi, s.body, scope, out)


def _turns(r: Render, s: Share, extent: Node, scope: Scope, out: Block) -> None:
    turn = tir.loop_var("turn")
    inner = scope.child()
    inner.variables[s.var] = turn * r.workers + r.worker
    left = extent - r.worker + r.workers - tir.index(1)
    turns = out.bind("turns", tirx.truncdiv(left, r.workers))
    out.add(tir.serial(turn, turns, r.block(s.body, inner)))


_DEALS = {"runs": _runs, "turns": _turns}


def _row_tiles(r: Render, s: RowTiles, scope: Scope, out: Block) -> None:
    extent = render_scalar(s.extent, scope, out)
    at: Node = tir.index(0)
    widths = sorted((v for v in s.variants if v[0] <= r.schedule.rows), key=lambda v: -v[0])
    for n, (width, body) in enumerate(widths):
        left = out.bind("left", extent - at)
        # After the widest tiles at most one tile of each smaller width is left over.
        inner = scope.child()
        if n == 0:
            count = out.bind("tiles", tirx.truncdiv(left, tir.index(width)))
            tile = tir.loop_var(s.var.name)
            inner.variables[s.var] = tile * tir.index(width)
            out.add(tir.serial(tile, count, r.block(body, inner)))
            at = out.cell("done", count * tir.index(width))
            continue
        inner.variables[s.var] = at
        fits = left >= tir.index(width)
        out.add(tirx.IfThenElse(fits, tir.seq(r.block(body, inner)), None))
        at = out.cell("done", at + tirx.Select(fits, tir.index(width), tir.index(0)))


def _map(r: Render, s: Map, scope: Scope, out: Block) -> None:
    if not s.axes:
        _store_lane(s, scope, out, None, None, 1)
        return
    outer, last = s.axes[:-1], s.axes[-1]
    inner = scope.child()
    loops: list[tuple[Node, Node]] = []
    for axis in outer:
        n = tir.loop_var(axis.var.name)
        loops.append((n, render_scalar(axis.extent, scope, out)))
        inner.variables[axis.var] = n
    body = _lane_loops(s, last, inner)
    for n, extent in reversed(loops):
        body = [tir.serial(n, extent, body)]
    for statement in body:
        out.add(statement)


def _lane_loops(s: Map, axis: Axis, scope: Scope) -> list[Node]:
    """The last axis: full vectors, then what is left over one lane at a time."""
    block = Block()
    extent = block.bind("extent", render_scalar(axis.extent, scope, block))
    lanes = LANES
    if isinstance(axis.extent, int):
        lanes = next(n for n in (16, 8, 4, 1) if axis.extent % n == 0 or n == 1)
        lanes = LANES if axis.extent > LANES and lanes == 1 else lanes
    try:
        vector = _lane_loop(s, axis, scope, lanes, tirx.truncdiv(extent, tir.index(lanes)), None)
    except NotVector:
        lanes, vector = 1, _lane_loop(s, axis, scope, 1, extent, None)
    block.add(vector)
    whole = isinstance(axis.extent, int) and axis.extent % lanes == 0
    if lanes > 1 and not whole:
        rest = block.bind("rest", tirx.truncmod(extent, tir.index(lanes)))
        block.add(_lane_loop(s, axis, scope, 1, rest, extent - rest))
    return block.statements


def _lane_loop(
    s: Map, axis: Axis, scope: Scope, lanes: int, count: Node, first: Node | None
) -> Node:
    n = tir.loop_var(axis.var.name)
    start = n * tir.index(lanes)
    body = Block()
    _store_lane(s, scope, body, axis.var, start if first is None else first + start, lanes)
    return tir.serial(n, count, body.statements)


def _store_lane(
    s: Map, scope: Scope, out: Block, axis: Var | None, start: Node | None, lanes: int
) -> None:
    inner = scope.child()
    if axis is not None and lanes == 1:
        inner.variables[axis] = start
        axis = None
    at = flat_index(s.dst, s.index)
    step = 1 if axis is None else stride(at, axis)
    if not step:
        raise NotVector(s.dst.name)
    view = Lanes(inner, out, axis, start, lanes)
    value = view.render(s.value)
    place = scope.places[s.dst]
    base = out.bind("at", place.base + view.scalar(at))
    out.add(tir.store(place.buffer, base, value, lanes, step))


def _reduce(r: Render, s: Reduce, scope: Scope, out: Block) -> None:
    if isinstance(s.axis.extent, int) and s.axis.extent % LANES == 0 and s.axis.extent <= UNROLLED:
        _reduce_in_registers(s, s.axis.extent, scope, out)
        return
    partial = tirx.decl_buffer((LANES,), tir.type_name(s.value.dtype), "partial", scope="local")
    out.add(tirx.AllocBuffer(partial))
    start = 0.0 if s.red is Red.SUM else float("-inf")
    out.add(tir.store(partial, tir.index(0), tir.const(start, s.value.dtype, LANES), LANES))
    extent = out.bind("extent", render_scalar(s.axis.extent, scope, out))
    full = tirx.truncdiv(extent, tir.index(LANES))
    try:
        out.add(_reduce_loop(s, scope, partial, LANES, full, tir.index(0)))
        rest = out.bind("rest", tirx.truncmod(extent, tir.index(LANES)))
        out.add(_reduce_loop(s, scope, partial, 1, rest, extent - rest))
    except NotVector as e:
        raise UnsupportedError(f"reduction over {s.axis.var.name} reads {e} out of order") from e
    _fold_partials(s, tir.load(partial, tir.index(0), LANES), scope, out)


def _reduce_in_registers(s: Reduce, extent: int, scope: Scope, out: Block) -> None:
    start = 0.0 if s.red is Red.SUM else float("-inf")
    seen = tir.const(start, s.value.dtype, LANES)
    try:
        for at in range(0, extent, LANES):
            view = Lanes(scope, out, s.axis.var, tir.index(at), LANES)
            seen = out.bind("seen", _combine(s, view, seen))
    except NotVector as e:
        raise UnsupportedError(f"reduction over {s.axis.var.name} reads {e} out of order") from e
    _fold_partials(s, seen, scope, out)


def _combine(s: Reduce, view: Lanes, seen: Node) -> Node:
    """The partial results with one more element each."""
    product = isinstance(s.value, Apply) and s.value.fn is Fn.MUL and s.value.dtype == F32
    if s.red is Red.MAX:
        return tirx.max(seen, view.render(s.value))
    if product and isinstance(s.value, Apply):
        a, b = (view.render(x) for x in s.value.args)
        return tir.fma(a, b, seen, view.lanes)
    return seen + view.render(s.value)


def _reduce_loop(
    s: Reduce, scope: Scope, partial: Node, lanes: int, count: Node, first: Node
) -> Node:
    n = tir.loop_var(s.axis.var.name)
    body, inner = Block(), scope.child()
    start = first + n * tir.index(lanes)
    slot = tir.index(0) if lanes > 1 else n
    if lanes == 1:
        inner.variables[s.axis.var] = start
    view = Lanes(inner, body, s.axis.var if lanes > 1 else None, start, lanes)
    value = _combine(s, view, tir.load(partial, slot, lanes))
    body.add(tir.store(partial, slot, value, lanes))
    return tir.serial(n, count, body.statements)


def _fold_partials(s: Reduce, partial: Node, scope: Scope, out: Block) -> None:
    """Takes in the upper half of the lanes until one is left, and stores it."""
    width = LANES
    while width > 1:
        width //= 2
        whole = out.bind("whole", partial)
        low, high = (_lanes(whole, n * width, width) for n in (0, 1))
        partial = low + high if s.red is Red.SUM else tirx.max(low, high)
    place = scope.places[s.dst]
    at = Lanes(scope, out).render(flat_index(s.dst, s.index))
    out.add(tir.store(place.buffer, place.base + at, partial))


def _lanes(vector: Node, first: int, count: int) -> Node:
    picks = [tirx.IntImm("int32", first + n) for n in range(count)]
    return tirx.Shuffle([vector], picks)


def _rows_out(acc: Buf, scope: Scope, out: Block) -> tuple[list[Node], list[Node], list[Node]]:
    """Accumulators as 16-lane buffers of their own (registers): buffers, loads and write-backs."""
    rows, cols = (int(d) for d in acc.shape)  # type: ignore[arg-type]
    place = scope.places[acc]
    buffers, loads, saves = [], [], []
    for n in range(rows * cols // LANES):
        b = tirx.decl_buffer((LANES,), "float32", f"{acc.name}_{n}", scope="local")
        at = place.base + tir.index(n * LANES)
        zero = tir.index(0)
        buffers.append(b)
        loads.append(tirx.AllocBuffer(b))
        loads.append(tir.store(b, zero, tir.load(place.buffer, at, LANES), LANES))
        saves.append(tir.store(place.buffer, at, tir.load(b, zero, LANES), LANES))
    return buffers, loads, saves


def _dot(r: Render, s: Dot, scope: Scope, out: Block) -> None:
    rows, cols = (int(d) for d in s.acc.shape)  # type: ignore[arg-type]
    accs, loads, saves = _rows_out(s.acc, scope, out)
    lo = out.bind("lo", render_scalar(s.lo, scope, out))
    hi = render_scalar(s.hi, scope, out)
    k = tir.loop_var(s.k.name)
    body, inner = Block(), scope.child()
    inner.variables[s.k] = lo + k
    chunks = cols // LANES
    columns = []
    for c in range(chunks):
        view = Lanes(inner, body, s.j, tir.index(c * LANES), LANES)
        columns.append(body.bind("b", view.render(s.b)))
    for i in range(rows):
        inner.variables[s.i] = tir.index(i)
        a = body.bind("a", tir.broadcast(Lanes(inner, body).render(s.a), LANES))
        for c in range(chunks):
            acc = accs[i * chunks + c]
            value = tir.fma(a, columns[c], tir.load(acc, tir.index(0), LANES), LANES)
            body.add(tir.store(acc, tir.index(0), value, LANES))
    for statement in (*loads, tir.serial(k, hi - lo, body.statements), *saves):
        out.add(statement)


def _scaled_dot(r: Render, s: ScaledDot, scope: Scope, out: Block) -> None:
    accs, loads, saves = _rows_out(s.acc, scope, out)
    for statement in loads:
        out.add(statement)
    for statement in render_scaled_dot(s, accs, scope, out, r.isa, r.schedule):
        out.add(statement)
    for statement in saves:
        out.add(statement)


_RENDER: dict[type, Callable[[Render, Any, Scope, Block], None]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: _reduce,
    Dot: _dot,
    ScaledDot: _scaled_dot,
}
