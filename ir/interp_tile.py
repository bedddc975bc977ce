"""NumPy interpreter of tile programs: the golden model, and the checker of what a program may do.

It refuses reads out of bounds, reads of elements never written in SCRATCH and TILE buffers, and two
workers touching one element of a GLOBAL buffer within a kernel when one of them writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import VerifyError
from speccc.ir.expr import Apply, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.interp_expr import evaluate, fma
from speccc.ir.matrix_engine import holds
from speccc.ir.packed import PANEL
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Red,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)
from speccc.ir.types import F32

Array = npt.NDArray[Any]
Env = dict[Var, Array]
NOBODY, MANY = 0, -1


@dataclass
class _Store:
    """A buffer's contents and, for the checks, who wrote and read each element."""

    data: Array
    written: npt.NDArray[np.bool_] | None = None
    writer: npt.NDArray[np.int16] | None = None
    reader: npt.NDArray[np.int16] | None = None


@dataclass
class _Worker:
    """State of one worker: its number and the stores it can see."""

    number: int
    workers: int
    stores: dict[Buf, _Store] = field(default_factory=dict)

    @property
    def mark(self) -> int:
        """What says that this worker touched an element: neither NOBODY nor MANY."""
        return self.number + 1


def run_kernel(
    kernel: Kernel, bufs: Mapping[Buf, Array], scalars: Mapping[Var, int], *, workers: int = 1
) -> None:
    """Runs a kernel in place on `bufs`; VerifyError for anything a program may not do."""
    shared = {b: _global_store(b, bufs[b], scalars) for b in kernel.bufs}
    env: Env = {v: np.asarray(n, np.int64) for v, n in scalars.items()}
    for number in range(workers):
        worker = _Worker(number, workers, dict(shared))
        _run_block(kernel.body, dict(env), worker)


def _global_store(buf: Buf, data: Array, scalars: Mapping[Var, int]) -> _Store:
    env: Env = {v: np.asarray(n, np.int64) for v, n in scalars.items()}
    shape = tuple(_int(d, env, None) for d in buf.shape)
    if data.shape != shape or data.dtype != buf.dtype.numpy:
        raise VerifyError(
            f"buffer {buf.name} is {data.dtype}{list(data.shape)}, not {buf.dtype}{list(shape)}"
        )
    # Zeros cost memory only where they are touched: a kernel reads few of a large model's weights.
    return _Store(data, None, np.zeros(shape, np.int16), np.zeros(shape, np.int16))


def _int(e: Expr | int, env: Env, worker: _Worker | None) -> int:
    if isinstance(e, int):
        return e
    return int(evaluate(e, env, _reader(worker)))


def _reader(worker: _Worker | None) -> Any:
    def read(load: Load | LoadBytes, index: tuple[Array, ...]) -> Array:
        if worker is None:
            raise VerifyError("a size may not read a buffer")
        return _read(worker, load, index)

    return read


def _read(worker: _Worker, load: Load | LoadBytes, index: tuple[Array, ...]) -> Array:
    store = _store(worker, load.buf)
    if isinstance(load, LoadBytes):
        width = load.dtype.nbytes
        at = np.asarray(index[0])[..., None] + np.arange(width)
        raw = np.ascontiguousarray(_gather(worker, load.buf, store, (at,)))
        typed: Array = raw.view(load.dtype.numpy)[..., 0]
        return typed
    return _gather(worker, load.buf, store, index)


def _store(worker: _Worker, buf: Buf) -> _Store:
    if buf not in worker.stores:
        raise VerifyError(f"buffer {buf.name} is not a parameter and was not allocated")
    return worker.stores[buf]


def _gather(worker: _Worker, buf: Buf, store: _Store, index: tuple[Array, ...]) -> Array:
    where = _checked(buf, store, index)
    if store.written is not None and not store.written[where].all():
        raise VerifyError(f"buffer {buf.name} is read where nothing was written")
    if store.writer is not None and store.reader is not None:
        writer = store.writer[where]
        if ((writer != NOBODY) & (writer != worker.mark)).any():
            raise VerifyError(f"buffer {buf.name}: a worker reads what another one writes")
        seen = store.reader[where]
        mine = (seen == NOBODY) | (seen == worker.mark)
        store.reader[where] = np.where(mine, worker.mark, MANY)
    out: Array = store.data[where]
    return out


