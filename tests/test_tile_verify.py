"""Bad kernels are refused with one line that names the kernel, the statement and the rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from proof_program import proof_program

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.formats import FORMATS
from speccc.ir.packed import PackedMatrix, load_le
from speccc.ir.tile import (
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Mem,
    QuantRows,
    Red,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)
from speccc.ir.tile_verify import verify_kernel
from speccc.ir.types import BF16, E4M3, F16, F32, I8, I32, INDEX, U8, DType

M, U, R, C, K, J = (Var(name) for name in "murckj")
X, Y = Buf("x", (M, 32), F32), Buf("y", (M, 32), F32)
BYTES, CODES, IDS = Buf("w", (4096,), U8), Buf("q", (M, 32), I8), Buf("ids", (M,), I32)
TILE = Buf("acc", (2, 16), F32, Mem.TILE)
ZERO, ONE = ex.lit(0), ex.lit(1.0, F32)
PARAMS = (X, Y, BYTES, CODES, IDS)
W = PackedMatrix(FORMATS["q4_1"], 16, 32)


def f(x: float) -> Expr:
    return Const(x, F32)


def kernel(*body: Stmt, bufs: tuple[Buf, ...] = PARAMS) -> Kernel:
    return Kernel("bad", bufs, (M,), body)


def shared(*body: Stmt) -> Kernel:
    return kernel(Share(U, M, body))


def mapped(value: Expr, dst: Buf = Y) -> Kernel:
    """y[u, c] = value in the rows of a share."""
    return shared(Map(dst, (U, C), (Axis(C, 32),), value))


def tiles(*widths: int) -> Kernel:
    body = (Map(Y, (R, C), (Axis(C, 32),), ONE),)
    return shared(RowTiles(R, M, tuple((w, body) for w in widths)))


def dot(
    a: Expr, b: Expr, acc: Buf = TILE, lo: Expr | int = 0, engine: DType | None = None
) -> Kernel:
    """acc = 0; acc += a . b over (r, j, k)."""
    i, j = Var("i"), Var("j")
    zero = Map(acc, (i, j), (Axis(i, 2), Axis(j, 16)), f(0.0))
    return shared(Alloc(acc), zero, Dot(acc, R, J, K, lo, 4, a, b, engine))


A, B = Load(X, (R, K)), Load(Y, (K, J))
AT = ex.add(ex.mul(K, 32), ex.mul(J, 2))


def scaled(
    w: PackedMatrix = W, acc: Buf = TILE, blob: Buf = BYTES, x: QuantRows | None = None
) -> Kernel:
    return shared(Alloc(acc), *[Alloc(b) for b in QUANT], ScaledDot(acc, x or Q, w, blob, ZERO, U))


QUANT = tuple(
    Buf(n, (M, size), t, Mem.SCRATCH)
    for n, size, t in (("xq", 32, I8), ("xs", 1, F32), ("xi", 1, I32), ("xm", 1, F32))
)
Q = QuantRows(*QUANT, ZERO)
X_AT = Load(X, (U, C))
PRODUCT = ex.mul(X_AT, X_AT)
HELD = Buf("held", (32,), F32, Mem.TILE)


def cast(x: Expr, dtype: object) -> Expr:
    return Apply(Fn.CAST, (x,), dtype)  # type: ignore[arg-type]


def apply(fn: Fn, args: Sequence[Expr], dtype: object = F32) -> Expr:
    return Apply(fn, tuple(args), dtype)  # type: ignore[arg-type]


def held_product() -> Kernel:
    """A product put into a tile first: a compiler sees through the tile."""
    at = Load(HELD, (C,))
    return shared(
        Alloc(HELD),
        Map(HELD, (C,), (Axis(C, 32),), PRODUCT),
        Map(Y, (U, K), (Axis(K, 32),), ex.add(Load(HELD, (K,)), ONE)),
        Map(HELD, (C,), (Axis(C, 32),), at),
    )


GOOD: dict[str, Kernel] = {
    "map": mapped(ex.fma(X_AT, X_AT, 1.0)),
    "in place": mapped(ex.add(Load(Y, (U, C)), ONE)),
    "widths": tiles(8, 4, 2, 1),
    "widths in any order": tiles(1, 3, 2),
    "dot": dot(A, B),
    "dot of f16": dot(A, load_le(BYTES, AT, F16), engine=F16),
    "dot of bf16": dot(A, load_le(BYTES, AT, BF16), engine=BF16),
    "dot of e4m3": dot(A, load_le(BYTES, AT, E4M3), engine=E4M3),
    "scaled": scaled(),
    "scaled fma of product": mapped(ex.fma(X_AT, X_AT, PRODUCT)),
    "difference of integers": mapped(cast(ex.sub(ex.mul(U, 3), 1), F32)),
    "bf16 read": mapped(cast(LoadBytes(BYTES, ZERO, BF16), F32)),
    "proof": proof_program(64, 48).kernel,
}

BAD: dict[str, tuple[Callable[[], Kernel], str]] = {
    # types
    "mixed operands": (lambda: mapped(apply(Fn.ADD, (X_AT, U))), r"map y: add\(f32, index\)"),
    "wrong result": (lambda: mapped(apply(Fn.NEG, (X_AT,), I32)), r"neg\(f32\) as i32"),
    "float division of integers": (lambda: mapped(cast(apply(Fn.DIV, (U, U), INDEX), F32)), "div"),
    "integer division of floats": (lambda: mapped(apply(Fn.IDIV, (X_AT, ONE))), "idiv"),
    "half arithmetic": (
        lambda: mapped(cast(apply(Fn.ADD, [cast(X_AT, F16)] * 2, F16), F32)),
        r"add\(f16, f16\)",
    ),
    "bits of floats": (lambda: mapped(apply(Fn.AND, (X_AT, X_AT))), "and"),
    "select without a condition": (lambda: mapped(apply(Fn.SELECT, (X_AT, ONE, ONE))), "select"),
    "select of two types": (
        lambda: mapped(apply(Fn.SELECT, (ex.lt(X_AT, ONE), ONE, ex.lit(1)))),
        r"select\(bool, f32, index\)",
    ),
    "missing operand": (lambda: mapped(apply(Fn.FMA, (X_AT, ONE))), r"fma\(f32, f32\)"),
    "no operand": (lambda: mapped(apply(Fn.MAX, ())), r"max\(\)"),
    "comparison as a number": (lambda: mapped(apply(Fn.LT, (X_AT, ONE))), "lt"),
    "square root of an integer": (lambda: mapped(apply(Fn.SQRT, (U,), INDEX)), "sqrt"),
    "cast of truth": (lambda: mapped(cast(ex.lt(X_AT, ONE), F32)), r"cast\(bool\)"),
    "cast to bf16": (lambda: mapped(cast(X_AT, BF16)), r"cast\(f32\) as bf16"),
    "bitcast to another size": (lambda: mapped(apply(Fn.BITCAST, (U,), F32)), "bitcast"),
    "fraction as an integer": (lambda: mapped(cast(Const(0.5, I32), F32)), "constant 0.5 as i32"),
    "stored as another type": (lambda: mapped(ex.lit(1)), "a value of index where f32"),
    "truth in a buffer": (lambda: mapped(ex.lt(X_AT, ONE)), "a value of bool"),
    # indices and buffers
    "too few indices": (lambda: mapped(Load(X, (U,))), "buffer x has 2 axes, not 1"),
    "too many indices written": (
        lambda: shared(Map(Y, (U, U, C), (Axis(C, 32),), ONE)),
        "buffer y has 2 axes, not 3",
    ),
    "index of another type": (lambda: mapped(Load(X, (Load(IDS, (U,)), C))), "an index of i32"),
    "float index written": (
        lambda: shared(Map(Y, (U, X_AT), (Axis(C, 32),), ONE)),
        "a value of f32 where index",
    ),
    "bytes of floats": (
        lambda: mapped(LoadBytes(IDS, ZERO, F32)),
        "bytes are read from ids of i32",
    ),
    "bytes of a matrix": (
        lambda: mapped(cast(LoadBytes(CODES, ZERO, F16), F32)),
        "buffer q has 2 axes, not 1",
    ),
    "foreign buffer": (lambda: mapped(Load(TILE, (ZERO, ZERO))), "acc is not a parameter"),
    "used before it is made": (
        lambda: shared(Map(TILE, (ZERO, J), (Axis(J, 16),), ONE), Alloc(TILE)),
        "map acc: buffer acc is not a parameter and not allocated here",
    ),
    "used after its block": (
        lambda: shared(For(R, 0, 2, (Alloc(TILE),)), Map(TILE, (ZERO, ZERO), (), ONE)),
        "buffer acc is not a parameter",
    ),
    "made twice": (lambda: shared(Alloc(TILE), Alloc(TILE)), "buffer acc is made twice"),
    "parameter made": (lambda: kernel(Alloc(X)), "buffer x is made twice"),
    "global made": (lambda: kernel(Alloc(Buf("g", (4,), F32))), "alloc g: global memory cannot"),
    "shared made": (lambda: kernel(Alloc(Buf("g", (4,), F32, Mem.SHARED))), "shared memory"),
    "tile of unknown size": (
        lambda: kernel(Alloc(Buf("t", (M,), F32, Mem.TILE))),
        "alloc t: a tile's sizes must be numbers",
    ),
    "empty tile": (lambda: kernel(Alloc(Buf("t", (0,), F32, Mem.TILE))), "a size of 0"),
    "size that varies": (
        lambda: kernel(For(R, 0, 4, (Alloc(Buf("s", (R,), F32, Mem.SCRATCH)),))),
        "buffer s: size r is no scalar",
    ),
    "size that is read": (
        lambda: kernel(Alloc(Buf("s", (ex.cast(Load(IDS, (ZERO,)), INDEX),), F32, Mem.SCRATCH))),
        "a size may not read a buffer",
    ),
    "parameter that is no global": (lambda: kernel(bufs=(TILE,)), "parameter acc is tile"),
    "parameter given twice": (lambda: kernel(bufs=(X, X)), "parameter x is given twice"),
    # variables
    "free variable": (lambda: mapped(cast(K, F32)), "variable k has no value here"),
    "axis used in its own extent": (
        lambda: shared(Map(Y, (U, C), (Axis(C, C),), ONE)),
        "variable c has no value here",
    ),
    "axis used after its map": (
        lambda: shared(Map(Y, (U, C), (Axis(C, 32),), ONE), Map(Y, (U, C), (), ONE)),
        "variable c has no value here",
    ),
    "bound twice": (lambda: shared(For(U, 0, 2, ())), "for u: variable u is bound twice"),
    "two axes of one name": (
        lambda: shared(Map(Y, (C, C), (Axis(C, 1), Axis(C, 1)), ONE)),
        "variable c is bound twice",
    ),
    "axis in a reduction's index": (
        lambda: shared(Reduce(Y, (U, R), Axis(R, 32), Red.SUM, X_AT)),
        "variable r has no value here",
    ),
    "float loop": (lambda: kernel(For(Var("v", F32), 0, 2, ())), "variable v is f32"),
    "float bound": (lambda: kernel(For(R, 0, ONE, ())), "for r: a value of f32 where index"),
    # workers
    "share in share": (lambda: shared(Share(R, 2, ())), "share r: a share inside a share"),
    "share in tiles in share": (
        lambda: shared(RowTiles(R, M, ((1, (Share(K, 2, ()),)),))),
        "a share inside a share",
    ),
    "all workers write": (
        lambda: kernel(Map(Y, (ZERO, C), (Axis(C, 32),), ONE)),
        "all workers write y: share it out",
    ),
    "moved in place": (
        lambda: mapped(Load(Y, (U, ex.sub(31, C)))),
        "reads y elsewhere than it writes it",
    ),
    # row tiles
    "no width": (lambda: tiles(), "must differ and begin with 1"),
    "no width of 1": (lambda: tiles(4, 2), r"row_tiles r: widths \[2, 4\] must"),
    "width of 0": (lambda: tiles(1, 0), "must differ and begin with 1"),
    "width twice": (lambda: tiles(2, 1, 2), "must differ"),
    "gap": (lambda: tiles(8, 3, 2, 1), "width 8 is more than twice the next smaller one, 3"),
    # sums
    "add of a product": (lambda: mapped(ex.add(PRODUCT, ONE)), "add of a product: write it as"),
    "sub of a product": (lambda: mapped(ex.sub(ONE, PRODUCT)), "sub of a product"),
    "add of a negated product": (
        lambda: mapped(ex.add(ONE, ex.unary(Fn.NEG, PRODUCT))),
        "add of a product",
    ),
    "add of a chosen product": (
        lambda: mapped(ex.add(ONE, ex.select(ex.lt(X_AT, ONE), PRODUCT, X_AT))),
        "add of a product",
    ),
    "fma by one": (lambda: mapped(ex.fma(X_AT, 1.0, PRODUCT)), "fma by one: write it as an add"),
    "fma by minus one": (lambda: mapped(ex.fma(f(-1.0), X_AT, X_AT)), "fma by one"),
    "hidden deep": (lambda: mapped(ex.div(ONE, ex.add(ONE, PRODUCT))), "add of a product"),
    "product through a tile": (held_product, "map y: float add of a product"),
    "sum of negated products": (
        lambda: shared(Reduce(Y, (U, ZERO), Axis(R, 32), Red.SUM, ex.unary(Fn.NEG, ROW_PRODUCT))),
        "reduce y: a sum of products",
    ),
    "sum of bytes": (
        lambda: shared(Reduce(CODES, (U, ZERO), Axis(R, 32), Red.SUM, Load(CODES, (U, R)))),
        "a sum of i8",
    ),
    "maximum of integers": (
        lambda: shared(Reduce(IDS, (U,), Axis(R, 1), Red.MAX, Load(IDS, (R,)))),
        "a max of i32",
    ),
    # dots
    "a reads j": (lambda: dot(Load(X, (R, J)), B), "dot acc: a reads j"),
    "b reads i": (lambda: dot(A, Load(X, (R, J))), "dot acc: b reads r"),
    "a of integers": (lambda: dot(Load(CODES, (R, K)), B), "a value of i8 where f32"),
    "bound by k": (lambda: dot(A, B, lo=K), "variable k has no value here"),
    "reads what it sums": (lambda: dot(Load(TILE, (R, K)), B), "a reads the accumulator"),
    "sums in scratch": (
        lambda: dot(A, B, replace_mem(TILE, Mem.SCRATCH)),
        "the accumulator must be a tile",
    ),
    "sums in a vector": (lambda: line_dot(), "the accumulator must be a tile"),
    "ragged accumulator": (
        lambda: dot(A, B, Buf("acc", (2, 24), F32, Mem.TILE)),
        "24 columns, not a multiple of 16",
    ),
    "an engine of f32": (lambda: dot(A, B, engine=F32), "dot acc: no matrix engine takes f32"),
    "an engine's b of f32": (lambda: dot(A, B, engine=F16), "b is no f16 as it is stored"),
    "an engine's b of another type": (
        lambda: dot(A, load_le(BYTES, AT, F16), engine=BF16),
        "b is no bf16 as it is stored",
    ),
    "an engine's b times two": (
        lambda: dot(A, ex.mul(load_le(BYTES, AT, E4M3), 2.0), engine=E4M3),
        "b is no e4m3 as it is stored",
    ),
    "two panels": (
        lambda: scaled(acc=Buf("acc", (2, 32), F32, Mem.TILE)),
        "scaled_dot acc: the accumulator has 32 columns, not 16",
    ),
    "float weights": (
        lambda: scaled(PackedMatrix(FORMATS["f16"], 16, 32)),
        "weights of f16 with 32 columns are not in blocks",
    ),
    "part of a block": (
        lambda: scaled(PackedMatrix(FORMATS["q4_1"], 16, 40)),
        "with 40 columns are not in blocks",
    ),
    "weights in floats": (lambda: scaled(blob=X), "weights lie in bytes, not in x of f32"),
    "activations of another width": (
        lambda: scaled(PackedMatrix(FORMATS["q4_1"], 16, 64)),
        r"activations in xq are not i8\[rows, 64\]",
    ),
    "scales as sums": (
        lambda: scaled(x=QuantRows(QUANT[0], QUANT[1], QUANT[1], QUANT[3], ZERO)),
        r"activations in xs are not i32\[rows, 1\]",
    ),
}
ROW_PRODUCT = ex.mul(Load(X, (U, R)), Load(X, (U, R)))


def replace_mem(buf: Buf, mem: Mem) -> Buf:
    return replace(buf, mem=mem)


def line_dot() -> Kernel:
    line = Buf("line", (16,), F32, Mem.TILE)
    return shared(Alloc(line), Dot(line, R, J, K, 0, 4, A, B))


@pytest.mark.parametrize("which", GOOD)
def test_good(which: str) -> None:
    verify_kernel(GOOD[which])


@pytest.mark.parametrize("which", BAD)
def test_bad(which: str) -> None:
    make, message = BAD[which]
    with pytest.raises(VerifyError, match=message) as caught:
        verify_kernel(make())
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("kernel bad: ")


def test_fragment_statements_are_refused() -> None:
    from speccc.ir.fragment import Barrier

    with pytest.raises(VerifyError, match="Barrier is not a statement of the block level"):
        verify_kernel(kernel(Barrier()))
