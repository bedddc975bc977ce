"""Fragment-level tile IR: what one workgroup of subgroups does, with barriers.

The second legal level. `Dot`, `ScaledDot`, `Map`, `Reduce` and TILE buffers are gone. A workgroup
stands where a worker stood, and `Share` deals units out to workgroups. Its invocations share
SHARED memory and the workgroup's SCRATCH; subgroups multiply matrices in fragments whose element
positions are unknown, so whatever needs a position goes through memory. `Alloc`, `For`, `Share`
and `RowTiles` are those of the block level.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from speccc.ir.expr import Expr, Load, LoadBytes, Var, children
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, Red, RowTiles, Share, Stmt
from speccc.ir.types import DType

Bound = Union[Expr, int]  # noqa: UP007 (forward references)


class Role(Enum):
    """What a fragment is in acc += a @ b."""

    A = "a"
    B = "b"
    C = "c"


@dataclass(frozen=True, slots=True)
class MmaShape:
    """One matrix instruction: acc[m, n] += a[m, k] @ b[k, n], element types as named."""

    a: DType
    b: DType
    acc: DType
    m: int
    n: int
    k: int

    def extent(self, role: Role) -> tuple[int, int]:
        """(rows, columns) of a fragment."""
        return {Role.A: (self.m, self.k), Role.B: (self.k, self.n), Role.C: (self.m, self.n)}[role]

    def dtype(self, role: Role) -> DType:
        """Element type of a fragment."""
        return {Role.A: self.a, Role.B: self.b, Role.C: self.acc}[role]

    def __str__(self) -> str:
        return f"{self.a}*{self.b}->{self.acc} {self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """A matrix held by one subgroup, for the rest of the block that first sets it."""

    name: str
    role: Role
    shape: MmaShape


@dataclass(frozen=True, slots=True)
class FragZero:
    """frag = 0."""

    frag: Fragment


@dataclass(frozen=True, slots=True)
class FragLoad:
    """frag[r, c] = buf[at0 + r, at1 + c], or buf[at0 + c, at1 + r] when transposed."""

    frag: Fragment
    buf: Buf
    at: tuple[Expr, Expr]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class FragMma:
    """acc += a @ b; integers exactly, floats in an order the hardware chooses."""

    acc: Fragment
    a: Fragment
    b: Fragment


@dataclass(frozen=True, slots=True)
class FragStore:
    """buf[at0 + r, at1 + c] = frag[r, c], or buf[at0 + c, at1 + r] when transposed."""

    frag: Fragment
    buf: Buf
    at: tuple[Expr, Expr]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """All invocations meet; what they wrote to memory before, all see afterwards."""


@dataclass(frozen=True, slots=True)
class Subgroups:
    """Units 0..extent-1 dealt out to the subgroups in turn; the only place for fragments."""

    var: Var
    extent: Bound
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class LaneMap:
    """dst[index] = value for all values of the axes.

    Element e, counted with the last axis fastest, belongs to invocation e % invocations.
    """

    dst: Buf
    index: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class LaneFold:
    """dst[index] = fold of value over `var` = lo..hi-1 in that order, from `init`.

    One element is one invocation's, as in `LaneMap`. lo and hi may read the axes' variables. A
    sum of products is a chain of fused multiply-adds.
    """

    dst: Buf
    index: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    var: Var
    lo: Bound
    hi: Bound
    red: Red
    init: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class LaneScan:
    """dst[index] = `total` in the end: first `init`, then `value` for `var` = lo..hi-1 in order.

    `value` reads `total`, which is of dst's type. One element is one invocation's, as in `LaneMap`.
    """

    dst: Buf
    index: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    var: Var
    lo: Bound
    hi: Bound
    total: Var
    init: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class FoldRows:
    """dst[index] = sum of value over `var` = lo..hi-1, for all values of the axes and of `rows`.

    One element of the axes is `split` invocations' of a subgroup: each takes every `split`-th term
    for all rows, 1 to `most` of them, in registers; then they add up what they have, which must be
    integers. One invocation alone adds floats in order, a product as a fused multiply-add.
    `held` are values that serve all rows of a term, computed once and in order: `value` reads
    them, and each may read those before it. Where `exists` is false nothing is written; values
    are computed all the same.
    """

    dst: Buf
    index: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    rows: Axis
    most: int
    var: Var
    lo: Bound
    hi: Bound
    split: int
    held: tuple[tuple[Var, Expr], ...]
    value: Expr
    exists: Expr | None = None


FragmentStmt = Union[  # noqa: UP007 (one name for annotations of Python 3.10)
    FragZero,
    FragLoad,
    FragMma,
    FragStore,
    Barrier,
    Subgroups,
    LaneMap,
    LaneFold,
    LaneScan,
    FoldRows,
]
LANE_STMTS = (LaneMap, LaneFold, LaneScan, FoldRows)
FRAGMENT_STMTS = (FragZero, FragLoad, FragMma, FragStore)


@dataclass(frozen=True, slots=True)
class Workgroup:
    """`subgroups` subgroups of `subgroup` invocations each."""

    subgroup: int
    subgroups: int

    @property
    def invocations(self) -> int:
        """Invocations of the workgroup."""
        return self.subgroup * self.subgroups


@dataclass(frozen=True, slots=True, eq=False)
class FragmentKernel:
    """One phase at fragment level: parameters as at block level, and the size of a workgroup."""

    name: str
    bufs: tuple[Buf, ...]
    scalars: tuple[Var, ...]
    group: Workgroup
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a statement does to a buffer.

    Two accesses with equal `lanes` (not None) give each element to the same invocation: () is
    invocation 0, else it follows from the number of axes and the inner extents.
    """

    buf: Buf
    write: bool
    lanes: tuple[Bound, ...] | None