def _checked(buf: Buf, store: _Store, index: tuple[Array, ...]) -> tuple[Array, ...]:
    if len(index) != store.data.ndim:
        raise VerifyError(f"buffer {buf.name} has {store.data.ndim} axes, not {len(index)}")
    for n, (i, size) in enumerate(zip(index, store.data.shape, strict=True)):
        if np.size(i) and (np.min(i) < 0 or np.max(i) >= size):
            raise VerifyError(
                f"buffer {buf.name} axis {n}: {np.min(i)}..{np.max(i)} is outside 0..{size - 1}"
            )
    return tuple(np.broadcast_arrays(*index)) if index else ()


def _write(worker: _Worker, buf: Buf, index: tuple[Array, ...], value: Array) -> None:
    store = _store(worker, buf)
    where = _checked(buf, store, index)
    if store.writer is not None and store.reader is not None:
        writer, reader = store.writer[where], store.reader[where]
        foreign = (writer != NOBODY) & (writer != worker.mark)
        foreign |= (reader != NOBODY) & (reader != worker.mark)
        if foreign.any():
            raise VerifyError(f"buffer {buf.name}: two workers meet at one element in one kernel")
        store.writer[where] = worker.mark
    if store.written is not None:
        store.written[where] = True
    store.data[where] = np.broadcast_to(value, np.shape(where[0]) if where else ())


def _run_block(body: Sequence[Stmt], env: Env, worker: _Worker) -> None:
    outer = dict(worker.stores)
    for s in body:
        _RUN[type(s)](s, env, worker)
    worker.stores = outer


def _run_alloc(s: Alloc, env: Env, worker: _Worker) -> None:
    shape = tuple(_int(d, env, worker) for d in s.buf.shape)
    data = np.full(shape, 0x55, np.uint8).astype(s.buf.dtype.numpy)
    worker.stores[s.buf] = _Store(data, written=np.zeros(shape, np.bool_))


def _run_for(s: For, env: Env, worker: _Worker) -> None:
    for n in range(_int(s.lo, env, worker), _int(s.hi, env, worker)):
        _run_block(s.body, {**env, s.var: np.asarray(n, np.int64)}, worker)


