"""Functions that a kernel's text may call: fused multiply-add, e^x, halves, numbers from bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from speccc.ir.types import DTYPES
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.prelude import write_functions
from speccc.targets.clike.writer import Writer

FMA = """\
// a * b + c, rounded once.
static inline float fma_ir(float a, float b, float c) {
    return fma(a, b, c);
}
"""


DOT4 = """\
// The sum of the products of four pairs of signed bytes.
static inline int dot4_ir(int a, int b) {
    char4 x = as_type<char4>(a), y = as_type<char4>(b);
    return int(x.x) * int(y.x) + int(x.y) * int(y.y) + int(x.z) * int(y.z) + int(x.w) * int(y.w);
}
"""


BFLOAT = """\
// A bfloat's bits, and the bfloat of some.
static inline uint bf16_bits(bfloat x) {
    return uint(as_type<ushort>(x));
}

static inline bfloat bf16_of(uint bits) {
    return as_type<bfloat>(ushort(bits));
}
"""


@dataclass(frozen=True, slots=True)
class Read:
    """How a type is read from bytes.

    `name` is a function for any place, which returns `kind`; `value` makes that of the bits as a
    uint. Where the place is a multiple of its size, `whole` does, of what lies there as a `lies`.
    """

    name: str
    kind: str
    value: str
    lies: str
    whole: str = "{}"


READS = {
    "f16": Read("f16_at", "float", "half_value({})", "ushort", "half_value(uint({}))"),
    "bf16": Read(
        "bf16_at", "float", "as_type<float>(({}) << 16)", "ushort", "as_type<float>(uint({}) << 16)"
    ),
    "f32": Read("f32_at", "float", "as_type<float>({})", "float"),
    "i32": Read("i32_at", "int", "int({})", "int"),
    "u32": Read("u32_at", "uint", "{}", "uint"),
    "u8": Read("u8_at", "uchar", "uchar({})", "uchar"),
}
"""By element type; halves of both kinds come as their float."""


def prelude(out: Writer, dialect: Dialect, read: Collection[str]) -> None:
    """What every kernel may call, and the readers of the types it reads from bytes."""
    for text in (FMA, DOT4):
        out.lines(text)
        out.line()
    write_functions(out, dialect)
    for name in sorted(read):
        _reader(name, out)
        out.line()


def _reader(dtype: str, out: Writer) -> None:
    """Little-endian bytes, one by one: a wider load would need an alignment nobody promises."""
    parts = [f"uint(at[{n}])" for n in range(DTYPES[dtype].nbytes)]
    bits = " | ".join(f"{p} << {8 * n}" if n else p for n, p in enumerate(parts))
    how = READS[dtype]
    with out.block(f"static inline {how.kind} {how.name}(device const uchar* bytes, int place)"):
        out.line("device const uchar* at = bytes + place;")
        out.line(f"return {how.value.format(bits)};")