def nested(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks inside a statement."""
    if isinstance(s, (For, Share, Subgroups)):
        return (s.body,)
    return tuple(body for _, body in s.variants) if isinstance(s, RowTiles) else ()


def walk(body: tuple[Stmt, ...]) -> list[Stmt]:
    """Every statement, outer before inner."""
    out: list[Stmt] = []
    for s in body:
        out.append(s)
        for block in nested(s):
            out.extend(walk(block))
    return out


def bounds(s: Stmt) -> tuple[Bound, ...]:
    """The limits of a loop."""
    if isinstance(s, For):
        return (s.lo, s.hi)
    return (s.extent,) if isinstance(s, (Share, RowTiles, Subgroups)) else ()


def loads(e: Bound) -> list[Load | LoadBytes]:
    """Every read of a buffer in an expression."""
    if isinstance(e, int):
        return []
    own = [e] if isinstance(e, (Load, LoadBytes)) else []
    return own + [found for c in children(e) for found in loads(c)]


def accesses(s: Stmt) -> frozenset[Access]:
    """What a statement does to buffers, those inside it included."""
    if isinstance(s, FoldRows):
        limits = (*(a.extent for a in s.axes), s.rows.extent, s.lo, s.hi)
        where = () if s.exists is None else (s.exists,)
        values = (*s.index, *(e for _, e in s.held), s.value, *where)
        return frozenset({Access(s.dst, True, None)} | _reads((*limits, *values)))
    if isinstance(s, (LaneMap, LaneFold, LaneScan)):
        return _lane_accesses(s)
    if isinstance(s, (FragLoad, FragStore)):
        own = {Access(s.buf, isinstance(s, FragStore), None)}
        return frozenset(own | _reads(s.at))
    inner = [accesses(t) for block in nested(s) for t in block]
    return frozenset(_reads(bounds(s))).union(*inner)


def _reads(items: tuple[Bound, ...]) -> set[Access]:
    return {Access(load.buf, False, None) for e in items for load in loads(e)}


def _lane_accesses(s: LaneMap | LaneFold | LaneScan) -> frozenset[Access]:
    # The outermost extent does not tell which invocation an element belongs to; the others do.
    inner = tuple(a.extent for a in s.axes[1:])
    lanes = tuple(a.var for a in s.axes)

    def owner(index: tuple[Expr, ...]) -> tuple[Bound, ...] | None:
        if not lanes:
            return ()  # invocation 0 does it all, whatever the index
        known = index == lanes and all(isinstance(n, int) for n in inner)
        return (len(lanes), *inner) if known else None

    read: list[Bound] = [*s.index, *(a.extent for a in s.axes), s.value]
    if not isinstance(s, LaneMap):
        read += [s.lo, s.hi, s.init]
    out = {Access(s.dst, True, owner(s.index))}
    for load in (found for e in read for found in loads(e)):
        index = load.index if isinstance(load, Load) else (load.at,)
        out.add(Access(load.buf, False, owner(index)))
    return frozenset(out)


def shared_bytes(kernel: FragmentKernel) -> int:
    """Bytes of SHARED memory of a workgroup: every buffer has its own place."""
    total = 0
    for buf in allocated(kernel):
        if buf.mem is Mem.SHARED:
            count = 1
            for d in buf.shape:
                count *= d if isinstance(d, int) else 0
            total += count * buf.dtype.nbytes
    return total


def allocated(kernel: FragmentKernel) -> tuple[Buf, ...]:
    """Every buffer the kernel makes, in order, once."""
    return tuple(dict.fromkeys(s.buf for s in walk(kernel.body) if isinstance(s, Alloc)))
