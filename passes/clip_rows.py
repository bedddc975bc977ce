"""Row tiles of many heights -> tiles of one height, of which the last may be partly empty.

Registers want a body for every height; a matrix instruction takes a whole tile whatever is in it,
so one body and a count of live rows serve better. `clip_rows` finds out whether a `RowTiles` can
be run that way: every access to a row must go through a map's row axis, which is then cut short.
Such tiles may be of any height: taller ones read what all rows share less often.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from speccc.ir.expr import Expr, Load, Var, variables
from speccc.ir.fragment import loads
from speccc.ir.tile import Alloc, Axis, Buf, Dot, For, Map, Mem, RowTiles, ScaledDot, Stmt, walk


@dataclass(frozen=True, slots=True)
class RowClip:
    """The body of tiles of `width` rows starting at `var`; `tiles` hold one row a row."""

    var: Var
    width: int
    body: tuple[Stmt, ...]
    tiles: frozenset[Buf]

    @property
    def allocs(self) -> tuple[Alloc, ...]:
        """Where the tiles are made, in order."""
        made = (s for s in walk(self.body) if isinstance(s, Alloc))
        return tuple(s for s in made if s.buf in self.tiles)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all tiles."""
        total = 0
        for s in self.allocs:
            elements = math.prod(n for n in s.buf.shape[1:] if isinstance(n, int))
            total += elements * s.buf.dtype.nbytes
        return total

    def axes(self, s: Map, live: Expr) -> tuple[Axis, ...]:
        """The map's axes, those of rows cut to `live`."""
        rows = _row_axes(s, self.var, self.tiles)
        return tuple(Axis(a.var, live) if a.var in rows else a for a in s.axes)


def clip_rows(s: RowTiles, most: int) -> RowClip | None:
    """The tallest body of at most `most` rows, or None when its rows cannot be cut."""
    fitting = [v for v in s.variants if v[0] <= most]
    if not fitting:
        return None
    width, body = max(fitting, key=lambda v: v[0])
    made = (t.buf for t in walk(body) if isinstance(t, Alloc))
    tiles = frozenset(b for b in made if b.mem is Mem.TILE and b.shape[0] == width)
    clip = RowClip(s.var, width, body, tiles)
    return clip if all(_fits(t, clip) for t in walk(body)) else None


def _row_axes(s: Map, var: Var, tiles: frozenset[Buf]) -> frozenset[Var]:
    """Axes that count rows: first index of a tile, or added to the tile's first row."""
    own = frozenset(a.var for a in s.axes)
    out: set[Var] = set()
    for buf, index in _indices(s):
        if buf in tiles:
            out |= variables(index[0]) & own
        for i in index:
            seen = variables(i)
            out |= seen & own if var in seen and len(seen & own) == 1 else set()
    return frozenset(out)


def _indices(s: Map) -> Iterable[tuple[Buf, tuple[Expr, ...]]]:
    yield s.dst, s.index
    for e in (*s.index, s.value):
        for read in loads(e):
            yield read.buf, read.index if isinstance(read, Load) else (read.at,)


def _fits(s: Stmt, clip: RowClip) -> bool:
    if isinstance(s, (Alloc, ScaledDot)):
        return True
    if isinstance(s, For):
        bounds = [e for e in (s.lo, s.hi) if not isinstance(e, int)]
        return not any(clip.var in variables(e) or loads(e) for e in bounds)
    if isinstance(s, Dot):
        ends = [e for e in (s.lo, s.hi) if not isinstance(e, int)]
        inside = [r.buf for e in (s.a, s.b, *ends) for r in loads(e)]
        free = not any(clip.var in variables(e) for e in (s.b, *ends))
        return s.acc in clip.tiles and free and not clip.tiles & set(inside)
    return isinstance(s, Map) and _map_fits(s, clip)


def _map_fits(s: Map, clip: RowClip) -> bool:
    rows = _row_axes(s, clip.var, clip.tiles)
    if any(a.extent != clip.width for a in s.axes if a.var in rows):
        return False
    for buf, index in _indices(s):
        if buf in clip.tiles and index[0] not in rows:
            return False
        if any(clip.var in variables(i) and not variables(i) & rows for i in index):
            return False
    return not any(clip.var in variables(a.extent) for a in s.axes if not isinstance(a.extent, int))
