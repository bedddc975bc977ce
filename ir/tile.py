"""Block-level tile IR: what one worker of a phase computes, without threads.

A kernel is run by `workers` workers. `Share` deals the independent units of a phase out to them;
everything else a worker does alone. Statements say *what* is computed over axes of known extent;
the target chooses lanes, registers and order, except where the statement fixes the order (`Dot`,
`ScaledDot`, a sum by `Reduce`): those orders are the numeric class and never depend on how many
rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Union

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Var
from speccc.ir.packed import PackedMatrix
from speccc.ir.types import DType

if TYPE_CHECKING:
    from speccc.ir.fragment import FragmentStmt

LANES = 16
"""Columns of a panel and partial sums of a `Reduce`: part of the numeric class."""


class Mem(Enum):
    """Where a buffer lives."""

    GLOBAL = "global"  # shared by all workers; what one writes others see in the next phase
    SCRATCH = "scratch"  # one worker's own memory, lost at the end of the kernel
    TILE = "tile"  # small and static: registers if the target has enough of them (block level)
    SHARED = "shared"  # static and fast, seen by all invocations of a workgroup (fragment level)


@dataclass(frozen=True, slots=True, eq=False)
class Buf:
    """A dense row-major array. A dimension may be an expression of the kernel's scalars."""

    name: str
    shape: tuple[Expr | int, ...]
    dtype: DType
    mem: Mem = Mem.GLOBAL


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop over 0..extent-1 whose order does not matter."""

    var: Var
    extent: Expr | int


@dataclass(frozen=True, slots=True)
class Alloc:
    """Makes a SCRATCH or TILE buffer, its contents undefined, for the rest of the block."""

    buf: Buf


@dataclass(frozen=True, slots=True)
class For:
    """A loop from lo to hi-1, in order."""

    var: Var
    lo: Expr | int
    hi: Expr | int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Units 0..extent-1 dealt out to the workers, each unit to one of them."""

    var: Var
    extent: Expr | int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Rows 0..extent-1 in tiles of the widths at hand, widest first, each with its own body."""

    var: Var
    extent: Expr
    variants: tuple[tuple[int, tuple[Stmt, ...]], ...]


@dataclass(frozen=True, slots=True)
class Map:
    """dst[index] = value for all values of the axes; the last axis is the one for vector lanes."""

    dst: Buf
    index: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    value: Expr


class Red(Enum):
    """What a reduction does."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Reduce:
    """dst[index] = fold of value over `axis`.

    A sum: element r is added to partial sum r % 16 in order of r (by fused multiply-add when value
    is a product); then partial l takes in l + 8, l + 4, l + 2 and l + 1.
    """

    dst: Buf
    index: tuple[Expr, ...]
    axis: Axis
    red: Red
    value: Expr


@dataclass(frozen=True, slots=True)
class Dot:
    """acc[i, j] = fma(a, b, acc[i, j]) for k = lo..hi-1 in that order.

    `a` reads i and k, `b` reads k and j; acc is a TILE of [rows, 16]; i, j, k are `Axis` variables.
    With `engine` both are values of that type, `b` as it is stored, and a target may leave the sum
    to a matrix engine with f32 accumulators: another class of bits (`speccc.ir.matrix_engine`).
    """

    acc: Buf
    i: Var
    j: Var
    k: Var
    lo: Expr | int
    hi: Expr | int
    a: Expr
    b: Expr
    engine: DType | None = None


@dataclass(frozen=True, slots=True)
class QuantRows:
    """Activations as int8: codes [rows, k], and per 32-block scale, sum of codes, scale * sum.

    `halves` are the sums of 16 codes, where a weight has scales by 16 columns. With `groups` 2 the
    codes too have a scale for every 16 columns, and stand for twice an e2m1.
    """

    codes: Buf
    scale: Buf
    sums: Buf
    scaled_sums: Buf
    row: Expr
    halves: Buf | None = None
    groups: int = 1

    def scale_of(self, row: Expr, block: Expr, group: Expr | int) -> Expr:
        """The scale of a row's codes in a group of columns of a block."""
        own = block if self.groups == 1 else ex.add(ex.mul(block, self.groups), group)
        return ex.Load(self.scale, (row, own))


@dataclass(frozen=True, slots=True)
class ScaledDot:
    """acc[i, j] += sum_b xs[i, b] * ws[j, b] * dot(xq[i, b, :], wq[j, b, :]) (+ min), b in order.

    Exactly: t = xs * ws; acc = fma(f32(dot), t, acc), where wq are the integers that codes stand
    for; a block with several scales takes its groups of columns in order; with a minimum
    acc = fma(wm[j, b], xs * f32(sum(xq)), acc). acc is a TILE of [rows, 16], one panel of w.
    """

    acc: Buf
    x: QuantRows
    w: PackedMatrix
    blob: Buf
    offset: Expr
    panel: Expr


# `speccc.ir.fragment` adds the statements of the second level; loops hold either.
Stmt = Union[Alloc, For, Share, RowTiles, Map, Reduce, Dot, ScaledDot, "FragmentStmt"]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One phase: parameters in the order they are passed, then the statements of one worker."""

    name: str
    bufs: tuple[Buf, ...]
    scalars: tuple[Var, ...]
    body: tuple[Stmt, ...]


def nested(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks inside a statement."""
    if isinstance(s, (For, Share)):
        return (s.body,)
    if isinstance(s, RowTiles):
        return tuple(body for _, body in s.variants)
    return ()


def walk(body: tuple[Stmt, ...]) -> list[Stmt]:
    """Every statement, outer before inner."""
    out: list[Stmt] = []
    for s in body:
        out.append(s)
        for block in nested(s):
            out.extend(walk(block))
    return out
