"""Products of floats as `tl.dot`, a step of columns at a time.

A step's products are summed by the matrix engine from zero, which its instructions do as they like;
the sums of steps are added in f32 in their order. So what is not documented reaches no further than
one step, and its instructions are the same for all heights of a tile. A sum that an instruction
itself kept, over all steps, would lose bits: for e4m3 NVIDIA's keep 14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from speccc.ir import expr as ex
from speccc.ir.expr import (
    Apply,
    Const,
    Expr,
    Fn,
    Load,
    LoadBytes,
    Var,
    children,
    quotient,
    substitute,
    variables,
)
from speccc.ir.matrix_engine import stored
from speccc.ir.tile import Dot, Stmt
from speccc.ir.types import BF16, E4M3, F16, DType
from speccc.targets.devices.profile import Profile
from speccc.targets.triton.expr import TYPES, Tiled
from speccc.targets.triton.schedule import Fp8, Shape
from speccc.targets.triton.writer import Writer


@dataclass(frozen=True, slots=True)
class Operands:
    """How elements become what the engine multiplies.

    `step` are the columns that one instruction, or two of them, sums; `weights` the text of stored
    ones, `rows` of f32, and `times` what the products are short of.
    """

    step: int
    weights: str
    rows: str
    times: float = 1.0


OPERANDS: dict[DType, Operands] = {
    F16: Operands(32, "{}", "({}).to(tl.float16)"),
    BF16: Operands(32, "({}).to(tl.bfloat16, bitcast=True)", "({}).to(tl.bfloat16)"),
    E4M3: Operands(32, "({}).to(tl.float8e4nv, bitcast=True)", "({}).to(tl.float8e4nv)"),
}
CACHE_STEP = 16
"""Columns of a step where a product's right side is the cache: its rows are many, as heads are
folded in, and with 32 columns of 64 rows registers spill."""
# The bits of an e4m3 in those of an f16 are the number over 256, subnormal ones too.
E4M3_AS_F16 = Operands(32, "e4m3_as_f16({})", "({}).to(tl.float16)", 256.0)
# Where an instruction makes two f16 of two e4m3.
E4M3_TO_F16 = Operands(
    32, "({}).to(tl.float8e4nv, bitcast=True).to(tl.float16)", OPERANDS[F16].rows
)
HELPER = '''@triton.jit
def e4m3_as_f16(x):
    """Bytes of e4m3 as f16, over 256: exact."""
    wide = x.to(tl.uint16)
    return (((wide & 128) << 8) | ((wide & 127) << 7)).to(tl.float16, bitcast=True)
'''


def by_engine(s: Stmt) -> bool:
    """Whether a statement's sum is made by a matrix engine here."""
    return isinstance(s, Dot) and s.engine in OPERANDS and isinstance(s.lo, int) and s.hi != s.lo


def operands(shape: Shape, dtype: DType) -> Operands:
    """How a device multiplies numbers of a type: e4m3 as f16 where it has no such instruction."""
    if dtype != E4M3 or (shape.fp8 and not shape.fp8.halves):
        return OPERANDS[dtype]
    return E4M3_TO_F16 if shape.fp8 else E4M3_AS_F16


def fp8_of(profile: Profile) -> Fp8 | None:
    """The instruction for e4m3 as it is, without scales by block, if a device has one."""
    found = profile.arch.matrix.value if profile.arch.matrix else ()
    return Fp8() if any(m.a == m.b == E4M3.name and m.scale is None for m in found) else None


def units_of(s: Stmt, shape: Shape, unit: Var) -> int | None:
    """Most panels of the tile of a sum that the engine makes; None of another statement.

    They are neighbours among the units that read the same rows.
    """
    if not isinstance(s, Dot) or not by_engine(s):
        return None
    most = shape.fp8.units if shape.fp8 and s.engine == E4M3 else shape.float_units
    alike = _alike(s.a, unit)
    return most if alike is None else min(most, alike & -alike)


