"""`Dot` that a matrix engine may sum -> its instructions, `DEPTH` columns of k after the others.

    for chunk of k: wt = the panel's weights, xt = the rows (what fills up fragments is zero)
           [barrier]  sums = xt @ wt in fragments, step by step of the instruction's k
           [barrier]  acc = acc + sums, in f32
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
    """One kernel's SHARED tiles for dots of `columns`: x [height, 64], w [64, columns], f32 sums.

    `tokens` is the side of one fragment, of which `height` has several.
    """

    shape: MmaShape
    tokens: int
    height: int
    columns: int
    x: Buf
    w: Buf
    sums: Buf

    @staticmethod
    def of(shape: MmaShape, rows: int, columns: int = LANES) -> FloatTiles:
        """Tiles for `shape` that hold `rows`; UnsupportedError when it cannot serve."""
        if not serves(shape):
            raise UnsupportedError(f"{shape}: does not multiply floats by panels of {LANES}")
        tokens = min(shape.m, shape.n)
        height = -(-rows // tokens) * tokens
        return FloatTiles(
            shape,
            tokens,
            height,
            columns,
            Buf("x_floats", (height, DEPTH), shape.a, Mem.SHARED),
            Buf("w_floats", (DEPTH, columns), shape.b, Mem.SHARED),
            Buf("float_sums", (height, columns), F32, Mem.SHARED),
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
    total = ex.add(Load(s.acc, (i, j)), Load(tiles.sums, (i, j)))
    added = LaneMap(s.acc, (i, j), (Axis(i, part.rows), Axis(j, tiles.columns)), total)
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
    """sums = x @ w, the fragments of the sums dealt out to the subgroups."""
    tiles, unit, step = part.tiles, Var("part"), Var("step")
    shape = tiles.shape
    a, b, acc = (Fragment(f"frag_{r.value}", r, shape) for r in Role)
    units, row, column = dealt(unit, part.filled, tiles.columns // max(shape.m, shape.n), shape)
    k = ex.mul(step, shape.k)
    x, w = (tiles.x, (row, k)), (tiles.w, (k, column))
    turned = shape.m > shape.n  # the weights are operand a, the sums lie across
    left, right = (w, x) if turned else (x, w)
    steps = _over(part.depth, shape.k)
    multiply = (FragLoad(a, *left, turned), FragLoad(b, *right, turned), FragMma(acc, a, b))
    body = (
        FragZero(acc),
        For(step, 0, steps, multiply),
        FragStore(acc, tiles.sums, (row, column), turned),
    )
    return Subgroups(unit, units, body)
