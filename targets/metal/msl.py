"""MSL as a dialect: Metal kernels with simdgroup matrices."""

from __future__ import annotations

from collections.abc import Callable

from speccc.errors import UnsupportedError
from speccc.ir.expr import Fn, LoadBytes
from speccc.ir.fragment import FragLoad, Fragment, FragMma, FragStore, FragZero
from speccc.ir.tile import Mem
from speccc.ir.types import BF16
from speccc.targets.clike.aligned import multiple
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.expr import Exprs
from speccc.targets.clike.prelude import CALLS as SHARED_CALLS
from speccc.targets.clike.render import Renderer
from speccc.targets.metal.msl_prelude import BFLOAT, READS, prelude

TYPES = {
    "f32": "float",
    "f16": "half",
    "bf16": "bfloat",
    "i8": "char",
    "u8": "uchar",
    "i32": "int",
    "u32": "uint",
    "index": "int",
    "bool": "bool",
}
CALLS = {
    **SHARED_CALLS,
    Fn.MIN: "min",
    Fn.MAX: "max",
    Fn.ABS: "abs",
    Fn.RINT: "rint",
    Fn.SQRT: "precise::sqrt",
    Fn.DOT4: "dot4_ir",
}
BITCASTS = {
    ("f32", "i32"): "as_type<int>",
    ("f32", "u32"): "as_type<uint>",
    ("i32", "f32"): "as_type<float>",
    ("u32", "f32"): "as_type<float>",
    ("i32", "u32"): "as_type<uint>",
    ("u32", "i32"): "as_type<int>",
    ("bf16", "u32"): "bf16_bits",
    ("u32", "bf16"): "bf16_of",
    ("i8", "u8"): "as_type<uchar>",
    ("u8", "i8"): "as_type<char>",
}
# Words of C++14 and of MSL that a model's or a pass's name may collide with, and our own.
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const
    constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq main
    device constant threadgroup thread kernel vertex fragment visible ray_data object_data metal
    half uchar ushort uint ulong bfloat size_t ptrdiff_t packed sampler texture precise fast
    ulong2 char4 as_type dot4_ir bf16_bits bf16_of min max abs rint sqrt fma mem_flags
    threadgroup_barrier simdgroup_matrix sizes thread_number simdgroup_number group_number
    group_count lane_number simd_shuffle_xor
"""
MOST_BUFFERS = 31
"""Of a kernel: the argument table of Apple's Metal Feature Set Tables."""

BARRIER = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"
# MSL contracts and reassociates unless told otherwise (its specification, section 1.6.3).
HEAD = """\
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
using namespace metal;
"""
NUMBERS = (
    ("thread_number", "thread_index_in_threadgroup"),
    ("simdgroup_number", "simdgroup_index_in_threadgroup"),
    ("group_number", "threadgroup_position_in_grid"),
    ("group_count", "threadgroups_per_grid"),
)
LANE = ("lane_number", "thread_index_in_simdgroup")
"""Where threads of a simdgroup add up what they have."""


def _reader(r: Exprs, e: LoadBytes, at: str) -> str:
    """One load where the place is surely aligned, as every buffer is; else byte by byte."""
    if e.buf.mem is not Mem.GLOBAL or e.dtype.name not in READS:
        raise UnsupportedError(f"metal cannot read {e.dtype} from bytes of {e.buf.name}")
    how, buf = READS[e.dtype.name], r.buffer(e.buf)
    if multiple(e.at) % e.dtype.nbytes == 0:
        return how.whole.format(f"*(device const {how.lies}*)({buf} + {r.inner(e.at)})")
    r.readers[e.buf, e.dtype] = how.name
    return f"{how.name}({buf}, {at})"


def _declarations(r: Renderer) -> None:
    r.out.lines(HEAD)
    r.out.line()
    r.constants()
    r.out.line()
    if r.kernel.scalars:
        fields = [f"    int {r.exprs.variable(v)};" for v in r.kernel.scalars]
        for line in ("struct Sizes {", *fields, "};", ""):
            r.out.line(line)
    if any(s.a == BF16 for s in r.shapes):
        r.out.lines(BFLOAT)
        r.out.line()
    prelude(r.out, r.dialect, {dtype.name for _, dtype in r.exprs.readers})


