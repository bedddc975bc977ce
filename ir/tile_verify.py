"""What a block-level kernel must obey before it is interpreted or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from speccc.errors import VerifyError
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var, children, variables
from speccc.ir.matrix_engine import ENGINES, stored
from speccc.ir.packed import BLOCK
from speccc.ir.plan import Plan, phases
from speccc.ir.tile import (
    LANES,
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Mem,
    Red,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
    walk,
)
from speccc.ir.tile_text import headline
from speccc.ir.tile_types import type_error
from speccc.ir.types import F32, I8, I32, INDEX, U8, DType


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a statement can see. `products` are the buffers that somewhere receive a product."""

    where: str
    scalars: frozenset[Var]
    products: frozenset[Buf]
    bufs: frozenset[Buf]
    variables: frozenset[Var]
    shared: bool = False

    def error(self, text: str) -> VerifyError:
        return VerifyError(f"{self.where}: {text}")

    def bind(self, *names: Var) -> _Scope:
        """The scope inside a loop over `names`."""
        for n, v in enumerate(names):
            if v in self.variables or v in names[:n]:
                raise self.error(f"variable {v.name} is bound twice")
            if v.dtype != INDEX:
                raise self.error(f"variable {v.name} is {v.dtype}, not {INDEX}")
        return replace(self, variables=self.variables | frozenset(names))


def verify_plan(plan: Plan) -> None:
    """Verifies every kernel of a plan."""
    for kernel in phases(plan.body):
        verify_kernel(kernel)


def verify_kernel(kernel: Kernel) -> None:
    """VerifyError, one line with the kernel and the statement, for the first rule broken."""
    where = f"kernel {kernel.name}"
    products = frozenset(
        s.dst for s in walk(kernel.body) if isinstance(s, Map) and _is_product(s.value, ())
    )
    scope = _Scope(where, frozenset(kernel.scalars), products, frozenset(), frozenset())
    scope = scope.bind(*kernel.scalars)
    for n, buf in enumerate(kernel.bufs):
        if buf.mem is not Mem.GLOBAL:
            raise scope.error(f"parameter {buf.name} is {buf.mem.value}, not global")
        if buf in kernel.bufs[:n]:
            raise scope.error(f"parameter {buf.name} is given twice")
        _shape(buf, scope)
    _allocated_once(kernel, scope)
    _block(kernel.body, replace(scope, bufs=frozenset(kernel.bufs)))


def _allocated_once(kernel: Kernel, scope: _Scope) -> None:
    seen = set(kernel.bufs)
    for s in walk(kernel.body):
        if isinstance(s, Alloc):
            if s.buf in seen:
                raise scope.error(f"buffer {s.buf.name} is made twice")
            seen.add(s.buf)


def _block(body: tuple[Stmt, ...], outer: _Scope) -> None:
    kernel = outer.where.split(":")[0]
    scope = outer
    for s in body:
        check = _CHECK.get(type(s))
        if check is None:
            raise scope.error(f"{type(s).__name__} is not a statement of the block level")
        check(s, replace(scope, where=f"{kernel}: {headline(s)}"))
        if isinstance(s, Alloc):
            scope = replace(scope, bufs=scope.bufs | {s.buf})


def _shape(buf: Buf, scope: _Scope) -> None:
    for d in buf.shape:
        if isinstance(d, int):
            if d < 1:
                raise scope.error(f"buffer {buf.name} has a size of {d}")
            continue
        foreign = [v.name for v in variables(d) if v not in scope.scalars]
        if foreign:
            raise scope.error(f"buffer {buf.name}: size {foreign[0]} is no scalar of the kernel")
        if _loads(d):
            raise scope.error(f"buffer {buf.name}: a size may not read a buffer")
        _index(d, scope)


def _alloc(s: Alloc, scope: _Scope) -> None:
    if s.buf.mem not in (Mem.SCRATCH, Mem.TILE):
        raise scope.error(f"{s.buf.mem.value} memory cannot be allocated")
    if s.buf.mem is Mem.TILE and not all(isinstance(d, int) for d in s.buf.shape):
        raise scope.error("a tile's sizes must be numbers")
    _shape(s.buf, scope)


