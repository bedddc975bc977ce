"""What a fragment-level kernel must obey before it is interpreted or rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from speccc.errors import VerifyError
from speccc.ir.expr import Expr, Load, LoadBytes, Var, variables
from speccc.ir.fragment import (
    FRAGMENT_STMTS,
    LANE_STMTS,
    Barrier,
    Bound,
    FoldRows,
    FragLoad,
    Fragment,
    FragmentKernel,
    FragMma,
    FragStore,
    FragZero,
    LaneFold,
    LaneMap,
    LaneScan,
    MmaShape,
    Role,
    Subgroups,
    Workgroup,
    bounds,
    loads,
    walk,
)
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, RowTiles, Share, Stmt
from speccc.ir.types import Kind

MEMORY = (Mem.GLOBAL, Mem.SHARED, Mem.SCRATCH)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a statement can see, and whether it runs in one subgroup only."""

    kernel: str
    group: Workgroup
    shapes: frozenset[MmaShape] | None
    bufs: frozenset[Buf]
    variables: frozenset[Var]
    subgroup: bool = False
    frags: set[Fragment] = field(default_factory=set)

    def error(self, text: str) -> VerifyError:
        return VerifyError(f"kernel {self.kernel}: {text}")


def verify_fragment(kernel: FragmentKernel, shapes: frozenset[MmaShape] | None = None) -> None:
    """VerifyError names the first rule broken; `shapes` are the device's, None for any."""
    if kernel.group.subgroup < 1 or kernel.group.subgroups < 1:
        raise VerifyError(f"kernel {kernel.name}: a workgroup without invocations")
    bufs, scalars = frozenset(kernel.bufs), frozenset(kernel.scalars)
    scope = _Scope(kernel.name, kernel.group, shapes, bufs, scalars)
    for buf in kernel.bufs:
        if buf.mem is not Mem.GLOBAL:
            raise scope.error(f"parameter {buf.name} is {buf.mem.value}, not global")
    _block(kernel.body, scope)


def _block(body: tuple[Stmt, ...], outer: _Scope) -> None:
    scope = replace(outer, frags=set(outer.frags))
    for s in body:
        if type(s) not in _CHECK:
            raise scope.error(f"{type(s).__name__} is not a statement of the fragment level")
        if isinstance(s, FRAGMENT_STMTS) and not scope.subgroup:
            raise scope.error("a fragment is touched outside a subgroup's statements")
        if isinstance(s, (*LANE_STMTS, Barrier, Alloc)) and scope.subgroup:
            raise scope.error(f"{type(s).__name__} under divergent control (inside Subgroups)")
        _CHECK[type(s)](s, scope)
        if isinstance(s, Alloc):
            scope = replace(scope, bufs=scope.bufs | {s.buf})


def _alloc(s: Alloc, scope: _Scope) -> None:
    if s.buf.mem not in (Mem.SHARED, Mem.SCRATCH):
        raise scope.error(f"buffer {s.buf.name}: {s.buf.mem.value} cannot be allocated here")
    for d in s.buf.shape:
        if s.buf.mem is Mem.SHARED and not isinstance(d, int):
            raise scope.error(f"shared buffer {s.buf.name} has a size that is not a number")
        _bound(d, scope)


def _expr(e: Expr, scope: _Scope) -> None:
    for v in variables(e):
        if v not in scope.variables:
            raise scope.error(f"variable {v.name} has no value here")
    for read in loads(e):
        _buffer(read.buf, scope)
        axes = len(read.index) if isinstance(read, Load) else 1
        if isinstance(read, LoadBytes) and read.buf.dtype.nbytes != 1:
            raise scope.error(f"bytes are read from {read.buf.name} of {read.buf.dtype}")
        if axes != len(read.buf.shape):
            raise scope.error(f"buffer {read.buf.name} has {len(read.buf.shape)} axes, not {axes}")


def _buffer(buf: Buf, scope: _Scope) -> None:
    if buf not in scope.bufs:
        raise scope.error(f"buffer {buf.name} is not a parameter and was not allocated")
    if buf.mem not in MEMORY:
        raise scope.error(f"buffer {buf.name}: no {buf.mem.value} memory at this level")


def _bound(e: Bound, scope: _Scope) -> None:
    if not isinstance(e, int):
        _expr(e, scope)


def _loop(s: Stmt, scope: _Scope) -> None:
    """Bounds must be the same for all invocations when the body has a barrier."""
    for e in bounds(s):
        _bound(e, scope)
    blocks = tuple(body for _, body in s.variants) if isinstance(s, RowTiles) else ()
    if isinstance(s, (For, Share, Subgroups)):
        blocks = (s.body,)
    barrier = any(isinstance(t, Barrier) for body in blocks for t in walk(body))
    for read in (r for e in bounds(s) for r in loads(e)):
        if barrier and read.buf.mem is not Mem.GLOBAL:
            raise scope.error(f"a barrier in a loop whose bound reads {read.buf.name}")
    if isinstance(s, (For, Share, RowTiles, Subgroups)):
        inner = replace(
            scope,
            variables=scope.variables | {s.var},
            subgroup=scope.subgroup or isinstance(s, Subgroups),
        )
        for body in blocks:
            _block(body, inner)


