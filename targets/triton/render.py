"""Block-level tile kernels -> Triton source text, one program of the grid a worker.

Every allocated buffer is a slice of a scratch argument of its element type. Barriers stand on both
sides of each store, since another thread of the program may hold the element before or after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Expr, Fn, Var
from speccc.ir.interp_expr import evaluate
from speccc.ir.packed import BLOCK, PANEL
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
    walk,
)
from speccc.ir.types import F32, Kind
from speccc.targets.triton.render_expr import TYPES, Mask, helpers, render
from speccc.targets.triton_build import TritonKernel

TILE = 1024
"""Most elements of a tile of a `Map` or of a `Reduce` by maximum."""
TOKENS = 16
"""Least columns of a `tl.dot`: the tokens of a row tile are padded to it."""
_POINTERS = {"f32": "*fp32", "f16": "*fp16", "i8": "*i8", "u8": "*u8", "i32": "*i32", "u32": "*u32"}


@dataclass(frozen=True)
class Rendered:
    """A kernel's text, and what a launch needs: `scratch` is elements a worker by argument."""

    kernel: TritonKernel
    args: Mapping[Buf | Var, str]
    scratch: Mapping[str, Expr]

    def scratch_size(self, name: str, scalars: Mapping[Var, int], workers: int) -> int:
        """Elements of the scratch argument `name` for a launch of `workers` programs."""
        return workers * int(evaluate(self.scratch[name], scalars, None))  # type: ignore[arg-type]