def _loads(e: Expr) -> tuple[Load | LoadBytes, ...]:
    own = (e,) if isinstance(e, (Load, LoadBytes)) else ()
    return own + tuple(x for c in children(e) for x in _loads(c))


def _is_product(e: Expr, products: Iterable[Buf]) -> bool:
    """Whether a compiler could see a float product here and contract an add with it."""
    if isinstance(e, Load):
        return e.buf in products
    if not isinstance(e, Apply) or e.dtype != F32:
        return False
    if e.fn in (Fn.NEG, Fn.SELECT):
        # LLVM makes select(c, x * y, y) the product select(c, x, 1) * y.
        return any(_is_product(a, products) for a in e.args)
    return e.fn is Fn.MUL


def _is_one(e: Expr) -> bool:
    return isinstance(e, Const) and abs(e.value) == 1


def _expr(e: Expr, scope: _Scope) -> None:
    if isinstance(e, Var):
        if e not in scope.variables:
            raise scope.error(f"variable {e.name} has no value here")
        return
    if isinstance(e, (Load, LoadBytes)):
        _access(e.buf, e.index if isinstance(e, Load) else (e.at,), scope)
    for c in children(e):
        _expr(c, scope)
    problem = type_error(e)
    if problem is not None:
        raise scope.error(problem)
    if isinstance(e, Apply) and e.fn in (Fn.ADD, Fn.SUB) and e.dtype == F32:
        for a in e.args:
            if _is_product(a, scope.products):
                raise scope.error(f"float {e.fn.value} of a product: write it as an fma")
    if isinstance(e, Apply) and e.fn is Fn.FMA and any(_is_one(a) for a in e.args[:2]):
        # LLVM makes an add of it, and may then contract that with a product.
        raise scope.error("fma by one: write it as an add")


def _value(e: Expr, dtype: DType, scope: _Scope) -> None:
    _expr(e, scope)
    if e.dtype != dtype:
        raise scope.error(f"a value of {e.dtype} where {dtype} is needed")


def _index(e: Expr | int, scope: _Scope) -> None:
    if not isinstance(e, int):
        _value(e, INDEX, scope)


def _access(buf: Buf, index: tuple[Expr, ...], scope: _Scope) -> None:
    _visible(buf, scope)
    if len(index) != len(buf.shape):
        raise scope.error(f"buffer {buf.name} has {len(buf.shape)} axes, not {len(index)}")


def _visible(buf: Buf, scope: _Scope) -> None:
    if buf not in scope.bufs:
        raise scope.error(f"buffer {buf.name} is not a parameter and not allocated here")


def _write(buf: Buf, index: tuple[Expr, ...], scope: _Scope) -> None:
    _access(buf, index, scope)
    for i in index:
        _index(i, scope)
    if buf.mem is Mem.GLOBAL and not scope.shared:
        raise scope.error(f"all workers write {buf.name}: share it out")


def _for(s: For, scope: _Scope) -> None:
    _index(s.lo, scope)
    _index(s.hi, scope)
    _block(s.body, scope.bind(s.var))


def _share(s: Share, scope: _Scope) -> None:
    if scope.shared:
        raise scope.error("a share inside a share")
    _index(s.extent, scope)
    _block(s.body, replace(scope.bind(s.var), shared=True))


def _row_tiles(s: RowTiles, scope: _Scope) -> None:
    _index(s.extent, scope)
    widths = sorted(width for width, _ in s.variants)
    if widths[:1] != [1] or len(set(widths)) != len(widths):
        raise scope.error(f"widths {widths} must differ and begin with 1")
    # Then what is left after the widest tiles needs each smaller width at most once.
    for small, large in pairwise(widths):
        if large > 2 * small:
            raise scope.error(f"width {large} is more than twice the next smaller one, {small}")
    inner = scope.bind(s.var)
    for _, body in s.variants:
        _block(body, inner)


def _axes(axes: tuple[Axis, ...], scope: _Scope) -> _Scope:
    for a in axes:
        _index(a.extent, scope)
    return scope.bind(*(a.var for a in axes))


