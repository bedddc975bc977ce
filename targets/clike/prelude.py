"""Functions that a kernel's text may call in any dialect: quotients, e^x, halves.

Those of floats are built of sums, products and steps on bits that every device rounds alike, so no
device's own e^x or half has a say in the result.
"""

from __future__ import annotations

from speccc.ir.expr import Fn
from speccc.ir.interp_expr import EXP, F16_MAX
from speccc.ir.types import F32
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.expr import literal
from speccc.targets.clike.writer import Writer

CALLS = {Fn.FMA: "fma_ir", Fn.EXP: "exp_ir", Fn.IDIV: "div_ir", Fn.MOD: "mod_ir"}
"""What every dialect calls by these names; `fma_ir` is its own."""
_OPERATORS = {Fn.IDIV: "/", Fn.MOD: "%"}


def write_functions(out: Writer, dialect: Dialect) -> None:
    """All of them, over the dialect's `fma_ir`."""
    for write in (_quotients, _exp, _half_value, _half_round):
        write(out, dialect)
        out.line()


def _quotients(out: Writer, dialect: Dialect) -> None:
    out.line("// Of numbers that are not negative: that a sign might be there takes many steps.")
    for fn, operator in _OPERATORS.items():
        value = f"return int(uint(a) {operator} uint(b));"
        out.line(f"{dialect.function}int {CALLS[fn]}(int a, int b) {{ {value} }}")


def _exp(out: Writer, dialect: Dialect) -> None:
    def f(value: float) -> str:
        return literal(dialect, value, F32)

    exact, calls = dialect.exact, dialect.calls
    to_float = dialect.bitcasts["i32", "f32"]
    held = f"{calls[Fn.MAX]}({calls[Fn.MIN]}(x, {f(EXP.high)}), {f(EXP.low)})"
    out.line("// e^x by the IR's own steps: n = rint(x / ln 2), a polynomial in x - n ln 2, 2^n.")
    with out.block(f"{dialect.function}float exp_ir(float x)"):
        out.line(f"{exact}float held = {held};")
        out.line(f"{exact}float whole = {calls[Fn.RINT]}(held * {f(EXP.log2e)});")
        out.line(f"{exact}float r = fma_ir(whole, {f(-EXP.ln2_hi)}, held);")
        out.line(f"r = fma_ir(whole, {f(-EXP.ln2_lo)}, r);")
        out.line(f"{exact}float p = {f(EXP.poly[0])};")
        for c in EXP.poly[1:]:
            out.line(f"p = fma_ir(p, r, {f(c)});")
        out.line(f"{exact}float scaled = p * {to_float}((int(whole) + 127) << 23);")
        out.line(f"return x < {f(EXP.low)} ? {f(0.0)} : scaled;")


def _half_value(out: Writer, dialect: Dialect) -> None:
    least = literal(dialect, 2.0**-24, F32)
    out.line("// Exact for the smallest halves too, which a device may flush to zero.")
    with out.block(f"{dialect.function}float half_value(uint bits)"):
        out.line(f"float small = float(bits & 0x3ffu) * {least};")
        out.line(f"float large = {dialect.half.format('bits & 0x7fffu')};")
        out.line("float magnitude = (bits & 0x7c00u) == 0u ? small : large;")
        out.line("return (bits & 0x8000u) == 0u ? magnitude : -magnitude;")


def _half_round(out: Writer, dialect: Dialect) -> None:
    calls, casts, suffix = dialect.calls, dialect.bitcasts, dialect.float_suffix
    smallest = literal(dialect, 2.0**-14, F32)
    out.line("// The nearest half (ties to even), no larger than the largest, as a float.")
    with out.block(f"{dialect.function}float half_round(float x)"):
        size = f"{calls[Fn.MIN]}({calls[Fn.ABS]}(x), {literal(dialect, F16_MAX, F32)})"
        out.line(f"float size = {size};")
        out.line(f"uint bits = {casts['f32', 'u32']}(size);")
        out.line("bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;")
        tiny = f"(size + 0.5{suffix}) - 0.5{suffix}"
        out.line(f"{dialect.exact}float tiny = {tiny};  // floats near 0.5 lie 2^-24 apart")
        out.line(f"float nearest = size < {smallest} ? tiny : {casts['u32', 'f32']}(bits);")
        out.line(f"return {casts['f32', 'i32']}(x) < 0 ? -nearest : nearest;")
