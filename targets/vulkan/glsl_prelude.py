"""Functions that a kernel's text may call: fused multiply-add, e^x, halves, numbers from bytes."""

from __future__ import annotations

from enum import Enum

from speccc.errors import UnsupportedError
from speccc.ir.types import BF16, F16, F32, DType
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.prelude import write_functions
from speccc.targets.clike.writer import Writer


class Fma(Enum):
    """How a * b + c comes to be rounded once; Vulkan lets its own `fma` round twice.

    PAIRS needs only f32 sums and products that round correctly, which Vulkan demands. Doubles
    would be shorter, but Mesa drops a conversion to f32 and back that no decoration can protect.
    """

    DEVICE = "device"  # the device's own, where that is fused: hardware
    PAIRS = "pairs"  # where it is not: Mesa lavapipe


def byte_reader(buf: str, name: str, dtype: DType, out: Writer) -> None:
    """A function that puts little-endian bytes together; a half comes out as its float."""
    parts = [f"uint({buf}[at{f' + {n}' if n else ''}])" for n in range(dtype.nbytes)]
    bits = " | ".join(f"{p} << {8 * n}" if n else p for n, p in enumerate(parts))
    kinds = {
        F16.name: ("float", f"half_value({bits})"),
        BF16.name: ("float", f"uintBitsToFloat(({bits}) << 16)"),
        F32.name: ("float", f"uintBitsToFloat({bits})"),
        "i32": ("int", f"int({bits})"),
        "u32": ("uint", bits),
        "u8": ("uint8_t", f"{buf}[at]"),
    }
    if dtype.name not in kinds:
        raise UnsupportedError(f"vulkan cannot read {dtype} from bytes")
    kind, value = kinds[dtype.name]
    with out.block(f"{kind} {name}(int at)"):
        out.line(f"return {value};")


DEVICE_FMA = """\
// a * b + c, rounded once.
float fma_ir(float a, float b, float c) {
    precise float once = fma(a, b, c);
    return once;
}
"""
PAIRS_FMA = """\
// a + b = x + y exactly, x the rounded sum (Knuth).
vec2 two_sum(float a, float b) {
    precise float sum = a + b;
    precise float b_part = sum - a;
    precise float error = (a - (sum - b_part)) + (b - b_part);
    return vec2(sum, error);
}

// a * b = x + y exactly (Dekker; 4097 = 2^12 + 1 halves a significand).
vec2 two_product(float a, float b) {
    precise float a_wide = a * 4097.0;
    precise float a_high = a_wide - (a_wide - a);
    precise float a_low = a - a_high;
    precise float b_wide = b * 4097.0;
    precise float b_high = b_wide - (b_wide - b);
    precise float b_low = b - b_high;
    precise float product = a * b;
    precise float partial = ((a_high * b_high - product) + a_high * b_low) + a_low * b_high;
    precise float error = partial + a_low * b_low;
    return vec2(product, error);
}

// a * b + c, rounded once: the low parts are rounded to odd (Boldo and Melquiond 2008).
float fma_ir(float a, float b, float c) {
    precise float plain = a * b + c;
    vec2 product = two_product(a, b);
    vec2 low = two_sum(c, product.y);
    vec2 high = two_sum(product.x, low.x);
    vec2 rest = two_sum(low.y, high.y);
    int bits = floatBitsToInt(rest.x);
    if (rest.y != 0.0 && (bits & 1) == 0) {
        bits += (rest.y > 0.0) == (rest.x > 0.0) ? 1 : -1;
    }
    precise float once = high.x + intBitsToFloat(bits);
    float largest = max(max(abs(a), abs(b)), max(abs(c), abs(product.x)));
    return largest < 1e30 ? once : plain;  // beyond it the steps above overflow: rounded twice
}
"""
FMA_TEXT = {Fma.DEVICE: DEVICE_FMA, Fma.PAIRS: PAIRS_FMA}


def prelude(out: Writer, fma: Fma, dialect: Dialect) -> None:
    """The functions every kernel may call: a fused multiply-add, e^x, the value of a half."""
    out.lines(FMA_TEXT[fma])
    out.line()
    write_functions(out, dialect)
