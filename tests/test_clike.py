"""The writer of C-like languages: what every dialect must give it, and what it does for each."""

from __future__ import annotations

import re
from operator import floordiv, mod

import numpy as np
import pytest
from emulation.require import require
from emulation.vulkan_root import find_vulkan
from fragment_rig import s8
from hypothesis import given
from hypothesis import strategies as st
from proof_program import proof_program

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Const, Expr, Fn, Load, Var
from speccc.ir.fragment import (
    Barrier,
    FragLoad,
    FragmentKernel,
    FragMma,
    FragStore,
    FragZero,
    LaneFold,
    LaneMap,
    MmaShape,
    Workgroup,
    walk,
)
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, Red, Stmt
from speccc.ir.types import DTYPES, F16, F32, I8, I32, INDEX, U32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.expr import Exprs, literal
from speccc.targets.clike.names import OURS, Names
from speccc.targets.clike.render import render_kernel
from speccc.targets.glsl_build import compile_glsl
from speccc.targets.metal.msl import MSL
from speccc.targets.sycl.sycl import SYCL
from speccc.targets.sycl_build import Form, compile_sycl, find_sycl_compiler
from speccc.targets.vulkan.glsl import glsl
from speccc.targets.vulkan.glsl_prelude import Fma

GLSL = glsl(Fma.PAIRS)
SHAPES = {
    "vulkan": s8(8, 16, 32),
    "sycl": s8(8, 16, 32),
    "metal": MmaShape(F16, F16, F32, 8, 8, 8),
}
DIALECTS = {d.name: d for d in (GLSL, SYCL, MSL)}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def lowered(dialect: Dialect) -> FragmentKernel:
    shape = SHAPES[dialect.name]
    return DotToFragment(shape, 16, 2).run(proof_program(64, 32).kernel)


@every_dialect
def test_a_dialect_says_all_there_is(dialect: Dialect) -> None:
    assert set(DTYPES) <= set(dialect.types)
    assert set(dialect.calls) == {
        Fn.MIN, Fn.MAX, Fn.FMA, Fn.ABS, Fn.RINT, Fn.SQRT, Fn.EXP, Fn.DOT4, Fn.IDIV, Fn.MOD,
    }  # fmt: skip
    both = [("f32", "i32"), ("f32", "u32"), ("i32", "u32"), ("i8", "u8")]
    assert set(dialect.bitcasts) >= {*both, *((b, a) for a, b in both)}
    assert {FragZero, FragLoad, FragStore, FragMma} <= set(dialect.statements)
    # A type's name is one word, as a cast is a call of it.
    assert all(re.fullmatch(r"\w+", name) for name in dialect.types.values())


# ------------------------------------------------------------------------------------- expressions


@every_dialect
@given(st.floats(width=32))
def test_a_literal_is_the_number(dialect: Dialect, value: float) -> None:
    """To the bit: digits with the language's suffix, or for infinities and NaN their bits."""
    text = literal(dialect, value, F32)
    found = re.fullmatch(r".*\((0x[0-9a-f]+)u\)", text)
    if found:
        read = np.uint32(int(found[1], 16)).view(np.float32)
    else:
        assert text.endswith(dialect.float_suffix)
        read = np.float32(text.removesuffix(dialect.float_suffix))
    assert read.view(np.uint32) == np.float32(value).view(np.uint32)


@every_dialect
def test_narrow_integers_are_cast_back(dialect: Dialect) -> None:
    exprs = Exprs(dialect, Names(dialect.reserved))
    code = Load(Buf("code", (4,), I8), (ex.lit(0),))
    kind = dialect.types["i8"]
    assert exprs.render(ex.add(code, 3)) == f"{kind}(code[0] + {kind}(3))"
    assert exprs.render(Const(7, U32)) == "7u"
    for shift, sign in ((Fn.SHL, "<<"), (Fn.SHR, ">>")):  # of bits, whatever their sign
        text = exprs.render(ex.Apply(shift, (ex.cast(code, I32), ex.lit(24, I32)), I32))
        assert text == f"int(uint(int(code[0])) {sign} uint(24))"
        with pytest.raises(UnsupportedError, match=rf"{dialect.name}: a shift of i8"):
            exprs.render(ex.Apply(shift, (code, ex.lit(1, I8)), I8))
    with pytest.raises(UnsupportedError, match=rf"{dialect.name}: no bit cast from i8 to f32"):
        exprs.render(ex.Apply(Fn.BITCAST, (code,), F32))


A, B = Var("a"), Var("b")
INTEGERS = st.recursive(
    st.sampled_from([A, B, ex.lit(3), ex.lit(17)]),
    lambda inner: (
        st.builds(
            lambda fn, x, y: ex.Apply(fn, (x, y), INDEX),
            st.sampled_from([Fn.ADD, Fn.MUL, Fn.AND, Fn.OR, Fn.XOR]),
            inner,
            inner,
        )
        | st.builds(
            lambda fn, x: ex.Apply(fn, (x, ex.lit(5)), INDEX),
            st.sampled_from([Fn.IDIV, Fn.MOD, Fn.SHL]),
            inner,
        )
    ),
    max_leaves=12,
)


