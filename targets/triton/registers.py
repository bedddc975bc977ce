"""Which of a kernel's small tiles can be tensors in registers, and which loops can be tensor axes.

Triton has no way to pick an element out of a tensor, so a tile is kept in registers only if all
statements take it whole: one number, or the accumulator of row tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from speccc.ir import expr as ex
from speccc.ir.expr import Const, Expr, Load, LoadBytes, Var, children, substitute, variables
from speccc.ir.fragment import loads
from speccc.ir.tile import (
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Map,
    Mem,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
    nested,
    walk,
)
from speccc.passes.clip_rows import RowClip, clip_rows


@dataclass(frozen=True)
class Choices:
    """How a kernel's statements are run; statements are known by their `id`.

    `clips` are the row tiles that run as one masked tile, `held` the tiles in registers, `wide` the
    shares whose units are taken several at a time, `parallel` the loops whose trips are an axis and
    `private` the numbers that each such trip has of its own.
    """

    clips: Mapping[int, RowClip]
    held: frozenset[Buf]
    wide: frozenset[int]
    parallel: frozenset[int]
    private: frozenset[Buf]

    def variants(self, s: RowTiles) -> tuple[tuple[int, tuple[Stmt, ...]], ...]:
        """The bodies that are written out: one if it can be, the narrowest if it does for all."""
        if id(s) in self.clips:
            clip = self.clips[id(s)]
            return ((clip.width, clip.body),)
        return tuple(v for v in s.variants if v[0] == 1) or s.variants

    def run(self, body: tuple[Stmt, ...]) -> Iterator[Stmt]:
        """Every statement that is written out, outer before inner."""
        for s in body:
            yield s
            inner = self.variants(s) if isinstance(s, RowTiles) else ((0, b) for b in nested(s))
            for _, block in inner:
                yield from self.run(block)


def choose(body: tuple[Stmt, ...]) -> Choices:
    """What can be done with the statements of a kernel."""
    tiles = [s for s in walk(body) if isinstance(s, RowTiles)]
    clips = {id(s): c for s in tiles if (c := clip_of(s)) is not None}
    plain = Choices(clips, frozenset(), frozenset(), frozenset(), frozenset())
    stmts = list(plain.run(body))
    made = [s.buf for s in stmts if isinstance(s, Alloc) and s.buf.mem is Mem.TILE]
    clipped = {id(s) for c in clips.values() for s in walk(c.body)}
    held = frozenset(b for b in made if _holds(b, stmts, clips, clipped))
    wide = frozenset(id(s) for s in stmts if isinstance(s, Share) and _widens(s, clips))
    loops = [s for s in stmts if isinstance(s, For) and _independent(s, stmts, held)]
    own = {t.dst for s in loops for t in s.body if isinstance(t, (Map, Reduce))}
    private = frozenset(b for b in own if is_number(b))
    return Choices(clips, held, wide, frozenset(map(id, loops)), private)


def clip_of(s: RowTiles) -> RowClip | None:
    """The clip, if every map of its body has at most one axis that does not count rows."""
    clip = clip_rows(s, 1 << 30)
    if clip is None or any(isinstance(t, (Share, RowTiles)) for t in walk(clip.body)):
        return None
    maps = [t for t in walk(clip.body) if isinstance(t, Map)]
    fixed = all(isinstance(a.extent, int) for t in maps for a in t.axes)
    return clip if fixed and all(len(row_axes(t, clip)) >= len(t.axes) - 1 for t in maps) else None


def row_axes(s: Map, clip: RowClip) -> frozenset[Var]:
    """The axes of a map that count rows."""
    mark = Var("live")
    return frozenset(a.var for a in clip.axes(s, mark) if a.extent is mark)


def accesses(s: Stmt) -> Iterator[tuple[Buf, tuple[Expr, ...]]]:
    """The elements a statement itself touches by index."""
    if isinstance(s, (Map, Reduce)):
        yield s.dst, s.index
    for e in expressions(s):
        for read in loads(e):
            yield read.buf, read.index if isinstance(read, Load) else (read.at,)


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """Every expression of a statement, those of nested ones left out."""
    if isinstance(s, Map):
        found: tuple[Expr | int, ...] = (*s.index, s.value, *(a.extent for a in s.axes))
    elif isinstance(s, Reduce):
        found = (*s.index, s.value, s.axis.extent)
    elif isinstance(s, Dot):
        found = (s.a, s.b, s.lo, s.hi)
    elif isinstance(s, ScaledDot):
        found = (s.offset, s.panel, s.x.row)
    elif isinstance(s, For):
        found = (s.lo, s.hi)
    else:
        found = (s.extent,) if isinstance(s, (Share, RowTiles)) else ()
    return tuple(e for e in found if not isinstance(e, int))


def _holds(buf: Buf, stmts: list[Stmt], clips: Mapping[int, RowClip], clipped: set[int]) -> bool:
    touching = [s for s in stmts if any(b is buf for b, _ in accesses(s))]
    if all(d == 1 for d in buf.shape):
        whole = all(isinstance(s, Reduce) or not s.axes for s in touching if _writes(s, buf))
        return whole and not any(id(s) in clipped for s in touching)
    home = next((c for c in clips.values() if buf in c.tiles), None)
    if home is None or len(buf.shape) != 2:
        return False
    return all(isinstance(s, Map) and _whole(s, buf, home) for s in touching)


def _writes(s: Stmt, buf: Buf) -> TypeGuard[Map | Reduce]:
    return isinstance(s, (Map, Reduce)) and s.dst is buf


def _whole(s: Map, buf: Buf, clip: RowClip) -> bool:
    """Whether a map takes the tile as [its row axis, its other axis], all of it."""
    rows = row_axes(s, clip)
    others = [a for a in s.axes if a.var not in rows]
    if len(rows) != 1 or len(others) != 1 or others[0].extent != buf.shape[1]:
        return False
    (row,) = rows
    return all(i == (row, others[0].var) for b, i in accesses(s) if b is buf)


_WIDE = (Alloc, Map, Dot, ScaledDot, For)


def _widens(s: Share, clips: Mapping[int, RowClip]) -> bool:
    """Whether the units differ in nothing but where they read and write."""
    if any(not isinstance(t, RowTiles) or id(t) not in clips for t in s.body):
        return False
    inner = [t for r in s.body for t in walk(clips[id(r)].body)]
    if any(not isinstance(t, _WIDE) for t in inner):
        return False
    kept = [t.buf.mem if isinstance(t, Alloc) else Mem.TILE for t in inner]
    kept += [t.dst.mem for t in inner if isinstance(t, Map)]
    bounds = [
        e for t in (*s.body, *inner) if isinstance(t, (For, RowTiles)) for e in expressions(t)
    ]
    bounds += [
        e for t in inner if isinstance(t, Dot) for e in (t.lo, t.hi) if not isinstance(e, int)
    ]
    return Mem.SCRATCH not in kept and not any(s.var in variables(e) for e in bounds)


def lane_extent(s: Map, clip: RowClip) -> int:
    """The extent of a map's axis that does not count rows; 1 without one."""
    rows = row_axes(s, clip)
    other = [a.extent for a in s.axes if a.var not in rows]
    if not other:
        return 1
    if not isinstance(other[0], int):
        raise TypeError("an axis of symbolic extent in a row tile")
    return other[0]


