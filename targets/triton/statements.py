"""Statements of block-level kernels as Triton text: loops, maps and reductions.

A tile has one of three forms. In a clipped row tile it is [units * lanes, tokens]; in a loop whose
trips are an axis it is [trips, axes]; elsewhere it is the axes that fit, in loops over the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from speccc.errors import UnsupportedError
from speccc.ir.expr import (
    Const,
    Expr,
    Load,
    LoadBytes,
    Var,
    children,
    variables,
)
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Map,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)
from speccc.targets.triton.dots import dot, enter_lanes, scaled_dot
from speccc.targets.triton.engine import units_of
from speccc.targets.triton.expr import TYPES, Held, Tiled
from speccc.targets.triton.heights import heights, is_fp4
from speccc.targets.triton.reductions import LONG, axis, power, reduce
from speccc.targets.triton.registers import accesses, lane_extent, lane_extents, row_axes
from speccc.targets.triton.writer import Outer, Rows, Wide, Writer

TILE = 1024
"""Most elements of a tile of a `Map`."""


def block(w: Writer, body: tuple[Stmt, ...]) -> None:
    """The statements in order. UnsupportedError names what has no form."""
    for n, s in enumerate(body):
        if isinstance(s, Alloc):
            _alloc(w, s, body[n + 1 :])
            continue
        emit = _EMIT.get(type(s))
        if emit is None:
            raise UnsupportedError(f"no form of {type(s).__name__}", where="triton")
        emit(w, s)


def _alloc(w: Writer, s: Alloc, rest: tuple[Stmt, ...]) -> None:
    """Memory was dealt out at the top; a tensor must exist before a loop changes it."""
    if s.buf not in w.choices.held or s.buf in w.choices.private:
        return
    w.held[s.buf] = held = Held(w.name(s.buf.name), (0, 1) if w.rows else ())
    first = next((t for t in rest if any(_touches(u, s.buf) for u in w.choices.run((t,)))), None)
    if not (isinstance(first, (Map, Reduce)) and first.dst is s.buf):
        w.put(f"{held.text} = {_full(w, s.buf, '0')}")


def _touches(s: Stmt, buf: Buf) -> bool:
    return getattr(s, "acc", None) is buf or any(b is buf for b, _ in accesses(s))


def _full(w: Writer, buf: Buf, value: str) -> str:
    """A constant as the tensor a buffer is held in."""
    dtype = TYPES[buf.dtype.name]
    if w.rows is not None:
        size = (w.wide.count if w.wide else 1) * power(int(buf.shape[1]))  # type: ignore[arg-type]
        return f"tl.full(({size}, {w.shape.tokens}), {value}, {dtype})"
    if w.outer is not None:
        return f"tl.full(({w.outer.size},), {value}, {dtype})"
    return f"tl.cast({value}, {dtype})"


def _for(w: Writer, s: For) -> None:
    if id(s) in w.choices.parallel:
        _parallel(w, s)
        return
    w.barrier(w.reads(s.lo, s.hi), ())
    w.env[s.var] = w.name(s.var.name)
    with w.loop(f"for {w.env[s.var]} in range({w.expr(s.lo)}, {w.expr(s.hi)}):", s.body):
        block(w, s.body)


def _parallel(w: Writer, s: For) -> None:
    """Trips as dimension 0 of every tile."""
    inner = max(_elements(t) for t in s.body)
    extent = int(s.hi)  # type: ignore[arg-type]
    size = min(power(extent), max(1, TILE // inner))
    own = {t.dst for t in s.body if isinstance(t, (Map, Reduce))} & w.choices.private
    for buf in own:
        w.held[buf] = Held(w.name(buf.name), (0,))
    text, depth = f"tl.arange(0, {size})", w.depth
    if extent > size:
        first = w.name(f"{s.var.name}_first")
        w.put(f"for {first} in range(0, {extent}, {size}):")
        w.depth += 1
        text = f"{first} + {text}"
    name = w.let(s.var.name, text)
    live = None if extent % size == 0 else f"({name} < {extent})"
    w.env[s.var] = Tiled(name, 0, live)
    w.outer = Outer(s.var, size)
    block(w, s.body)
    w.outer, w.depth = None, depth


def _elements(s: Stmt) -> int:
    axes = s.axes if isinstance(s, Map) else ()
    count = LANES if isinstance(s, Reduce) else 1
    for a in axes:
        count *= power(int(a.extent))  # type: ignore[arg-type]
    return count


def _share(w: Writer, s: Share) -> None:
    w.barrier(w.reads(s.extent), ())
    tiles = _told_apart(w, s)
    if tiles is None:
        _units(w, s)
        return
    for size in _each_height(w, tiles):
        w.chosen = (tiles, size)
        _units(w, s)
    w.chosen = None


def _told_apart(w: Writer, s: Share) -> RowTiles | None:
    """The row tiles whose heights are told apart outside the loop over units, where they can be."""
    tiles = s.body[0]
    if not w.shape.amd or len(s.body) > 1 or not isinstance(tiles, RowTiles):
        return None
    alike = id(tiles) in w.choices.clips and s.var not in variables(tiles.extent)
    return tiles if alike and not w.reads(tiles.extent) else None


def _units(w: Writer, s: Share) -> None:
    """The loop over units, of one or of several at a time."""
    count, extent, unit = units_at_once(w, s), w.expr(s.extent), w.name(s.var.name)
    if count == 1:
        w.env[s.var] = unit
        with w.loop(f"for {unit} in range(worker, {extent}, workers):", s.body):
            block(w, s.body)
        return
    whole = isinstance(s.extent, int) and s.extent % count == 0
    with w.loop(f"for {unit} in range(worker, {chunks(w, s)}, workers):", s.body):
        inside = [a.buf for a in w.choices.run(s.body) if isinstance(a, Alloc)]
        sliced = [(b, w.bases[b], _size(w, b)) for b in inside if b in w.bases]
        w.wide = Wide(s.var, count, unit, None if whole else extent, tuple(sliced))
        block(w, s.body)
        w.wide = None
        w.bases.update({b: base for b, base, _ in sliced})


def _size(w: Writer, buf: Buf) -> int:
    size = w.tall.get(buf, 1)
    for d in buf.shape[1:] if buf in w.tall else buf.shape:
        size *= int(d)  # type: ignore[arg-type]
    return size


def units_at_once(w: Writer, s: Share) -> int:
    """How many units of a share make a tile: as many as leave work for `fill` workers."""
    if id(s) not in w.choices.wide or not isinstance(s.extent, int):
        return 1
    count, fp4 = w.shape.units, w.shape.fp4
    if fp4 and any(isinstance(t, ScaledDot) and is_fp4(t) for t in w.choices.run(s.body)):
        # All that its instruction takes, or what int8 takes as elsewhere.
        wide = fp4.lanes // LANES
        count = max(count, wide) if s.extent >= wide * w.shape.fill else count
    most = [n for t in w.choices.run(s.body) if (n := units_of(t, w.shape, s.var))]
    count = min(count, *most) if most else count
    while count > 1 and s.extent < count * w.shape.fill:
        count //= 2
    return count


def chunks(w: Writer, s: Share) -> str:
    """How many tiles of units a share has."""
    count = units_at_once(w, s)
    if isinstance(s.extent, int):
        return str(-(-s.extent // count))
    return w.expr(s.extent)


def _row_tiles(w: Writer, s: RowTiles) -> None:
    if id(s) in w.choices.clips:
        _clipped(w, s)
        return
    w.barrier(w.reads(s.extent), ())
    lo, extent = "0", w.expr(s.extent)
    for width, body in sorted(w.choices.variants(s), key=lambda v: -v[0]):
        end = w.let(f"{s.var.name}_end", f"{lo} + ({extent} - {lo}) // {width} * {width}")
        w.env[s.var] = w.name(s.var.name)
        with w.loop(f"for {w.env[s.var]} in range({lo}, {end}, {width}):", body):
            block(w, body)
        lo = end


def _clipped(w: Writer, s: RowTiles) -> None:
    """Masked tiles of one body."""
    w.barrier(w.reads(s.extent), ())
    extent, sizes = w.expr(s.extent), _each_height(w, s)
    for _ in (w.chosen[1],) if w.chosen and w.chosen[0] is s else sizes:
        _tiles_of(w, s, extent)


def _each_height(w: Writer, s: RowTiles) -> Iterator[int]:
    """Heights that tiles are written for, each in its branch: the least that does for all rows."""
    extent, shape = w.expr(s.extent), w.shape
    sizes = heights(s, shape)
    with w.branches() as branch:
        for size in sizes:
            if len(sizes) > 1:
                branch(None if size == sizes[-1] else f"{extent} <= {size}")
            w.shape = replace(shape, tokens=size)
            yield size
    w.shape = shape


def _tiles_of(w: Writer, s: RowTiles, extent: str) -> None:
    """Tiles of `w.shape.tokens` rows; those past the end are masked."""
    clip, size = w.choices.clips[id(s)], w.shape.tokens
    row = w.name(s.var.name)
    w.env[s.var] = row
    with w.loop(f"for {row} in range(0, {extent}, {size}):", clip.body):
        token = w.let("token", f"tl.arange(0, {size})")
        live = w.let("live", f"{token} < {extent} - {row}")
        tokens = near = Tiled(token, 1, live)
        if w.shape.amd:
            near = Tiled(w.let("near", f"tl.minimum({token}, {extent} - {row} - 1)"), 1)
        w.rows = Rows(clip, tokens, near, {})
        for width in lane_extents(clip):
            enter_lanes(w, width)
        block(w, clip.body)
        w.rows = None


def _map(w: Writer, s: Map) -> None:
    loads = w.reads(s.value, *s.index)
    w.barrier(loads, {s.dst})
    depth = w.depth
    ndim, shape = _tile(w, s)
    value = _valued(w, s, ndim, shape)
    if s.dst in w.choices.held:
        w.put(f"{w.held[s.dst].text} = {value}")
    else:
        if s.dst in loads:
            # Threads that hold copies of an element must all have read it before one stores it.
            value = w.let("value", value)
            w.put("tl.debug_barrier()")
        unit = {w.wide.var} if w.wide else set()
        trips = {w.outer.var} if w.outer else set()
        w.store(s.dst, s.index, value, ndim, {a.var for a in s.axes} | unit | trips)
    w.depth = depth


def _valued(w: Writer, s: Map, ndim: int, shape: tuple[int, ...]) -> str:
    """The value's text; as a whole tensor where it is held."""
    if s.dst not in w.choices.held:
        return w.expr(s.value, ndim)
    if isinstance(s.value, Const):
        return _full(w, s.dst, w.expr(s.value))
    value = w.expr(s.value, ndim)
    if len(_dims(w, s.value)) < len(shape):
        return f"tl.broadcast_to({value}, {shape})"
    return value