@every_dialect
@given(INTEGERS, st.integers(0, 99), st.integers(0, 99))
def test_no_operator_binds_by_precedence(dialect: Dialect, e: Expr, a: int, b: int) -> None:
    """Read with Python's precedence, which differs from C's, the text has the same value."""
    text = Exprs(dialect, Names(dialect.reserved)).render(e)
    names = {"a": a, "b": b, "int": int, "uint": int, "div_ir": floordiv, "mod_ir": mod}
    env = {A: np.asarray(a, object), B: np.asarray(b, object)}
    assert eval(text, {}, names) == _value(e, env)


def _value(e: Expr, env: dict[Var, object]) -> int:
    """In Python's own integers, which never overflow."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return int(str(env[e]))
    assert isinstance(e, ex.Apply)
    x, y = (_value(arg, env) for arg in e.args)
    return {
        Fn.ADD: x + y, Fn.MUL: x * y, Fn.AND: x & y, Fn.OR: x | y, Fn.XOR: x ^ y,
        Fn.IDIV: x // max(y, 1), Fn.MOD: x % max(y, 1), Fn.SHL: x << min(y, 5),
    }[e.fn]  # fmt: skip


# ------------------------------------------------------------------------------------------- names


@every_dialect
@given(st.lists(st.text(max_size=8) | st.sampled_from(sorted(SYCL.reserved | MSL.reserved))))
def test_names_are_identifiers_of_their_own(dialect: Dialect, wishes: list[str]) -> None:
    names, again = (Names(dialect.reserved) for _ in range(2))
    given_names = [names.of(n, wish) for n, wish in enumerate(wishes)]
    assert given_names == [again.of(n, wish) for n, wish in enumerate(wishes)]
    assert len(set(given_names)) == len(given_names)
    assert not set(given_names) & (dialect.reserved | OURS)
    assert all(re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name) for name in given_names)


def test_a_name_is_free_after_its_scope() -> None:
    names = Names(frozenset())
    with names.scope():
        assert names.of("first", "row") == "row"
        kept = names.fresh_global("reader")
    assert names.of("second", "row") == "row"
    assert names.fresh("reader") == f"{kept}_2"


def nasty(words: list[str]) -> FragmentKernel:
    """A kernel whose buffers, shared memory, loops and scalars are called like the words."""
    halves = [words[n::4] for n in range(4)]
    outside = tuple(Buf(name, (8,), I32) for name in halves[0])
    made = tuple(Buf(name, (8,), I32, Mem.SHARED) for name in halves[1])
    scalars = tuple(Var(name) for name in halves[2])
    body: list[Stmt] = [Alloc(b) for b in made]
    for n, word in enumerate(halves[3]):
        i, steps = Var(word), Var(word)
        total = ex.cast(ex.add(i, scalars[n % len(scalars)]), I32)
        dst = made[n % len(made)]
        body += [LaneMap(dst, (i,), (Axis(i, 8),), total), Barrier()]
        source = ex.add(Load(dst, (i,)), ex.cast(steps, I32))
        to = outside[n % len(outside)]
        zero = ex.lit(0, I32)
        fold = LaneFold(to, (i,), (Axis(i, 8),), steps, 0, 3, Red.SUM, zero, source)
        body += [For(Var(word), 0, 2, (fold, Barrier()))]
    return FragmentKernel(words[0], outside, scalars, Workgroup(8, 1), tuple(body))


WORDS = sorted(
    (GLSL.reserved | SYCL.reserved | MSL.reserved | OURS)
    | {"data", "out", "x", "f32_at", "w_block", "gl_Position", "3d", "blk.0.ffn_down", "char8_t"}
)


def test_no_word_of_a_language_is_taken_in_glsl() -> None:
    require("vulkan")
    home = find_vulkan()
    assert home is not None
    assert compile_glsl(render_kernel(nasty(WORDS), GLSL).text, home.tools)


def test_no_word_of_a_language_is_taken_in_sycl() -> None:
    require("sycl")
    compiler = find_sycl_compiler()
    assert compiler is not None
    for form in Form:
        assert compile_sycl(render_kernel(nasty(WORDS), SYCL).text, compiler, form)


# -------------------------------------------------------------------------------------- statements


@every_dialect
def test_all_statements_are_said(dialect: Dialect) -> None:
    """As many barriers as the kernel has, and a loop for each of its own."""
    kernel = lowered(dialect)
    main = render_kernel(kernel, dialect).text
    kinds = [type(s) for s in walk(kernel.body)]
    assert main.count(dialect.barrier) == kinds.count(Barrier) > 8
    lanes = sum(isinstance(s, (LaneMap, LaneFold)) and bool(s.axes) for s in walk(kernel.body))
    assert main.count("+= INVOCATIONS") == lanes
    assert main.count("+= SUBGROUPS") == 2  # gate and up


@every_dialect
def test_head_and_interface(dialect: Dialect) -> None:
    kernel = lowered(dialect)
    one, two = (render_kernel(kernel, dialect) for _ in range(2))
    assert one == two
    head = one.text.removeprefix(dialect.first).splitlines()
    assert head[0] == (
        f"// ffn_gate_up for {dialect.title}, {SHAPES[dialect.name]}, 2 subgroups of 16."
    )
    assert re.fullmatch(r"// sha256 of what follows: [0-9a-f]{16}", head[1])
    names = "x norm w y xq xs xi xm amax inverse line"
    assert " ".join(b.name for b in one.buffers) == names
    assert [v.name for v in one.scalars] == ["m"]
    assert one.subgroup == 16
    for name in ("gate", "up", "w_tile", "x_tile", "row_tile", "panel"):
        assert f" {name}" in one.text
