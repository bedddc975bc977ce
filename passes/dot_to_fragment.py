"""Block level -> fragment level: what one worker did alone, a workgroup of subgroups does together.

`ScaledDot` becomes matrix instructions of one shape; maps, reductions and float dots are dealt out
to the invocations with every order kept, so the result is bit-identical. Only a `Dot` that an
engine may sum takes the device's order, where its engine has that type. TILE buffers move to
SHARED; a worker's SCRATCH becomes its workgroup's. Barriers come last, by data flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Const, Expr, Load, LoadBytes, Var
from speccc.ir.fragment import FoldRows, FragmentKernel, LaneFold, LaneMap, MmaShape, Workgroup
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Mem,
    QuantRows,
    Red,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
    walk,
)
from speccc.ir.types import DType
from speccc.passes.clip_rows import RowClip, clip_rows
from speccc.passes.float_dot_to_fragment import HELD_AS, FloatTiles, lower_float_dot
from speccc.passes.insert_barriers import insert_barriers
from speccc.passes.reduce_to_fragment import (
    folds_side_by_side,
    independent,
    lower_reduce,
    lower_reduces,
)
from speccc.passes.scaled_dot_to_fragment import Staging, lower_scaled_dot
from speccc.passes.scaled_dot_to_lanes import (
    LaneTiles,
    lane_split,
    lower_scaled_dot_to_lanes,
)

LANE_ROWS = 8
"""Rows of a tile where there is no matrix instruction: the block level's tallest."""
MATRIX_ROWS = 32
"""Rows of a tile for a matrix instruction, at most: weights are unpacked once for all of them."""
TILE_BYTES = 6144
"""Of SHARED memory for the tiles of a row tile, beside what the products stage."""
HELD_ROWS, LEAST_PARTS = 8, 4
"""Rows of a float dot that an invocation holds in registers; and into how many parts its rows are
dealt out, at least: between them what a chain of tokens and the heads of a KV head make."""


@dataclass(frozen=True, slots=True)
class DotToFragment:
    """The pass: the matrix instruction to use, or None, and the workgroup's size.

    `floats` are those for floats, at most one for a type. Tiles of at most `few` rows take the dots
    of invocations, which give the same bits. They need `Fn.DOT4`; by default all tiles take the
    instruction. `split` invocations of a subgroup share such a dot: by default as many as let it
    read side by side. UnsupportedError from `run` names a shape that cannot serve, or a statement
    with no lowering.
    """

    shape: MmaShape | None
    subgroup: int
    subgroups: int = 2
    few: int = 0
    split: int | None = None
    floats: tuple[MmaShape, ...] = ()

    def engine(self, s: Stmt) -> MmaShape | None:
        """The instruction that sums a float dot, or None: it has one order."""
        held = None if not isinstance(s, Dot) or s.engine is None else HELD_AS[s.engine]
        return next((f for f in self.floats if f.a == held), None)

    def height(self, s: RowTiles, rows: int) -> int:
        """How many of `rows` a row tile takes at once; where that differs, at most this many."""
        clip = clip_rows(s, LANE_ROWS)
        return 1 if clip is None else min(rows, self.tall(clip, clip.row_bytes))

    def tall(self, clip: RowClip, row_bytes: int) -> int:
        """The height of tiles that can be cut, where the widest of a kernel have such rows."""
        kinds = {type(t) for t in walk(clip.body)}
        most = TILE_BYTES // max(1, row_bytes)
        floats = [min(f.m, f.n) for f in map(self.engine, walk(clip.body)) if f is not None]
        if ScaledDot in kinds and self.shape is not None:
            tokens = max(Staging.of(self.shape).tokens, *floats, 1)
            return max(1, min(MATRIX_ROWS, most) // tokens) * tokens
        if ScaledDot in kinds:
            return LANE_ROWS
        if floats:
            return max(1, min(MATRIX_ROWS, most) // max(floats)) * max(floats)
        if Dot in kinds:
            return max(LANE_ROWS, min(HELD_ROWS * self.parts, most))
        return LANE_ROWS

    @property
    def lanes_share(self) -> bool:
        """Whether invocations of a subgroup add up what they have."""
        return (self.split or lane_split(self.subgroup)) > 1

    @property
    def parts(self) -> int:
        """Invocations that share the rows of a column of a float dot."""
        return max(LEAST_PARTS, self.subgroup * self.subgroups // LANES)

    def run(self, kernel: Kernel) -> FragmentKernel:
        """The kernel at fragment level."""
        group = Workgroup(self.subgroup, self.subgroups)
        body = _Lowering(self, group).kernel_body(kernel.body)
        return FragmentKernel(kernel.name, kernel.bufs, kernel.scalars, group, body)


class _Lowering:
    """State of one kernel: where TILE buffers went, and the tiles staged for the instruction."""

    def __init__(self, options: DotToFragment, group: Workgroup) -> None:
        self.options, self.group = options, group
        self.shape, self.few = options.shape, options.few
        self.lanes: dict[int, LaneTiles] = {}
        self.moved: dict[Buf, Buf] = {}
        self.staging: Staging | None = None
        self.floats: dict[tuple[MmaShape, int], FloatTiles] = {}
        self.partials: dict[DType, Buf] = {}
        self.values: dict[Var, Expr] = {}
        self.clip: RowClip | None = None
        self.live: Expr | None = None
        self.row_bytes = 0
        self.places: dict[tuple[tuple[Expr | int, ...], DType], list[Buf]] = {}
        # Tiles that hold nothing but zeros where the statement at hand begins.
        self.zeroed: set[Buf] = set()

    def kernel_body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        clips = (clip_rows(s, LANE_ROWS) for s in walk(body) if isinstance(s, RowTiles))
        self.row_bytes = max((c.row_bytes for c in clips if c is not None), default=0)
        lowered = self.block(body)
        made = (self.staging, *self.lanes.values(), *self.floats.values())
        tiles = [t for t in made if t is not None]
        allocs = (*(a for t in tiles for a in t.allocs()), *map(Alloc, self.partials.values()))
        return insert_barriers((*allocs, *lowered))

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        self.zeroed.clear()  # a loop's body runs again after itself
        for s in body:
            if type(s) not in _LOWER:
                raise UnsupportedError(f"{type(s).__name__} has no lowering to fragment level")
            out += _LOWER[type(s)](self, s)
            if not isinstance(s, (Alloc, Map)):
                self.zeroed.clear()
        return tuple(out)

    def buf(self, buf: Buf) -> Buf:
        """The buffer that holds it at this level."""
        if buf.mem is not Mem.TILE:
            return buf
        if buf not in self.moved:
            self.moved[buf] = Buf(buf.name, buf.shape, buf.dtype, Mem.SHARED)
        return self.moved[buf]

    def place(self, allocs: Iterable[Alloc], height: int | None = None) -> None:
        """Tiles, of that height if one is given, where those of another row tile lay."""
        free = {key: list(bufs) for key, bufs in self.places.items()}
        for s in allocs:
            shape = s.buf.shape if height is None else (height, *s.buf.shape[1:])
            at = free.setdefault((shape, s.buf.dtype), [])
            if not at:
                at.append(Buf(s.buf.name, shape, s.buf.dtype, Mem.SHARED))
                self.places.setdefault((shape, s.buf.dtype), []).append(at[0])
            self.moved[s.buf] = at.pop(0)

    def expr(self, e: Expr) -> Expr:
        """The expression over this level's buffers."""
        if isinstance(e, Var):
            return self.values.get(e, e)
        if isinstance(e, Load):
            return Load(self.buf(e.buf), self.index(e.index))
        if isinstance(e, LoadBytes):
            return LoadBytes(self.buf(e.buf), self.expr(e.at), e.dtype)
        return Apply(e.fn, self.index(e.args), e.dtype) if isinstance(e, Apply) else e

    def index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.expr(i) for i in index)

    def bound(self, e: Expr | int) -> Expr | int:
        return e if isinstance(e, int) else self.expr(e)

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.var, self.bound(a.extent)) for a in axes)