def _entry(r: Renderer) -> str:
    r.entry = r.names.fresh_global(r.kernel.name)
    params = []
    for n, buf in enumerate(r.buffers):
        access = "" if r.written(buf) else "const "
        kind, name = r.exprs.type(buf.dtype), r.exprs.buffer(buf)
        params.append(f"device {access}{kind}* {name} [[buffer({n})]]")
    if r.kernel.scalars:
        params.append(f"constant Sizes& sizes [[buffer({len(params)})]]")
    if len(params) > MOST_BUFFERS:
        raise UnsupportedError(
            f"kernel {r.kernel.name}: {len(params)} buffers, but Metal binds {MOST_BUFFERS}"
        )
    numbers = (*NUMBERS, LANE) if r.joins else NUMBERS
    params += [f"uint {name} [[{attribute}]]" for name, attribute in numbers]
    lines = ",\n    ".join(params)
    return f"kernel void {r.entry}(\n    {lines})"


def _opening(r: Renderer) -> None:
    for name, number in zip(("invocation", "workgroup", "workgroups"), _OURS, strict=True):
        r.out.line(f"const int {name} = int({number});")
    for v in r.kernel.scalars:
        name = r.exprs.variable(v)
        r.out.line(f"const int {name} = sizes.{name};")
    for buf in r.shared:
        kind, size = r.exprs.type(buf.dtype), r.exprs.size(buf)
        r.out.line(f"threadgroup {kind} {r.exprs.buffer(buf)}[{size}];")


_OURS = ("thread_number", "group_number", "group_count")


def _matrix(r: Renderer, frag: Fragment) -> str:
    rows, cols = frag.shape.extent(frag.role)
    if (rows, cols) != (8, 8):
        raise UnsupportedError(f"{frag.shape}: a simdgroup matrix is 8x8")
    return f"simdgroup_matrix<{r.exprs.type(frag.shape.dtype(frag.role))}, 8, 8>"


def _zero(r: Renderer, s: FragZero) -> None:
    kind = r.exprs.type(s.frag.shape.dtype(s.frag.role))
    r.out.line(f"{r.fragment(s.frag)} = make_filled_simdgroup_matrix<{kind}, 8, 8>({kind}(0));")


def _memory(call: str) -> Callable[[Renderer, FragLoad | FragStore], None]:
    def write(r: Renderer, s: FragLoad | FragStore) -> None:
        at, stride = r.exprs.element(s.buf, s.at), r.exprs.bound(s.buf.shape[1])
        turned = "true" if s.transposed else "false"
        r.out.line(f"{call}({r.fragment(s.frag)}, &{at}, {stride}, ulong2(0, 0), {turned});")

    return write


def _multiply(r: Renderer, s: FragMma) -> None:
    acc, a, b = (r.fragment(f) for f in (s.acc, s.a, s.b))
    r.out.line(f"simdgroup_multiply_accumulate({acc}, {a}, {b}, {acc});")


MSL = Dialect(
    name="metal",
    title="Metal",
    first="",
    reserved=frozenset(_WORDS.split()) | {read.name for read in READS.values()},
    types=TYPES,
    calls=CALLS,
    bitcasts=BITCASTS,
    float_suffix="f",
    exact="",  # the pragmas of HEAD say it for the whole text
    constant="constant int",
    function="static inline ",
    subgroup="int(simdgroup_number)",
    lane="int(lane_number)",
    shuffle="simd_shuffle_xor({}, ushort({}))",
    rolled="",
    barrier=BARRIER,
    half="float(as_type<half>(ushort({})))",
    reader=_reader,
    fragment=_matrix,
    declarations=_declarations,
    entry=_entry,
    opening=_opening,
    statements={
        FragZero: _zero,
        FragLoad: _memory("simdgroup_load"),
        FragStore: _memory("simdgroup_store"),
        FragMma: _multiply,
    },
)
