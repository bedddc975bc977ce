"""NumPy interpreter of fragment-level kernels: the golden model, and the finder of races.

A statement runs for the whole workgroup before the next one starts. That is one of the orders the
hardware may take; any other gives the same result because two invocations that meet at an element
between barriers, one of them writing, are an error. So are reads out of bounds and reads of
elements of SHARED or SCRATCH that were never written, and workgroups that meet in GLOBAL memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import VerifyError
from speccc.ir.expr import Apply, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.fragment import (
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
    Subgroups,
)
from speccc.ir.fragment_memory import Store, Touch
from speccc.ir.interp_expr import cast, evaluate, fma
from speccc.ir.interp_tile import row_tiles, share
from speccc.ir.tile import Alloc, Axis, Buf, For, Red, RowTiles, Share, Stmt
from speccc.ir.types import BF16, F32, DType, Kind

Array = npt.NDArray[Any]
Env = dict[Var, Array]


@dataclass
class _Group:
    """State of one workgroup."""

    number: int
    groups: int
    kernel: FragmentKernel
    stores: dict[Buf, Store] = field(default_factory=dict)
    made: dict[Buf, Store] = field(default_factory=dict)
    frags: dict[Fragment, Array] = field(default_factory=dict)
    # A fragment's lanes are unknown: each access is by somebody else than every other.
    strangers: count[int] = field(default_factory=count)

    def store(self, buf: Buf) -> Store:
        if buf not in self.stores:
            raise VerifyError(f"buffer {buf.name} is not a parameter and was not allocated")
        return self.stores[buf]

    def stranger(self) -> Array:
        return np.asarray(self.kernel.group.invocations + next(self.strangers))


def run_fragment_kernel(
    kernel: FragmentKernel,
    bufs: Mapping[Buf, Array],
    scalars: Mapping[Var, int],
    *,
    groups: int = 1,
) -> None:
    """Runs a kernel in place on `bufs`; VerifyError for anything a program may not do."""
    env: Env = {v: np.asarray(n, np.int64) for v, n in scalars.items()}
    for buf in kernel.bufs:
        shape = tuple(_int(d, env, None) for d in buf.shape)
        if bufs[buf].shape != shape or bufs[buf].dtype != buf.dtype.numpy:
            raise VerifyError(
                f"buffer {buf.name} is {bufs[buf].dtype}{list(bufs[buf].shape)}, "
                f"not {buf.dtype}{list(shape)}"
            )
    across = {b: Touch(bufs[b].shape) for b in kernel.bufs}
    for number in range(groups):
        group = _Group(number, groups, kernel)
        for buf in kernel.bufs:
            group.stores[buf] = Store(buf, bufs[buf], None, across=across[buf], group=number)
        _block(kernel.body, dict(env), group)


def _reader(group: _Group | None, owner: Array | int) -> Any:
    def read(load: Load | LoadBytes, index: tuple[Array, ...]) -> Array:
        if group is None:
            raise VerifyError("a size may not read a buffer")
        store = group.store(load.buf)
        if isinstance(load, Load):
            return store.read(index, np.asarray(owner))
        at = np.asarray(index[0])[..., None] + np.arange(load.dtype.nbytes)
        raw = np.ascontiguousarray(store.read((at,), np.asarray(owner)[..., None]))
        typed: Array = raw.view(load.dtype.numpy)[..., 0]
        return typed

    return read


def _int(e: Bound, env: Env, group: _Group | None) -> int:
    """A bound, which every invocation reads."""
    if isinstance(e, int):
        return e
    reader = _reader(group, 0)
    value = int(evaluate(e, env, reader))
    if group is not None and group.kernel.group.invocations > 1:
        evaluate(e, env, _reader(group, group.kernel.group.invocations - 1))
    return value


def _block(body: Sequence[Stmt], env: Env, group: _Group) -> None:
    outer, known = dict(group.stores), tuple(group.frags)
    for s in body:
        if type(s) not in _RUN:
            raise VerifyError(f"{type(s).__name__} is not a statement of the fragment level")
        _RUN[type(s)](s, env, group)
    group.stores, group.frags = outer, {f: group.frags[f] for f in known}


def _alloc(s: Alloc, env: Env, group: _Group) -> None:
    """New contents in the same place: whoever touched it before the last barrier still did."""
    shape = tuple(_int(d, env, group) for d in s.buf.shape)
    data = np.full(shape, 0x55, np.uint8).astype(s.buf.dtype.numpy)
    store = Store(s.buf, data, np.zeros(shape, np.bool_))
    if s.buf in group.made and group.made[s.buf].data.shape == shape:
        store.within = group.made[s.buf].within
    group.made[s.buf] = group.stores[s.buf] = store


def _for(s: For, env: Env, group: _Group) -> None:
    for n in range(_int(s.lo, env, group), _int(s.hi, env, group)):
        _block(s.body, {**env, s.var: np.asarray(n, np.int64)}, group)


def _share(s: Share, env: Env, group: _Group) -> None:
    for n in share(_int(s.extent, env, group), group.number, group.groups):
        _block(s.body, {**env, s.var: np.asarray(n, np.int64)}, group)


def _row_tiles(s: RowTiles, env: Env, group: _Group) -> None:
    bodies = dict(s.variants)
    for at, width in row_tiles(_int(s.extent, env, group), list(bodies)):
        _block(bodies[width], {**env, s.var: np.asarray(at, np.int64)}, group)


def _subgroups(s: Subgroups, env: Env, group: _Group) -> None:
    for n in range(_int(s.extent, env, group)):
        _block(s.body, {**env, s.var: np.asarray(n, np.int64)}, group)


def _barrier(s: Barrier, env: Env, group: _Group) -> None:
    for store in (*group.stores.values(), *group.made.values()):
        store.within.forget()


def _grid(axes: Sequence[Axis], env: Env, group: _Group) -> tuple[Env, tuple[int, ...], Array]:
    """Variables over all elements, the sizes, and each element's invocation."""
    sizes = tuple(_int(a.extent, env, group) for a in axes)
    grid = dict(env)
    for n, a in enumerate(axes):
        grid[a.var] = np.arange(sizes[n], dtype=np.int64).reshape(
            [-1 if d == n else 1 for d in range(len(axes))]
        )
    elements = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
    return grid, sizes, elements % group.kernel.group.invocations