def _map(s: Map, scope: _Scope) -> None:
    inner = _axes(s.axes, scope)
    _write(s.dst, s.index, inner)
    _value(s.value, s.dst.dtype, inner)
    for e in (s.value, *s.index):
        for read in _loads(e):
            moved = isinstance(read, LoadBytes) or read.index != s.index
            if s.axes and read.buf is s.dst and moved:
                raise scope.error(f"reads {s.dst.name} elsewhere than it writes it")


def _reduce(s: Reduce, scope: _Scope) -> None:
    inner = _axes((s.axis,), scope)
    _write(s.dst, s.index, scope)
    _value(s.value, s.dst.dtype, inner)
    if s.dst.dtype not in ((F32, I32) if s.red is Red.SUM else (F32,)):
        raise scope.error(f"a {s.red.value} of {s.dst.dtype}")
    multiplied = isinstance(s.value, Apply) and s.value.fn is Fn.MUL
    if s.red is Red.SUM and not multiplied and _is_product(s.value, scope.products):
        raise scope.error("a sum of products that are not seen as such")


def _accumulator(buf: Buf, scope: _Scope, columns: int | None) -> None:
    _visible(buf, scope)
    shape, at_least = buf.shape, LANES
    fixed = len(shape) == 2 and all(isinstance(d, int) for d in shape)
    if buf.mem is not Mem.TILE or buf.dtype != F32 or not fixed:
        raise scope.error("the accumulator must be a tile f32[rows, columns]")
    last = shape[1]
    if not isinstance(last, int) or last % at_least or columns not in (None, last):
        wanted = f"{columns}" if columns else f"a multiple of {LANES}"
        raise scope.error(f"the accumulator has {last} columns, not {wanted}")


def _dot(s: Dot, scope: _Scope) -> None:
    _accumulator(s.acc, scope, None)
    _index(s.lo, scope)
    _index(s.hi, scope)
    inner = scope.bind(s.i, s.j, s.k)
    for name, e, foreign in (("a", s.a, s.j), ("b", s.b, s.i)):
        _value(e, F32, inner)
        if foreign in variables(e):
            raise scope.error(f"{name} reads {foreign.name}, an axis of the other operand")
        if any(read.buf is s.acc for read in _loads(e)):
            raise scope.error(f"{name} reads the accumulator")
    if s.engine is not None and s.engine not in ENGINES:
        raise scope.error(f"no matrix engine takes {s.engine}")
    if s.engine is not None and stored(s.engine, s.b) is None:
        raise scope.error(f"b is no {s.engine} as it is stored")


def _scaled_dot(s: ScaledDot, scope: _Scope) -> None:
    _accumulator(s.acc, scope, LANES)
    if s.w.is_float or s.w.k % BLOCK:
        raise scope.error(f"weights of {s.w.format.name} with {s.w.k} columns are not in blocks")
    _visible(s.blob, scope)
    if s.blob.dtype != U8 or len(s.blob.shape) != 1:
        raise scope.error(f"weights lie in bytes, not in {s.blob.name} of {s.blob.dtype}")
    for e in (s.offset, s.panel, s.x.row):
        _index(e, scope)
    parts = [(s.x.codes, I8, s.w.k), (s.x.scale, F32, s.x.groups * s.w.blocks)]
    parts += [(s.x.sums, I32, s.w.blocks), (s.x.scaled_sums, F32, s.w.blocks)]
    if s.x.groups not in (1, s.w.groups):
        raise scope.error(f"weights of {s.w.format.name} take one scale a block of activations")
    if s.w.groups > 1:
        if s.x.halves is None:
            raise scope.error(f"weights of {s.w.format.name} need the sums of half blocks")
        parts.append((s.x.halves, I32, 2 * s.w.blocks))
    for buf, dtype, size in parts:
        _visible(buf, scope)
        if buf.dtype != dtype or len(buf.shape) != 2 or buf.shape[1] != size:
            raise scope.error(f"activations in {buf.name} are not {dtype}[rows, {size}]")


_CHECK: dict[type, Callable[..., None]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: _reduce,
    Dot: _dot,
    ScaledDot: _scaled_dot,
}
