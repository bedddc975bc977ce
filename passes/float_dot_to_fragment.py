"""`Dot` that a matrix engine may sum -> its instructions, `DEPTH` columns of k after the others.

    for chunk of k: wt = the panel's weights, xt = the rows (what fills up fragments is zero)
           [barrier]  sums = xt @ wt in fragments, step by step of the instruction's k
           [barrier]  acc = acc + sums, in f32
Where few rows would leave subgroups idle, each takes a part of a chunk's steps, and `sums` are as
many: how many is the device's, for any number of rows.
Tokens lie on the instruction's narrow side. Which products an instruction adds, and in which order
the sums come, depends on k alone, so a row has the same bits whatever stands beside it. Sums begin
anew with each chunk, which keeps them short: an engine cuts off what is small beside its sum.
Weights are decoded once for all rows of a tile; e4m3 and their rows as halves, which hold them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Expr, Fn, Load, Var
from speccc.ir.fragment import (
    FragLoad,
    Fragment,
    FragMma,
    FragStore,
    FragZero,
    LaneMap,
    MmaShape,
    Role,
    Subgroups,
)
from speccc.ir.tile import LANES, Alloc, Axis, Buf, Dot, For, Mem, Stmt
from speccc.ir.types import BF16, E4M3, F16, F32, DType
from speccc.passes.scaled_dot_to_fragment import below, dealt, fragments

DEPTH = 64
"""Columns of k staged at once: with 32 rows and a panel of weights 6 KiB."""
HELD_AS = {F16: F16, BF16: BF16, E4M3: F16}
"""Type of an engine -> type of the fragments that hold its values."""


def serves(shape: MmaShape) -> bool:
    """Whether an instruction multiplies halves of either kind into f32, and tiles a panel."""
    kinds = shape.a == shape.b and shape.a in HELD_AS.values() and shape.acc == F32
    return kinds and LANES % max(shape.m, shape.n) == 0 and DEPTH % shape.k == 0


def choose(shapes: Iterable[MmaShape]) -> MmaShape | None:
    """Of those that serve the one that wastes least on few tokens, then the deepest."""
    fitting = [s for s in shapes if serves(s)]
    return min(fitting, key=lambda s: (min(s.m, s.n), -s.k), default=None)


@dataclass(frozen=True, slots=True)
class FloatTiles:
    """One kernel's SHARED tiles for dots of `columns`: x [height, 64] and w [64, columns].

    `sums` are f32 [split * height, columns]: `split` subgroups share the steps of a chunk. `tokens`
    is the side of one fragment, of which `height` has several.
    """

    shape: MmaShape
    tokens: int
    height: int
    columns: int
    split: int
    x: Buf
    w: Buf
    sums: Buf

    @staticmethod
    def of(shape: MmaShape, rows: int, columns: int, subgroups: int) -> FloatTiles:
        """Tiles for `shape` that hold `rows`; UnsupportedError when it cannot serve."""
        if not serves(shape):
            raise UnsupportedError(f"{shape}: does not multiply floats by panels of {LANES}")
        tokens = min(shape.m, shape.n)
        height = -(-rows // tokens) * tokens
        idle = subgroups * max(shape.m, shape.n) // columns
        split = min(_power_below(max(1, idle)), DEPTH // shape.k)
        return FloatTiles(
            shape,
            tokens,
            height,
            columns,
            split,
            Buf("x_floats", (height, DEPTH), shape.a, Mem.SHARED),
            Buf("w_floats", (DEPTH, columns), shape.b, Mem.SHARED),
            Buf("float_sums", (split * height, columns), F32, Mem.SHARED),
        )

    def allocs(self) -> tuple[Stmt, ...]:
        """The tiles' allocations."""
        return (Alloc(self.x), Alloc(self.w), Alloc(self.sums))


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns first..first+deep-1 of k of one `Dot`, of which `depth` exist; its rows as well."""

    s: Dot
    tiles: FloatTiles
    first: Expr
    depth: Expr | int
    deep: Expr | int
    rows: Expr | int

    @property
    def filled(self) -> Expr | int:
        """Fragments that hold the rows."""
        return fragments(self.tiles.tokens, self.tiles.height, self.rows)

    @property
    def staged(self) -> Expr | int:
        """Rows of those fragments."""
        return _times(self.filled, self.tiles.tokens)


def lower_float_dot(s: Dot, tiles: FloatTiles, live: Expr | None = None) -> list[Stmt]:
    """The statements of one `Dot`, without barriers; of its rows the first `live` exist."""
    height, columns = s.acc.shape
    if not isinstance(height, int) or (live is None and height > tiles.height):
        raise UnsupportedError(f"dot into {s.acc.name}: more than {tiles.height} rows")
    if columns != tiles.columns:
        raise UnsupportedError(f"dot into {s.acc.name}: not {tiles.columns} columns")
    i, j, chunk = Var("i"), Var("j"), Var("chunk")
    part = _part(s, tiles, chunk, height if live is None else live)
    total: Expr = Load(tiles.sums, (i, j))
    for n in range(1, tiles.split):
        total = ex.add(total, Load(tiles.sums, (ex.add(i, n * tiles.height), j)))
    axes = (Axis(i, part.rows), Axis(j, tiles.columns))
    added = LaneMap(s.acc, (i, j), axes, ex.add(Load(s.acc, (i, j)), total))
    body = (_weights(part), _rows(part), _multiply(part), added)
    return [For(chunk, 0, _over(_span(s), DEPTH), body)]


def _span(s: Dot) -> Expr | int:
    if isinstance(s.lo, int) and isinstance(s.hi, int):
        return s.hi - s.lo
    return ex.sub(s.hi, s.lo)


def _part(s: Dot, tiles: FloatTiles, chunk: Var, rows: Expr | int) -> _Part:
    span, k, first = _span(s), tiles.shape.k, ex.mul(chunk, DEPTH)
    whole = isinstance(span, int) and span % DEPTH == 0
    depth: Expr | int = DEPTH if whole else ex.minimum(ex.sub(span, first), DEPTH)
    even = isinstance(span, int) and span % k == 0
    deep = depth if even else _times(_over(depth, k), k)
    return _Part(s, tiles, ex.add(first, s.lo), depth, deep, rows)


def _power_below(n: int) -> int:
    """The largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