def _dims(w: Writer, e: Expr) -> set[int]:
    """The dimensions of the tile at hand along which a value differs."""
    if isinstance(e, Load) and e.buf in w.held:
        return set(w.held[e.buf].dims)
    if isinstance(e, Var):
        known = w.env[e]
        return {known.dim} if isinstance(known, Tiled) else set()
    own: set[int] = set()
    if isinstance(e, (Load, LoadBytes)) and w.wide and any(b is e.buf for b, _, _ in w.wide.slices):
        own = {0}
    return own.union(*(_dims(w, c) for c in children(e)))


def _tile(w: Writer, s: Map) -> tuple[int, tuple[int, ...]]:
    """Names the axes in the form at hand; the number of dimensions and their sizes."""
    if w.rows is not None:
        rows = row_axes(s, w.rows.clip)
        lane, size = enter_lanes(w, lane_extent(s, w.rows.clip))
        for a in s.axes:
            w.env[a.var] = w.rows.tokens if a.var in rows else lane
        return 2, (size, w.shape.tokens)
    if w.outer is not None:
        for n, a in enumerate(s.axes, 1):
            axis(w, a, n, power(int(a.extent)))  # type: ignore[arg-type]
        return 1 + len(s.axes), (w.outer.size,)
    return _looped(w, s.axes), ()


def _looped(w: Writer, axes: tuple[Axis, ...]) -> int:
    """Opens loops over the axes that do not fit a tile; the dimensions of the rest."""
    sizes = [min(power(a.extent), TILE) if isinstance(a.extent, int) else LONG for a in axes]
    tiled = len(axes) - 1
    room = TILE // sizes[-1] if axes else 0
    while tiled > 0 and isinstance(axes[tiled - 1].extent, int) and sizes[tiled - 1] <= room:
        tiled -= 1
        room //= sizes[tiled]
    tiled = max(tiled, 0)
    for a in axes[:tiled]:
        w.env[a.var] = w.name(a.var.name)
        w.put(f"for {w.env[a.var]} in range(0, {w.expr(a.extent)}):")
        w.depth += 1
    for n, a in enumerate(axes[tiled:]):
        axis(w, a, n, sizes[tiled + n])
    return len(axes) - tiled


_EMIT: dict[type, Callable[[Writer, Any], None]] = {
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: reduce,
    Dot: dot,
    ScaledDot: scaled_dot,
}