@dataclass
class _Writer:
    """Lines, names and the places of buffers."""

    env: dict[Var, str] = field(default_factory=dict)
    bases: dict[Buf, str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def put(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, wanted: str) -> str:
        n = self.used.get(wanted, 0)
        self.used[wanted] = n + 1
        return wanted if n == 0 else f"{wanted}_{n}"

    def expr(self, e: Expr | int, mask: Mask | None = None) -> str:
        return str(e) if isinstance(e, int) else render(e, self.env, self.place, mask)

    def place(self, buf: Buf, at: Expr | None, index: tuple[Expr, ...]) -> str:
        flat: Expr = ex.lit(0) if at is None else at
        for i, size in zip(index, buf.shape, strict=True) if at is None else ():
            flat = ex.add(ex.mul(flat, size), i)
        return f"{self.bases[buf]} + {self.expr(flat)}"

    def store(self, at: str, value: str, mask: str | None) -> None:
        name = self.name("value")
        self.put(f"{name} = {value}")
        self.put("tl.debug_barrier()")
        self.put(f"tl.store({at}, {name}" + (")" if mask is None else f", mask={mask})"))
        self.put("tl.debug_barrier()")

    def loop(self, var: Var, lo: str, hi: str, step: str = "1") -> None:
        self.env[var] = self.name(var.name)
        self.put(f"for {self.env[var]} in range({lo}, {hi}, {step}):")
        self.depth += 1


def render_kernel(kernel: Kernel, arch: str) -> Rendered:
    """Triton source of a block-level kernel. UnsupportedError names what has no form."""
    w = _Writer(used={n: 1 for n in ("tl", "triton", "exp", "rint", "value", "worker", "workers")})
    args: dict[Buf | Var, str] = {}
    signature: dict[str, str] = {}
    for buf in kernel.bufs:
        args[buf] = w.bases[buf] = w.name(buf.name)
        signature[args[buf]] = _POINTERS[buf.dtype.name]
    for var in kernel.scalars:
        args[var] = w.env[var] = w.name(var.name)
        signature[args[var]] = "i64"
    scratch = _scratch(w, kernel)
    signature.update({f"scratch_{n}": _POINTERS[n] for n in scratch})
    _block(w, kernel.body)
    body = "\n".join(w.lines)
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    source = (
        f"# {kernel.name} for {arch}, {digest}\nimport triton\nimport triton.language as tl\n\n\n"
        f"{helpers()}\n\n@triton.jit\ndef {kernel.name}({', '.join(signature)}):\n{body}\n"
    )
    sizes = {f"scratch_{n}": size for n, size in scratch.items()}
    return Rendered(TritonKernel(source, kernel.name, signature), args, sizes)


def _scratch(w: _Writer, kernel: Kernel) -> dict[str, Expr]:
    """Deals out scratch: the name of each buffer's slice, and elements a worker by type."""
    w.put("worker = tl.program_id(0).to(tl.int64)")
    w.put("workers = tl.num_programs(0)")
    bufs = [s.buf for s in walk(kernel.body) if isinstance(s, Alloc)]
    totals: dict[str, Expr] = {}
    places: list[tuple[Buf, Expr]] = []
    for buf in bufs:
        size: Expr = ex.lit(1)
        for d in buf.shape:
            size = ex.mul(size, d)
        at = totals.get(buf.dtype.name, ex.lit(0))
        places.append((buf, at))
        totals[buf.dtype.name] = ex.add(at, size)
    for buf, at in places:
        w.bases[buf] = w.name(buf.name)
        stride = w.expr(totals[buf.dtype.name])
        arg = f"scratch_{buf.dtype.name}"
        w.put(f"{w.bases[buf]} = {arg} + worker * {stride} + {w.expr(at)}")
    return totals


def _block(w: _Writer, body: tuple[Stmt, ...]) -> None:
    for s in body:
        emit = _EMIT.get(type(s))
        if emit is None:
            raise UnsupportedError(f"no form of {type(s).__name__}", where="triton")
        emit(w, s)


def _alloc(w: _Writer, s: Alloc) -> None:
    """The slice was dealt out at the top."""


def _for(w: _Writer, s: For) -> None:
    w.loop(s.var, w.expr(s.lo), w.expr(s.hi))
    _block(w, s.body)
    w.depth -= 1


def _share(w: _Writer, s: Share) -> None:
    extent = w.expr(s.extent)
    w.loop(s.var, f"worker * {extent} // workers", f"(worker + 1) * {extent} // workers")
    _block(w, s.body)
    w.depth -= 1


def _row_tiles(w: _Writer, s: RowTiles) -> None:
    lo = "0"
    for width, body in sorted(s.variants, key=lambda v: -v[0]):
        end = w.name(f"{s.var.name}_end")
        w.put(f"{end} = {lo} + ({w.expr(s.extent)} - {lo}) // {width} * {width}")
        w.loop(s.var, lo, end, str(width))
        _block(w, body)
        w.depth -= 1
        lo = end


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _axes(w: _Writer, axes: tuple[Axis, ...]) -> Mask | None:
    """Opens loops over and makes tiles of the axes; the mask of the tile."""
    sizes = [_power(a.extent) if isinstance(a.extent, int) else TILE for a in axes]
    tiled = len(axes) - 1
    room = TILE // min(sizes[-1], TILE) if axes else 0
    while tiled > 0 and isinstance(axes[tiled - 1].extent, int) and sizes[tiled - 1] <= room:
        tiled -= 1
        room //= sizes[tiled]
    for a in axes[: max(tiled, 0)]:
        w.loop(a.var, "0", w.expr(a.extent))
    masks = []
    tile = axes[max(tiled, 0) :]
    for n, a in enumerate(tile):
        size = min(_power(a.extent) if isinstance(a.extent, int) else TILE, TILE)
        shape = ", ".join(":" if d == n else "None" for d in range(len(tile)))
        lanes = f"tl.arange(0, {size})" + (f"[{shape}]" if len(tile) > 1 else "")
        extent = w.expr(a.extent)
        if not isinstance(a.extent, int) or a.extent > TILE:
            first = Var(f"{a.var.name}_first")
            w.loop(first, "0", extent, str(size))
            lanes = f"{w.env[first]} + {lanes}"
        w.env[a.var] = w.name(a.var.name)
        w.put(f"{w.env[a.var]} = {lanes}")
        masks.append(f"({w.env[a.var]} < {extent})")
    if not masks:
        return None
    mask = w.name("mask")
    w.put(f"{mask} = {' & '.join(masks)}")
    return Mask(mask, frozenset(a.var for a in tile))


def _map(w: _Writer, s: Map) -> None:
    depth = w.depth
    mask = _axes(w, s.axes)
    text = None if mask is None else mask.text
    w.store(w.place(s.dst, None, s.index), w.expr(s.value, mask), text)
    w.depth = depth


def _reduce(w: _Writer, s: Reduce) -> None:
    # Sixteen partial results, taken in steps of sixteen: the order the IR fixes for a sum.
    total, first, depth = w.name("partial"), Var(f"{s.axis.var.name}_first"), w.depth
    low = "-float('inf')" if s.red is Red.MAX and s.value.dtype.kind is Kind.FLOAT else "0"
    if s.red is Red.MAX and low == "0":
        raise UnsupportedError("no form of a maximum of integers", where="triton")
    extent = w.expr(s.axis.extent)
    w.put(f"{total} = tl.full(({LANES},), {low}, {TYPES[s.dst.dtype.name]})")
    w.loop(first, "0", extent, str(LANES))
    w.env[s.axis.var] = w.name(s.axis.var.name)
    w.put(f"{w.env[s.axis.var]} = {w.env[first]} + tl.arange(0, {LANES})")
    mask = Mask(w.name("mask"), frozenset((s.axis.var,)))
    w.put(f"{mask.text} = {w.env[s.axis.var]} < {extent}")
    w.put(f"{total} = tl.where({mask.text}, {_step(w, s, total, mask)}, {total})")
    w.depth = depth
    fold = "tl.max" if s.red is Red.MAX else "tl.sum"
    for width in (8, 4, 2):
        w.put(f"{total} = {fold}(tl.reshape({total}, (2, {width})), axis=0)")
    w.store(w.place(s.dst, None, s.index), f"{fold}({total}, axis=0)", None)


def _step(w: _Writer, s: Reduce, total: str, mask: Mask) -> str:
    value = s.value
    if s.red is Red.MAX:
        return f"tl.maximum({total}, {w.expr(value, mask)})"
    if isinstance(value, Apply) and value.fn is Fn.MUL and value.dtype == F32:
        a, b = (w.expr(v, mask) for v in value.args)
        return f"tl.fma({a}, {b}, {total})"
    return f"{total} + {w.expr(value, mask)}"


@dataclass(frozen=True, slots=True)
class _Acc:
    """Names of an accumulator as [16 columns of the panel, tokens], and where it is kept."""

    name: str
    at: str
    lane: str
    token: str
    live: str


def _load_acc(w: _Writer, acc: Buf) -> _Acc:
    rows = acc.shape[0]
    if not isinstance(rows, int):
        raise UnsupportedError("an accumulator has a fixed number of rows", where="triton")
    name, lane, token, live = (w.name(n) for n in ("acc", "lane", "token", "live"))
    w.put(f"{lane} = tl.arange(0, {PANEL})[:, None]")
    w.put(f"{token} = tl.arange(0, {max(TOKENS, _power(rows))})[None, :]")
    w.put(f"{live} = {token} < {rows}")
    at = f"{w.bases[acc]} + {token} * {LANES} + {lane}"
    w.put(f"{name} = tl.load({at}, mask={live}, other=0)")
    return _Acc(name, at, lane, token, live)


def _dot(w: _Writer, s: Dot) -> None:
    acc, depth = _load_acc(w, s.acc), w.depth
    w.env[s.i], w.env[s.j] = acc.token, acc.lane
    w.loop(s.k, w.expr(s.lo), w.expr(s.hi))
    a, b = w.expr(s.a, Mask(acc.live, frozenset((s.i,)))), w.expr(s.b)
    w.put(f"{acc.name} = tl.fma({a}, {b}, {acc.name})")
    w.depth = depth
    w.store(acc.at, acc.name, acc.live)


def _scaled_dot(w: _Writer, s: ScaledDot) -> None:
    """The central rule: weights are the 16 rows of an int8 `tl.dot`, tokens its columns."""
    if s.w.bits not in (4, 8):
        raise UnsupportedError(f"no form of ScaledDot of {s.w.bits} bit codes", where="triton")
    acc, depth, b = _load_acc(w, s.acc), w.depth, Var("block")
    column, base, lane, t = w.name("column"), Var("base"), Var("lane"), Var("t")
    w.put(f"{column} = tl.arange(0, {BLOCK})")
    row = w.expr(s.x.row)
    w.loop(b, "0", str(s.w.blocks))
    names = [w.name(n) for n in ("base", "codes", "rows", "dot")]
    panel = ex.add(s.offset, ex.mul(s.panel, s.w.panel_bytes))
    w.put(f"{names[0]} = {w.expr(ex.add(panel, ex.mul(b, s.w.block_bytes)))}")
    w.env.update({base: names[0], lane: acc.lane, t: f"{column}[None, :]"})
    code = w.expr(s.w.code(s.blob, base, lane, t))
    # Codes less the zero point are int8 for every format: the same integer as by the sums.
    w.put(f"{names[1]} = ({code} - {s.w.format.zero_point}).to(tl.int8)")
    at = f"({row} + {acc.token}) * {s.w.k} + {w.env[b]} * {BLOCK} + {column}[:, None]"
    w.put(f"{names[2]} = tl.load({w.bases[s.x.codes]} + {at}, mask={acc.live}, other=0)")
    dot = f"tl.dot({names[1]}, {names[2]}, out_dtype=tl.int32)"
    w.put(f"{names[3]} = {dot}.to(tl.float32)")
    at = f"({row} + {acc.token}) * {s.w.blocks} + {w.env[b]}, mask={acc.live}, other=0)"
    scale = f"tl.load({w.bases[s.x.scale]} + {at} * {w.expr(s.w.scale(s.blob, base, lane))}"
    w.put(f"{acc.name} = tl.fma({names[3]}, {scale}, {acc.name})")
    if s.w.format.has_min:
        low = w.expr(s.w.minimum(s.blob, base, lane))
        scaled = f"tl.load({w.bases[s.x.scaled_sums]} + {at}"
        w.put(f"{acc.name} = tl.fma({low}, {scaled}, {acc.name})")
    w.depth = depth
    w.store(acc.at, acc.name, acc.live)


_EMIT: dict[type, Callable[[_Writer, Any], None]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: _reduce,
    Dot: _dot,
    ScaledDot: _scaled_dot,
}