def _alloc(low: _Lowering, s: Alloc) -> list[Stmt]:
    return [Alloc(low.buf(s.buf))]


def _for(low: _Lowering, s: For) -> list[Stmt]:
    one, count = independent(s) if low.clip is None else None, low.bound(s.hi)
    if isinstance(one, Map):
        return _map(low, Map(one.dst, one.index, (Axis(s.var, s.hi), *one.axes), one.value))
    if isinstance(one, Reduce):
        partial = low.partials.setdefault(one.value.dtype, folds_side_by_side(one.value.dtype))
        return lower_reduces(_moved(low, one), s.var, count, partial)
    return [For(s.var, low.bound(s.lo), count, low.block(s.body))]


def _share(low: _Lowering, s: Share) -> list[Stmt]:
    return [Share(s.var, low.bound(s.extent), low.block(s.body))]


def _row_tiles(low: _Lowering, s: RowTiles) -> list[Stmt]:
    """Tiles of one height, taller than any body's, with a count of live rows; else every body."""
    clip = clip_rows(s, LANE_ROWS)
    if clip is None or low.clip is not None:
        few = _enough(s)
        if low.clip is None:
            for _, body in few:
                low.place(t for t in walk(body) if isinstance(t, Alloc) and t.buf.mem is Mem.TILE)
        variants = tuple((width, low.block(body)) for width, body in few)
        return [RowTiles(s.var, low.expr(s.extent), variants)]
    extent, tile, height = (
        low.expr(s.extent),
        Var(f"{s.var.name}_tile"),
        low.options.tall(clip, low.row_bytes),
    )
    low.place(clip.allocs, height)
    first = ex.mul(tile, height)
    low.values[s.var], low.clip = first, clip
    low.live = ex.minimum(ex.sub(extent, first), height)
    body = low.block(clip.body)
    low.clip = low.live = None
    return [For(tile, 0, ex.idiv(ex.add(extent, height - 1), height), body)]


def _enough(s: RowTiles) -> tuple[tuple[int, tuple[Stmt, ...]], ...]:
    """Heights that are powers of two reach every extent; each costs SHARED memory of its own."""
    few = tuple(v for v in s.variants if v[0] & (v[0] - 1) == 0)
    return few if any(width == 1 for width, _ in few) else s.variants