def _over(n: Expr | int, size: int) -> Expr | int:
    """n / size, rounded up."""
    return -(-n // size) if isinstance(n, int) else ex.idiv(ex.add(n, size - 1), size)


def _times(n: Expr | int, size: int) -> Expr | int:
    return n * size if isinstance(n, int) else ex.mul(n, size)


def _weights(part: _Part) -> Stmt:
    """Columns of the panel in the order they lie in; those past the end of k are zero."""
    s, w = part.s, part.tiles.w
    t, j = Var("t"), Var("j")

    def weight(at: Expr) -> Expr:
        return _as(ex.substitute(s.b, {s.k: ex.add(part.first, at), s.j: j}), w.dtype)

    axes = (Axis(t, part.deep), Axis(j, part.tiles.columns))
    return LaneMap(w, (t, j), axes, below(weight, t, part.depth, part.deep))


def _rows(part: _Part) -> Stmt:
    """The same columns of the rows; rows that fill up the last fragment are zero."""
    s, x = part.s, part.tiles.x
    i, t = Var("i"), Var("t")

    def row(at: Expr) -> Expr:
        def element(column: Expr) -> Expr:
            k = ex.add(part.first, column)
            return _as(ex.substitute(s.a, {s.i: at, s.k: k}), x.dtype)

        return below(element, t, part.depth, part.deep)

    axes = (Axis(i, part.staged), Axis(t, part.deep))
    return LaneMap(x, (i, t), axes, below(row, i, part.rows, part.staged))


def _as(value: Expr, dtype: DType) -> Expr:
    """An f32 that `dtype` holds as `dtype`; as it lies in a buffer of that type."""
    held = value.args[0] if isinstance(value, Apply) and value.fn is Fn.CAST else value
    return held if isinstance(held, Load) and held.dtype == dtype else ex.cast(value, dtype)


def _multiply(part: _Part) -> Stmt:
    """sums = x @ w: their fragments, and shares of the steps, dealt out to the subgroups."""
    tiles, unit, step = part.tiles, Var("part"), Var("step")
    shape, split = tiles.shape, tiles.split
    a, b, acc = (Fragment(f"frag_{r.value}", r, shape) for r in Role)
    place = ex.idiv(unit, split)
    many = tiles.columns // max(shape.m, shape.n)
    places, row, column = dealt(place, part.filled, many, shape)
    k = ex.mul(step, shape.k)
    x, w = (tiles.x, (row, k)), (tiles.w, (k, column))
    turned = shape.m > shape.n  # the weights are operand a, the sums lie across
    left, right = (w, x) if turned else (x, w)
    share, first, last = _steps(part, unit)
    body = (
        FragZero(acc),
        For(
            step,
            first,
            last,
            (FragLoad(a, *left, turned), FragLoad(b, *right, turned), FragMma(acc, a, b)),
        ),
        FragStore(acc, tiles.sums, (ex.add(row, ex.mul(share, tiles.height)), column), turned),
    )
    return Subgroups(unit, _times(places, split), body)


def _steps(part: _Part, unit: Expr) -> tuple[Expr, Expr | int, Expr | int]:
    """A unit's share of a chunk's steps: its number, its first step and the one behind its last."""
    tiles = part.tiles
    steps = _over(part.depth, tiles.shape.k)
    if tiles.split == 1:
        return ex.lit(0), 0, steps
    share, each = ex.mod(unit, tiles.split), DEPTH // tiles.shape.k // tiles.split
    first = ex.mul(share, each)
    return share, first, ex.minimum(ex.add(first, each), steps)
