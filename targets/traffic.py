"""Bytes a step asks of memory, counted over its tile programs.

Counted each time a statement runs: every distinct element of a GLOBAL buffer that it names. A tile
program keeps nothing from one statement to the next, so what is asked twice counts twice, whether
or not a cache answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from speccc.errors import VerifyError
from speccc.ir.expr import Expr, Load, LoadBytes, Var, children, variables
from speccc.ir.interp_expr import Array, evaluate
from speccc.ir.plan import Loop, Plan, Step
from speccc.ir.tile import (
    LANES,
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
    walk,
)

Height = Callable[[RowTiles, int], int]
"""How high the tiles are, of which the last may be partly empty, given how many rows there are."""
Bytes = Counter[Buf]


@dataclass(frozen=True, slots=True)
class Env:
    """What variables stand for, and how rows are cut; without `height` by a program's widths."""

    values: Mapping[Var, int]
    height: Height | None

    def having(self, var: Var, n: int) -> Env:
        """The same with one more variable."""
        return Env({**self.values, var: n}, self.height)


def requested_bytes(
    plan: Plan, sizes: Mapping[Var, int], height: Height | None = None
) -> dict[str, int]:
    """Bytes by role ("weights", "state", ..) that one step of these sizes reads and writes.

    The rows are a chain: row r has r ancestors.
    """
    total = dict.fromkeys((b.role.value for b in plan.bufs), 0)
    counted = _steps(plan.body, Env(sizes, height))
    for b in plan.bufs:
        total[b.role.value] += counted[b.buf]
    return total


def _steps(body: tuple[Step, ...], env: Env) -> Bytes:
    total: Bytes = Counter()
    for step in body:
        if isinstance(step, Loop):
            # Layers are alike: one counts for all.
            _add(total, _steps(step.body, env.having(step.var, 0)), step.extent)
        else:
            total.update(_block(step.body, env))
    return total


def _add(total: Bytes, part: Bytes, times: int) -> None:
    total.update({buf: times * count for buf, count in part.items()})


def _block(body: tuple[Stmt, ...], env: Env) -> Bytes:
    total: Bytes = Counter()
    for s in body:
        total.update(_RULES[type(s)](s, env))
    return total


def _number(e: Expr | int, env: Env) -> int:
    if isinstance(e, int):
        return e
    values = {v: np.asarray(n, np.int64) for v, n in env.values.items()}
    return int(evaluate(e, values, _chain))


def _chain(load: Load | LoadBytes, index: tuple[Array, ...]) -> Array:
    """A row's depth is its number in a chain: the only table that limits read."""
    if len(index) != 1 or not isinstance(load, Load):
        raise VerifyError(f"a limit reads {load.buf.name}: its traffic is not known")
    return index[0].astype(load.dtype.numpy)


def _trips(var: Var, trips: range, body: tuple[Stmt, ...], env: Env) -> Bytes:
    total: Bytes = Counter()
    if var in _limits(body):
        for n in trips:
            total.update(_block(body, env.having(var, n)))
    elif trips:
        _add(total, _block(body, env.having(var, trips[0])), len(trips))
    return total


def _limits(body: tuple[Stmt, ...]) -> set[Var]:
    """The variables on which the number of trips of anything inside depends."""
    found: set[Var] = set()
    for s in walk(body):
        for e in _extents(s):
            found |= set() if isinstance(e, int) else variables(e)
    return found


def _extents(s: Stmt) -> tuple[Expr | int, ...]:
    if isinstance(s, (For, Dot)):
        return (s.lo, s.hi)
    if isinstance(s, (Share, RowTiles)):
        return (s.extent,)
    if isinstance(s, Map):
        return tuple(a.extent for a in s.axes)
    return (s.axis.extent,) if isinstance(s, Reduce) else ()


def _alloc(s: Alloc, env: Env) -> Bytes:
    return Counter()


def _for(s: For, env: Env) -> Bytes:
    return _trips(s.var, range(_number(s.lo, env), _number(s.hi, env)), s.body, env)


def _share(s: Share, env: Env) -> Bytes:
    return _trips(s.var, range(_number(s.extent, env)), s.body, env)


def _row_tiles(s: RowTiles, env: Env) -> Bytes:
    total: Bytes = Counter()
    extent, at = _number(s.extent, env), 0
    if env.height is not None and len(s.variants) > 1:
        return _masked(s, env, extent, env.height(s, extent))
    for width, body in sorted(s.variants, key=lambda v: -v[0]):
        tiles = (extent - at) // width
        total.update(_trips(s.var, range(at, at + tiles * width, width), body, env))
        at += tiles * width
    return total


def _masked(s: RowTiles, env: Env, extent: int, height: int) -> Bytes:
    """Tiles of one height: what a body asks for grows evenly with its rows, so two of them tell."""
    (low, first), (high, second) = sorted(s.variants, key=lambda v: v[0])[:2]
    at = env.having(s.var, 0)
    few, more = _block(first, at), _block(second, at)
    each = {buf: (more[buf] - few[buf]) // (high - low) for buf in more}
    tiles = -(-extent // height)
    return Counter({b: tiles * (few[b] - low * n) + extent * n for b, n in each.items()})


def _map(s: Map, env: Env) -> Bytes:
    extents = _axes(s.axes, env)
    total = _elements((s.value, *s.index), extents)
    _count(total, s.dst, s.index, extents)
    return total


def _reduce(s: Reduce, env: Env) -> Bytes:
    total = _elements((s.value, *s.index), _axes((s.axis,), env))
    _count(total, s.dst, s.index, {})
    return total


def _dot(s: Dot, env: Env) -> Bytes:
    extents = {s.k: max(0, _number(s.hi, env) - _number(s.lo, env)), s.j: LANES}
    return _elements((s.a, s.b), {**extents, s.i: _number(s.acc.shape[0], env)})


def _scaled_dot(s: ScaledDot, env: Env) -> Bytes:
    # Quantized rows are a worker's own: only the panel of weights is asked of memory.
    return Counter({s.blob: s.w.panel_bytes})


def _axes(axes: tuple[Axis, ...], env: Env) -> dict[Var, int]:
    return {a.var: _number(a.extent, env) for a in axes}


def _elements(values: tuple[Expr, ...], extents: Mapping[Var, int]) -> Bytes:
    total: Bytes = Counter()
    for load in {found for e in values for found in _loads(e)}:
        index = load.index if isinstance(load, Load) else (load.at,)
        _count(total, load.buf, index, extents, load.dtype.nbytes)
    return total


def _count(
    total: Bytes,
    buf: Buf,
    index: tuple[Expr, ...],
    extents: Mapping[Var, int],
    nbytes: int | None = None,
) -> None:
    if buf.mem is not Mem.GLOBAL:
        return
    used = set().union(*(variables(e) for e in index))
    count = math.prod(extent for var, extent in extents.items() if var in used)
    total[buf] += count * (nbytes or buf.dtype.nbytes)


def _loads(e: Expr) -> set[Load | LoadBytes]:
    own: set[Load | LoadBytes] = {e} if isinstance(e, (Load, LoadBytes)) else set()
    return own.union(*(_loads(c) for c in children(e)))


_RULES: dict[type, Callable[[Any, Env], Bytes]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: _reduce,
    Dot: _dot,
    ScaledDot: _scaled_dot,
}
