"""The statements that all dialects say alike; a dialect adds those on fragments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from speccc.ir.expr import Expr, Fn
from speccc.ir.fragment import Barrier, FoldRows, LaneFold, LaneMap, LaneScan, Subgroups
from speccc.ir.tile import Alloc, For, Red, RowTiles, Share
from speccc.targets.clike.fold_rows import fold_rows

if TYPE_CHECKING:
    from speccc.targets.clike.render import Renderer


def _alloc(r: Renderer, s: Alloc) -> None:
    """Declared by the dialect: SHARED once for the kernel, SCRATCH as a buffer."""


def _for(r: Renderer, s: For) -> None:
    r.loop(s.var, r.exprs.bound(s.lo), r.exprs.bound(s.hi), s.body)


def _share(r: Renderer, s: Share) -> None:
    extent = r.exprs.bound(s.extent)
    lo, hi = (
        r.exprs.call(Fn.IDIV, f"{first} * ({extent})", "workgroups")
        for first in ("workgroup", "(workgroup + 1)")
    )
    r.loop(s.var, lo, hi, s.body)


def _row_tiles(r: Renderer, s: RowTiles) -> None:
    with r.names.scope(), r.out.block(""):
        v, extent = r.exprs.variable(s.var), r.exprs.inner(s.extent)
        r.out.line(f"{r.dialect.types['index']} {v} = 0;")
        for width, body in sorted(s.variants, key=lambda variant: -variant[0]):
            with r.out.block(f"for (; {extent} - {v} >= {width}; {v} += {width})"):
                r.statements(body)


def _subgroups(r: Renderer, s: Subgroups) -> None:
    r.loop(s.var, r.dialect.subgroup, r.exprs.bound(s.extent), s.body, step="SUBGROUPS")


def _barrier(r: Renderer, s: Barrier) -> None:
    r.out.line(r.dialect.barrier)


def _lane_map(r: Renderer, s: LaneMap) -> None:
    def store() -> None:
        value = r.exprs.render(s.value)
        dst = r.exprs.element(s.dst, s.index)
        # Nothing that leads to the value may be contracted or reassociated.
        r.out.line(f"{r.dialect.exact}{r.exprs.type(s.value.dtype)} value = {value};")
        r.out.line(f"{dst} = value;")

    r.lanes(s.axes, store)


def _lane_fold(r: Renderer, s: LaneFold) -> None:
    def fold() -> None:
        kind = r.exprs.type(s.value.dtype)
        r.out.line(f"{r.dialect.exact}{kind} total = {r.exprs.render(s.init)};")
        v = r.exprs.variable(s.var)
        with r.counted(v, r.exprs.bound(s.lo), r.exprs.bound(s.hi)):
            r.out.line(f"total = {_fold_step(r, s.red, s.value)};")
        r.out.line(f"{r.exprs.element(s.dst, s.index)} = total;")

    r.lanes(s.axes, fold)


def _fold_step(r: Renderer, red: Red, value: Expr) -> str:
    if red is Red.MAX:
        return r.exprs.call(Fn.MAX, "total", r.exprs.render(value))
    return r.exprs.added("total", value)


def _lane_scan(r: Renderer, s: LaneScan) -> None:
    def scan() -> None:
        kind, total = r.exprs.type(s.dst.dtype), r.exprs.variable(s.total)
        r.out.line(f"{r.dialect.exact}{kind} {total} = {r.exprs.render(s.init)};")
        v = r.exprs.variable(s.var)
        with r.counted(v, r.exprs.bound(s.lo), r.exprs.bound(s.hi)):
            r.out.line(f"{total} = {r.exprs.render(s.value)};")
        r.out.line(f"{r.exprs.element(s.dst, s.index)} = {total};")

    r.lanes(s.axes, scan)


STATEMENTS: dict[type, Callable[..., None]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Subgroups: _subgroups,
    Barrier: _barrier,
    LaneMap: _lane_map,
    LaneFold: _lane_fold,
    LaneScan: _lane_scan,
    FoldRows: fold_rows,
}