def _subgroups(s: Subgroups, scope: _Scope) -> None:
    if scope.subgroup:
        raise scope.error("Subgroups inside Subgroups")
    _loop(s, scope)


def _lanes(s: LaneMap | LaneFold | LaneScan, scope: _Scope) -> None:
    inner = _inside(s.axes, scope)
    value = inner
    if not isinstance(s, LaneMap):
        for e in (s.lo, s.hi, s.init):
            _bound(e, inner)
        own = {s.var, s.total} if isinstance(s, LaneScan) else {s.var}
        value = replace(inner, variables=inner.variables | own)
    if isinstance(s, LaneScan) and not s.total.dtype == s.init.dtype == s.dst.dtype:
        raise scope.error(f"{s.init.dtype} begins a scan of {s.total.dtype} into {s.dst.name}")
    _expr(s.value, value)
    _element(s, inner, scope)


def _fold_rows(s: FoldRows, scope: _Scope) -> None:
    inner = _inside((*s.axes, s.rows), scope)
    if s.split > 1 and s.dst.dtype.kind not in (Kind.INT, Kind.UINT):
        raise scope.error(f"rows of {s.dst.dtype} are summed in no fixed order")
    if s.split < 1 or scope.group.subgroup % s.split or s.split & (s.split - 1):
        raise scope.error(
            f"{s.split} invocations of a subgroup of {scope.group.subgroup} share a sum"
        )
    if isinstance(s.rows.extent, int) and s.rows.extent > s.most:
        raise scope.error(f"{s.rows.extent} rows are summed where {s.most} are held")
    for e in (s.lo, s.hi, *(() if s.exists is None else (s.exists,))):
        _bound(e, inner)
    known = replace(inner, variables=inner.variables | {s.var})
    for var, value in s.held:
        _expr(value, known)
        if value.dtype != var.dtype:
            raise scope.error(f"{value.dtype} is held in {var.name} of {var.dtype}")
        known = replace(known, variables=known.variables | {var})
    _expr(s.value, known)
    _element(s, inner, scope)


def _inside(axes: tuple[Axis, ...], scope: _Scope) -> _Scope:
    """What is known for each element of some axes."""
    for a in axes:
        _bound(a.extent, scope)
    return replace(scope, variables=scope.variables | {a.var for a in axes})


def _element(s: LaneMap | LaneFold | LaneScan | FoldRows, inner: _Scope, scope: _Scope) -> None:
    _buffer(s.dst, scope)
    if len(s.index) != len(s.dst.shape):
        raise scope.error(f"buffer {s.dst.name} has {len(s.dst.shape)} axes, not {len(s.index)}")
    for i in s.index:
        _expr(i, inner)
    if s.value.dtype != s.dst.dtype:
        raise scope.error(f"{s.value.dtype} is written to {s.dst.name} of {s.dst.dtype}")


def _zero(s: FragZero, scope: _Scope) -> None:
    _shape(s.frag, scope)
    if s.frag.role is not Role.C:
        raise scope.error(f"fragment {s.frag.name}: only an accumulator is set to zero")
    scope.frags.add(s.frag)


def _shape(frag: Fragment, scope: _Scope) -> None:
    if scope.shapes is not None and frag.shape not in scope.shapes:
        raise scope.error(f"fragment {frag.name}: the device has no {frag.shape}")


def _memory(s: FragLoad | FragStore, scope: _Scope) -> None:
    _shape(s.frag, scope)
    _buffer(s.buf, scope)
    for e in s.at:
        _expr(e, scope)
    if len(s.buf.shape) != 2:
        raise scope.error(f"fragment {s.frag.name}: {s.buf.name} is not a matrix")
    wanted = s.frag.shape.dtype(s.frag.role)
    if s.buf.dtype != wanted:
        raise scope.error(f"fragment {s.frag.name} of {wanted} meets {s.buf.name} of {s.buf.dtype}")
    if isinstance(s, FragLoad):
        scope.frags.add(s.frag)
        return
    _known(s.frag, scope)
    if s.frag.role is not Role.C:
        raise scope.error(f"fragment {s.frag.name}: only an accumulator is stored")


def _known(frag: Fragment, scope: _Scope) -> None:
    if frag not in scope.frags:
        raise scope.error(f"fragment {frag.name} is used before it is set")


def _mma(s: FragMma, scope: _Scope) -> None:
    for frag, role in ((s.a, Role.A), (s.b, Role.B), (s.acc, Role.C)):
        _known(frag, scope)
        _shape(frag, scope)
        if frag.role is not role:
            raise scope.error(f"fragment {frag.name} is {frag.role.value}, not {role.value}")
        if frag.shape != s.acc.shape:
            raise scope.error(f"fragment {frag.name} is of {frag.shape}, not {s.acc.shape}")


def _barrier(s: Barrier, scope: _Scope) -> None:
    """Nothing beyond its place, which `_block` has checked."""


_CHECK: dict[type, Callable[..., None]] = {
    Alloc: _alloc,
    For: _loop,
    Share: _loop,
    RowTiles: _loop,
    Subgroups: _subgroups,
    LaneMap: _lanes,
    LaneFold: _lanes,
    LaneScan: _lanes,
    FoldRows: _fold_rows,
    FragZero: _zero,
    FragLoad: _memory,
    FragStore: _memory,
    FragMma: _mma,
    Barrier: _barrier,
}