def share(extent: int, worker: int, workers: int) -> range:
    """The units of one worker: contiguous, sizes differing by at most one."""
    return range(worker * extent // workers, (worker + 1) * extent // workers)


def _run_share(s: Share, env: Env, worker: _Worker) -> None:
    for n in share(_int(s.extent, env, worker), worker.number, worker.workers):
        _run_block(s.body, {**env, s.var: np.asarray(n, np.int64)}, worker)


def row_tiles(extent: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    """(first row, height) of each tile: the widest that fits, again and again."""
    out, at = [], 0
    for width in sorted(widths, reverse=True):
        while extent - at >= width:
            out.append((at, width))
            at += width
    if at != extent:
        raise VerifyError(f"widths {sorted(widths)} cannot tile {extent} rows")
    return out


def _run_row_tiles(s: RowTiles, env: Env, worker: _Worker) -> None:
    bodies = dict(s.variants)
    for at, width in row_tiles(_int(s.extent, env, worker), list(bodies)):
        _run_block(bodies[width], {**env, s.var: np.asarray(at, np.int64)}, worker)


def _grid(axes: Sequence[Axis], env: Env, worker: _Worker) -> tuple[Env, tuple[int, ...]]:
    sizes = tuple(_int(a.extent, env, worker) for a in axes)
    grid = dict(env)
    for n, a in enumerate(axes):
        shape = [1] * len(axes)
        shape[n] = sizes[n]
        grid[a.var] = np.arange(sizes[n], dtype=np.int64).reshape(shape)
    return grid, sizes


def _run_map(s: Map, env: Env, worker: _Worker) -> None:
    grid, sizes = _grid(s.axes, env, worker)
    if 0 in sizes:
        return
    value = evaluate(s.value, grid, _reader(worker))
    index = tuple(np.broadcast_to(evaluate(i, grid, _reader(worker)), sizes) for i in s.index)
    _write(worker, s.dst, index, np.broadcast_to(value, sizes))


def _run_reduce(s: Reduce, env: Env, worker: _Worker) -> None:
    grid, (size,) = _grid((s.axis,), env, worker)
    index = tuple(evaluate(i, env, _reader(worker)) for i in s.index)
    if s.red is Red.MAX:
        value = np.broadcast_to(evaluate(s.value, grid, _reader(worker)), (size,))
        best = value.max() if size else np.float32(-np.inf)
        _write(worker, s.dst, index, np.asarray(best))
        return
    _write(worker, s.dst, index, _lane_sum(s.value, grid, size, worker))


def _lane_sum(e: Expr, grid: Env, size: int, worker: _Worker) -> Array:
    product = isinstance(e, Apply) and e.fn is Fn.MUL and e.dtype == F32
    terms = e.args if isinstance(e, Apply) and product else (e,)
    values = [np.broadcast_to(evaluate(t, grid, _reader(worker)), (size,)) for t in terms]
    partial = np.zeros(LANES, values[0].dtype)
    for at in range(0, size, LANES):
        part = [v[at : at + LANES] for v in values]
        lanes = len(part[0])
        seen = partial[:lanes]
        partial[:lanes] = fma(part[0], part[1], seen) if product else seen + part[0]
    width = LANES // 2
    while width:
        partial[:width] += partial[width : 2 * width]
        width //= 2
    return np.asarray(partial[0])


def _run_dot(s: Dot, env: Env, worker: _Worker) -> None:
    store = _store(worker, s.acc)
    rows, cols = store.data.shape
    lo, hi = _int(s.lo, env, worker), _int(s.hi, env, worker)
    if hi <= lo:
        return
    read = _reader(worker)
    i = np.arange(rows, dtype=np.int64).reshape(rows, 1)
    j = np.arange(cols, dtype=np.int64).reshape(1, cols)
    k = np.arange(lo, hi, dtype=np.int64)
    a = np.broadcast_to(evaluate(s.a, {**env, s.i: i, s.k: k[None, :]}, read), (rows, hi - lo))
    b = np.broadcast_to(evaluate(s.b, {**env, s.j: j, s.k: k[:, None]}, read), (hi - lo, cols))
    for name, values in (("a", a), ("b", b)):
        if s.engine is not None and not holds(s.engine, values).all():
            raise VerifyError(f"dot into {s.acc.name}: {name} has values that are no {s.engine}")
    acc = _gather(worker, s.acc, store, (i, j))
    for n in range(hi - lo):
        acc = fma(a[:, n : n + 1], b[n : n + 1], acc)
    _write(worker, s.acc, (i, j), acc)


def _run_scaled_dot(s: ScaledDot, env: Env, worker: _Worker) -> None:
    store = _store(worker, s.acc)
    rows, cols = store.data.shape
    if cols != PANEL:
        raise VerifyError(f"scaled_dot into {s.acc.name}: a panel has {PANEL} columns, not {cols}")
    read = _reader(worker)
    at = _int(s.offset, env, worker) + _int(s.panel, env, worker) * s.w.panel_bytes
    row = _int(s.x.row, env, worker)
    i = row + np.arange(rows, dtype=np.int64).reshape(rows, 1)

    def rows_of(buf: Buf, size: int) -> Array:
        index = (i, np.arange(size, dtype=np.int64).reshape(1, size))
        return np.asarray(read(Load(buf, ()), index))

    where = (np.arange(at, at + s.w.panel_bytes, dtype=np.int64),)
    panel = _gather(worker, s.blob, _store(worker, s.blob), where)
    codes, scale, minimum = s.w.unpack_panel(panel)
    groups = (s.w.blocks, s.w.groups, s.w.format.group)
    integers = s.w.format.integers(codes).reshape(PANEL, *groups)
    xq = rows_of(s.x.codes, s.w.k).astype(np.int32).reshape(rows, *groups)
    for sums, size in ((s.x.sums, s.w.blocks), (s.x.halves, 2 * s.w.blocks)):
        # Targets start from these where their instructions take codes without a sign.
        if sums and (rows_of(sums, size) != xq.reshape(rows, size, -1).sum(axis=2)).any():
            raise VerifyError(f"{sums.name} are not the sums of the codes in {s.x.codes.name}")
    own = s.x.groups
    xs = rows_of(s.x.scale, s.w.blocks * own)
    scaled = rows_of(s.x.scaled_sums, s.w.blocks)
    acc = _gather(worker, s.acc, store, (i - row, np.arange(cols).reshape(1, cols)))
    for b in range(s.w.blocks):
        for g in range(s.w.groups):
            dot = xq[:, b, g] @ integers[:, b, g].T
            at = b * own + g % own
            acc = fma(dot.astype(np.float32), xs[:, at : at + 1] * scale[None, :, b, g], acc)
        if minimum is not None:
            acc = fma(np.broadcast_to(minimum[None, :, b], acc.shape), scaled[:, b : b + 1], acc)
    _write(worker, s.acc, (i - row, np.arange(cols).reshape(1, cols)), acc)


_RUN: dict[type, Any] = {
    Alloc: _run_alloc,
    For: _run_for,
    Share: _run_share,
    RowTiles: _run_row_tiles,
    Map: _run_map,
    Reduce: _run_reduce,
    Dot: _run_dot,
    ScaledDot: _run_scaled_dot,
}