def lane_extents(clip: RowClip) -> tuple[int, ...]:
    """Every extent that lanes have in a clipped tile."""
    maps = {lane_extent(s, clip) for s in walk(clip.body) if isinstance(s, Map)}
    accs = {s.acc.shape[1] for s in walk(clip.body) if isinstance(s, (Dot, ScaledDot))}
    return tuple(sorted(maps | {n for n in accs if isinstance(n, int)}))


def _independent(s: For, stmts: list[Stmt], held: frozenset[Buf]) -> bool:
    """Whether trips share no element that one of them writes, single numbers aside."""
    if not (s.lo == 0 and isinstance(s.hi, int)):
        return False
    if any(not isinstance(t, (Map, Reduce)) for t in s.body):
        return False
    if any(not isinstance(a.extent, int) for t in s.body for a in _axes(t)):
        return False
    written = {t.dst for t in s.body if isinstance(t, (Map, Reduce))}
    return all(
        b in held and _private(b, s, stmts) if is_number(b) else _apart(b, s) for b in written
    )


def is_number(buf: Buf) -> bool:
    """Whether a buffer is one number of a worker."""
    return buf.mem is Mem.TILE and all(d == 1 for d in buf.shape)


def _axes(s: Stmt) -> tuple[Axis, ...]:
    return s.axes if isinstance(s, Map) else (s.axis,) if isinstance(s, Reduce) else ()


def _private(buf: Buf, s: For, stmts: list[Stmt]) -> bool:
    """Whether each trip writes the number before it reads it, and nobody else reads it."""
    users = [t for t in stmts if any(b is buf for b, _ in accesses(t))]
    own = [t for t in s.body if any(b is buf for b, _ in accesses(t))]
    early = any(r.buf is buf for e in expressions(own[0]) for r in loads(e))
    return _writes(own[0], buf) and not early and len(users) == len(own)


def _apart(buf: Buf, s: For) -> bool:
    """Whether some index keeps the elements of different trips apart."""
    seen = [(i, t) for t in s.body for b, i in accesses(t) if b is buf]
    return any(
        all(_own_span(i[p], s.var, _extents(t), seen[0][0][p]) for i, t in seen)
        and not any(s.var in variables(e) for i, _ in seen for n, e in enumerate(i) if n != p)
        for p in range(len(buf.shape))
    )


def _extents(s: Stmt) -> Mapping[Var, int]:
    return {a.var: a.extent for a in _axes(s) if isinstance(a.extent, int)}


def _own_span(e: Expr, var: Var, extents: Mapping[Var, int], like: Expr) -> bool:
    """e = c * var + (an axis shorter than c), with the c of `like`."""
    step = ex.stride(e, var)
    if not step or step < 1 or step != ex.stride(like, var):
        return False
    rest = substitute(e, {var: ex.lit(0)})
    if isinstance(rest, Const):
        return 0 <= rest.value < step
    return isinstance(rest, Var) and extents.get(rest, step + 1) <= step


def memory_reads(e: Expr, held: frozenset[Buf]) -> set[Buf]:
    """The buffers in memory an expression reads."""
    found = {e.buf} if isinstance(e, (Load, LoadBytes)) and e.buf not in held else set()
    return found.union(*(memory_reads(c, held) for c in children(e)))