def _lane_map(s: LaneMap, env: Env, group: _Group) -> None:
    grid, sizes, owner = _grid(s.axes, env, group)
    if 0 in sizes:
        return
    reader = _reader(group, owner)
    value = evaluate(s.value, grid, reader)
    _write(s, value, grid, sizes, owner, group)


def _write(
    s: LaneMap | LaneFold | LaneScan | FoldRows,
    value: Array,
    grid: Env,
    sizes: tuple[int, ...],
    owner: Array,
    group: _Group,
) -> None:
    reader = _reader(group, owner)
    index = tuple(np.broadcast_to(evaluate(i, grid, reader), sizes) for i in s.index)
    group.store(s.dst).write(index, np.broadcast_to(value, sizes), owner)


def _in_order(s: LaneFold | LaneScan, env: Env, group: _Group) -> None:
    grid, sizes, owner = _grid(s.axes, env, group)
    if 0 in sizes:
        return
    reader = _reader(group, owner)
    lo, hi = (
        np.broadcast_to(np.asarray(e) if isinstance(e, int) else evaluate(e, grid, reader), sizes)
        for e in (s.lo, s.hi)
    )
    value = np.array(np.broadcast_to(evaluate(s.init, grid, reader), sizes))
    for n in range(int(lo.min()), int(hi.max())):
        live = (n >= lo) & (n < hi)
        # Only the elements whose range holds n: the others read nothing.
        here = {v: _pick(x, sizes, live) for v, x in grid.items()}
        here[s.var] = np.asarray(n, np.int64)
        value[live] = _step(s, value[live], here, _reader(group, owner[live]))
    _write(s, value, grid, sizes, owner, group)


def _pick(x: Array, sizes: tuple[int, ...], live: Array) -> Array:
    return x if x.ndim == 0 else np.broadcast_to(x, sizes)[live]


def _step(s: LaneFold | LaneScan, seen: Array, env: Env, reader: Any) -> Array:
    e: Expr = s.value
    if isinstance(s, LaneScan):
        return evaluate(e, {**env, s.total: seen}, reader)
    if s.red is Red.MAX:
        return np.maximum(seen, evaluate(e, env, reader))
    return _added(e, seen, env, reader)