def _alike(e: Expr, unit: Var) -> int | None:
    """How many units that follow each other have the same value, from a multiple on; None: all."""
    if unit not in variables(e):
        return None
    if isinstance(e, Apply) and e.fn is Fn.IDIV and e.args[0] is unit:
        return int(e.args[1].value) if isinstance(e.args[1], Const) else 1
    return math.gcd(*(n for c in children(e) if (n := _alike(c, unit)) is not None)) or 1


def tokens_of(s: Stmt, shape: Shape) -> int:
    """Least rows of a tile with such a sum."""
    return shape.fp8.tokens if shape.fp8 and isinstance(s, Dot) and s.engine == E4M3 else 1


def engine_steps(w: Writer, s: Dot, name: str) -> None:
    """The loop over steps, left open; `name` is the accumulator's."""
    how, count, step = _operands(w.shape, s), ex.sub(ex.lit(s.hi), s.lo), Var("step")
    steps, number = quotient(count, how.step), w.name("step")
    whole = steps is not None
    steps = steps or ex.idiv(ex.add(count, how.step - 1), how.step)
    weights, rows = (
        substitute(e, {s.k: _columns(w, how.step, dim, step, s, None if whole else number)})
        for dim, e in ((1, _element(s)), (0, s.a))
    )
    if w.wide is not None:
        first = Var("first_unit")
        w.env[first] = f"({w.wide.first} * {w.wide.count})"
        rows = substitute(rows, {w.wide.var: first})
    typed = _typed(w, step, number, weights)
    w.move(step, number, rows, *(() if typed else (weights,)))
    w.put(f"for {number} in {w.range('0', w.expr(steps))}:")
    w.depth += 1
    left = w.let("weights_of", how.weights.format(w.expr(weights, 2)))
    right = w.let("rows_of", how.rows.format(w.expr(rows, 2)))
    part = f"tl.dot({left}, {right}, out_dtype=tl.float32)"
    w.put(f"{name} = tl.fma({part}, {how.times}, {name})")


def _operands(shape: Shape, s: Dot) -> Operands:
    if s.engine is None:
        raise TypeError("a sum that no engine makes")
    how, cached = operands(shape, s.engine), _element(s)
    is_cache = isinstance(cached, Load) and cached.dtype == s.engine
    return replace(how, step=CACHE_STEP) if is_cache else how


def _element(s: Dot) -> Expr:
    found = None if s.engine is None else stored(s.engine, s.b)
    if found is None:
        raise TypeError("weights that are not as they are stored")
    return found


def _columns(w: Writer, size: int, dim: int, step: Var, s: Dot, masked: str | None) -> Expr:
    """The columns of a step along a dimension; `masked` names the step where they may end."""
    column = Var("column")
    name = w.let("column", f"tl.arange(0, {size})")
    end = w.expr(ex.sub(ex.lit(s.hi), s.lo))
    live = None if masked is None else f"({masked} * {size} + {name} < {end})"
    w.env[column] = Tiled(name, dim, live)
    return ex.add(ex.add(ex.mul(step, size), column), s.lo)


def _typed(w: Writer, step: Var, number: str, e: Expr) -> bool:
    """Whether a loop over `step` loads numbers of two bytes: where, counted in numbers.

    Of addresses counted in bytes the compiler does not see that they follow each other.
    """
    at = quotient(e.at, e.dtype.nbytes) if isinstance(e, LoadBytes) else None
    by = None if at is None else ex.stride(at, step)
    if not isinstance(e, LoadBytes) or at is None or by is None:
        return False
    first = w.expr(substitute(at, {step: ex.lit(0)}), 2)
    base = f"({w.bases[e.buf]}).to(tl.pointer_type({TYPES[e.dtype.name]}))"
    w.env[step] = number
    w.moving[e] = f"{w.let('weights_at', f'{base} + {first}')} + {number} * {by}"
    return True