def _map(low: _Lowering, s: Map) -> list[Stmt]:
    axes = low.axes(s.axes)
    if low.clip is not None and low.live is not None:
        axes = low.clip.axes(Map(s.dst, s.index, axes, s.value), low.live)
    whole = s.index == tuple(a.var for a in s.axes)
    whole = whole and s.dst.shape == tuple(a.extent for a in s.axes)
    zero = whole and isinstance(s.value, Const) and s.value.value == 0
    (low.zeroed.add if zero else low.zeroed.discard)(s.dst)
    return [LaneMap(low.buf(s.dst), low.index(s.index), axes, low.expr(s.value))]


def _reduce(low: _Lowering, s: Reduce) -> list[Stmt]:
    return lower_reduce(_moved(low, s))


def _moved(low: _Lowering, s: Reduce) -> Reduce:
    """The reduction over this level's buffers."""
    axis = Axis(s.axis.var, low.bound(s.axis.extent))
    return Reduce(low.buf(s.dst), low.index(s.index), axis, s.red, low.expr(s.value))


def _dot(low: _Lowering, s: Dot) -> list[Stmt]:
    """A float dot has one order, which no matrix instruction promises: one fold an element.

    From zero on, an invocation holds every `parts`-th row of a column: b is read once for them.
    Where an engine may sum it and the device has one, its instruction serves any number of rows.
    """
    rows, cols = s.acc.shape
    acc, (lo, hi) = low.buf(s.acc), (low.bound(s.lo), low.bound(s.hi))
    a, b = low.expr(s.a), low.expr(s.b)
    live = low.live if low.clip is not None and s.acc in low.clip.tiles else None
    shape = low.options.engine(s)
    if shape is not None:
        return _engine_dot(low, Dot(acc, s.i, s.j, s.k, lo, hi, a, b, s.engine), shape, live)
    if live is None or s.acc not in low.zeroed:
        at, axes = (s.i, s.j), (Axis(s.i, rows if live is None else live), Axis(s.j, cols))
        value = ex.mul(a, b)
        return [LaneFold(acc, at, axes, s.k, lo, hi, Red.SUM, Load(acc, at), value)]
    r, part, shared, parts = Var("r"), Var("part"), Var("shared", b.dtype), low.options.parts
    row = ex.add(ex.mul(r, parts), part)
    own = ex.substitute(a, {s.i: ex.minimum(row, ex.sub(live, 1))})
    each = Axis(r, ex.idiv(ex.add(live, parts - 1), parts))
    axes, held = (Axis(part, parts), Axis(s.j, cols)), ((shared, b),)
    value, exists = ex.mul(own, shared), ex.lt(row, live)
    return [FoldRows(acc, (row, s.j), axes, each, HELD_ROWS, s.k, lo, hi, 1, held, value, exists)]


def _engine_dot(low: _Lowering, s: Dot, shape: MmaShape, live: Expr | None) -> list[Stmt]:
    columns = s.acc.shape[1]
    if not isinstance(columns, int):
        raise UnsupportedError(f"dot into {s.acc.name}: its columns are not a number")
    key = (shape, columns)
    if key not in low.floats:
        low.floats[key] = FloatTiles.of(shape, MATRIX_ROWS, columns, low.group.subgroups)
    return lower_float_dot(s, low.floats[key], live)


def _scaled_dot(low: _Lowering, s: ScaledDot) -> list[Stmt]:
    x = s.x
    moved = QuantRows(
        low.buf(x.codes),
        low.buf(x.scale),
        low.buf(x.sums),
        low.buf(x.scaled_sums),
        low.expr(x.row),
        None if x.halves is None else low.buf(x.halves),
        x.groups,
    )
    here = ScaledDot(low.buf(s.acc), moved, s.w, s.blob, low.expr(s.offset), low.expr(s.panel))
    clipped = low.live if low.clip is not None and s.acc in low.clip.tiles else None
    if low.shape is None:
        return _by_lanes(low, here, clipped)
    if low.staging is None:
        low.staging = Staging.of(low.shape, MATRIX_ROWS)
    many = lower_scaled_dot(here, low.staging, clipped)
    if clipped is None or not low.few:
        return many
    # One trip or none: the fragment level has no other choice.
    few = ex.minimum(ex.idiv(low.few, clipped), 1)
    lanes = tuple(_by_lanes(low, here, clipped))
    return [For(Var("few"), 0, few, lanes), For(Var("many"), few, 1, tuple(many))]


def _by_lanes(low: _Lowering, s: ScaledDot, clipped: Expr | None) -> list[Stmt]:
    groups = s.w.groups
    if groups not in low.lanes:
        tokens = LANE_ROWS if low.shape is None else low.few
        low.lanes[groups] = LaneTiles.of(low.group, tokens, groups, low.options.split)
    return lower_scaled_dot_to_lanes(s, low.lanes[groups], clipped)


_LOWER: dict[type, Callable[..., list[Stmt]]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: _reduce,
    Dot: _dot,
    ScaledDot: _scaled_dot,
}