def _added(e: Expr, seen: Array, env: Env, reader: Any) -> Array:
    """seen + e; a product of floats by a fused multiply-add."""
    if isinstance(e, Apply) and e.fn is Fn.MUL and e.dtype == F32:
        a, b = (np.broadcast_to(evaluate(t, env, reader), seen.shape) for t in e.args)
        return fma(a, b, seen)
    total: Array = seen + evaluate(e, env, reader)
    return total


def _fold_rows(s: FoldRows, env: Env, group: _Group) -> None:
    """The invocations of one element lie as far apart as the subgroup's sums are many."""
    grid, sizes, _ = _grid(s.axes, env, group)
    rows, lo, hi = (_int(e, env, group) for e in (s.rows.extent, s.lo, s.hi))
    if 0 in sizes:
        return
    if rows > s.most:
        raise VerifyError(f"{rows} rows are summed where {s.most} are held")
    side = group.kernel.group.subgroup
    apart = side // s.split
    place = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
    place %= group.kernel.group.invocations // s.split
    first = place // apart * side + place % apart
    for r in range(rows):
        here = {**grid, s.rows.var: np.asarray(r, np.int64)}
        total = np.zeros(sizes, s.dst.dtype.numpy)
        for n in range(lo, hi):
            here[s.var] = np.asarray(n, np.int64)
            reader = _reader(group, first + (n - lo) % s.split * apart)
            for var, held in s.held:
                here[var] = evaluate(held, here, reader)
            total = np.broadcast_to(_added(s.value, total, here, reader), sizes)
        _write_existing(s, total, here, sizes, first, group)


def _write_existing(
    s: FoldRows, total: Array, env: Env, sizes: tuple[int, ...], owner: Array, group: _Group
) -> None:
    if s.exists is None:
        _write(s, total, env, sizes, owner, group)
        return
    live = np.broadcast_to(evaluate(s.exists, env, _reader(group, owner)), sizes)
    if live.any():
        here = {v: _pick(x, sizes, live) for v, x in env.items()}
        _write(s, total[live], here, (int(live.sum()),), owner[live], group)


def _frag_index(s: FragLoad | FragStore, env: Env, group: _Group) -> tuple[Array, Array]:
    rows, cols = s.frag.shape.extent(s.frag.role)
    at = tuple(_int(e, env, group) for e in s.at)
    r, c = np.arange(rows).reshape(rows, 1), np.arange(cols).reshape(1, cols)
    first, second = (c, r) if s.transposed else (r, c)
    return at[0] + first, at[1] + second


def _frag_zero(s: FragZero, env: Env, group: _Group) -> None:
    shape = s.frag.shape.extent(s.frag.role)
    group.frags[s.frag] = np.zeros(shape, s.frag.shape.dtype(s.frag.role).numpy)


def _frag_load(s: FragLoad, env: Env, group: _Group) -> None:
    index = _frag_index(s, env, group)
    group.frags[s.frag] = group.store(s.buf).read(index, group.stranger())


def _frag_store(s: FragStore, env: Env, group: _Group) -> None:
    index = _frag_index(s, env, group)
    group.store(s.buf).write(index, _frag(s.frag, group), group.stranger())


def _frag(frag: Fragment, group: _Group) -> Array:
    if frag not in group.frags:
        raise VerifyError(f"fragment {frag.name} is used before it is set")
    return group.frags[frag]


def _frag_mma(s: FragMma, env: Env, group: _Group) -> None:
    acc = _frag(s.acc, group)
    wide = np.int64 if s.acc.shape.acc.kind is not Kind.FLOAT else np.float64
    a, b = (_numbers(_frag(f, group), f.shape.dtype(f.role)).astype(wide) for f in (s.a, s.b))
    group.frags[s.acc] = (acc + a @ b).astype(acc.dtype)


def _numbers(x: Array, dtype: DType) -> Array:
    """A bf16 is held as its bits."""
    return cast(x, BF16, F32) if dtype == BF16 else x


_RUN: dict[type, Callable[..., None]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Subgroups: _subgroups,
    Barrier: _barrier,
    LaneMap: _lane_map,
    LaneFold: _in_order,
    LaneScan: _in_order,
    FoldRows: _fold_rows,
    FragZero: _frag_zero,
    FragLoad: _frag_load,
    FragMma: _frag_mma,
    FragStore: _frag_store,
}
