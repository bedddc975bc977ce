"""SYCL C++ as a dialect: free-function kernels, matrices from a header with two forms."""

from __future__ import annotations

from pathlib import Path

from speccc.errors import UnsupportedError
from speccc.ir.expr import Fn, LoadBytes
from speccc.ir.fragment import FragLoad, Fragment, FragMma, FragStore, FragZero, Role, walk
from speccc.ir.tile import Buf, Mem
from speccc.targets.clike.aligned import multiple
from speccc.targets.clike.cpp_words import CPP
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.expr import Exprs
from speccc.targets.clike.prelude import CALLS as SHARED_CALLS
from speccc.targets.clike.prelude import write_functions
from speccc.targets.clike.render import Renderer

MATRIX, PRELUDE = (
    Path(__file__).with_name(f"{name}.hpp").read_text(encoding="utf-8")
    for name in ("matrix", "prelude")
)
TYPES = {
    "f32": "float",
    "f16": "half",
    "bf16": "uint16_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "i32": "int",
    "u32": "uint",
    "index": "int",
    "bool": "bool",
}
CALLS = {
    **SHARED_CALLS,
    Fn.MIN: "min_ir",
    Fn.MAX: "max_ir",
    Fn.ABS: "sycl::fabs",
    Fn.RINT: "sycl::rint",
    Fn.SQRT: "sycl::sqrt",
    Fn.DOT4: "dot4_ir",
}
BITCASTS = {
    ("f32", "i32"): "sycl::bit_cast<int>",
    ("f32", "u32"): "sycl::bit_cast<uint>",
    ("i32", "f32"): "sycl::bit_cast<float>",
    ("u32", "f32"): "sycl::bit_cast<float>",
    ("i32", "u32"): "uint",
    ("u32", "i32"): "int",
    ("bf16", "u32"): "uint",
    ("u32", "bf16"): "uint16_t",
    ("i8", "u8"): "uint8_t",
    ("u8", "i8"): "int8_t",
}
# What is included, and what our own header and prelude say.
_WORDS = """
    half uint size_t int8_t uint8_t uint16_t uint32_t std sycl syclex syclexp mx item subgroup
    abs exp fma sqrt round min max div remainder index log pow sin cos tan floor ceil signal time
    stdin stdout stderr errno unix linux
    min_ir max_ir dot4_ir dot_4x8packed_ss_int bytes_at f32_at f16_at bf16_at i32_at u32_at
    product_sum lanes lane_id place layout_of elements Element number bfloat16
    matrix_zero matrix_load matrix_store matrix_mad in_local in_global
    Matrix Order Use SUBGROUP PER_LANE ROLLED SYCL_EXTERNAL sizes
"""
READERS = {
    "f32": ("float", "bytes_at<float, ALIGN>(p, at)"),
    "f16": ("float", "half_value(bytes_at<uint16_t, ALIGN>(p, at))"),
    "bf16": ("float", "sycl::bit_cast<float>(uint(bytes_at<uint16_t, ALIGN>(p, at)) << 16)"),
    "i32": ("int", "bytes_at<int, ALIGN>(p, at)"),
    "u32": ("uint", "bytes_at<uint, ALIGN>(p, at)"),
}
# The parts of <sycl/sycl.hpp> that a kernel uses: the whole takes twice as long to compile.
INCLUDES = """\
#include <sycl/builtins.hpp>
#include <sycl/ext/oneapi/free_function_kernel_properties.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/ext/oneapi/work_group_static.hpp>
#include <sycl/group_algorithm.hpp>
#include <sycl/group_barrier.hpp>
#if SPECCC_JOINT_MATRIX
#include <sycl/ext/oneapi/matrix/matrix.hpp>
#endif

// Each product and each sum is rounded by itself: no compiler may fuse or reorder them.
#pragma clang fp contract(off) reassociate(off)
namespace syclex = sycl::ext::oneapi;
namespace syclexp = sycl::ext::oneapi::experimental;
using half = sycl::half;
using uint = uint32_t;

#if SPECCC_JOINT_MATRIX
#define PER_LANE const
#else
// Intel's CPU driver (2026.2) loses what differs by lane and is computed once for both sides of a
// barrier; a volatile is read anew on each side.
#define PER_LANE const volatile
#endif
#define ROLLED _Pragma("clang loop unroll(disable)")
"""
MATRIX_ALIGN = 64
"""Bytes. joint_matrix_load and _store ask for 4 (Intel's notes in sycl_ext_oneapi_matrix), and
local memory is read in blocks of 16; an array of bytes would by itself lie anywhere."""
USES = {Role.A: "Use::a", Role.B: "Use::b", Role.C: "Use::accumulator"}
PROPERTY = "SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::{})"
KERNEL_PREFIX = "__sycl_kernel_"
"""What SYCL puts before the name of a free function with C linkage."""


def _reader(r: Exprs, e: LoadBytes, at: str) -> str:
    name = r.buffer(e.buf)
    if e.dtype.nbytes == 1:
        return f"{r.type(e.dtype)}({name}[{at}])"
    if e.dtype.name not in READERS:
        raise UnsupportedError(f"sycl cannot read {e.dtype} from bytes")
    r.readers[e.buf, e.dtype] = f"{e.dtype.name}_at"
    # A buffer starts on 64 bytes, so what divides the place is how far a number is aligned.
    size = e.dtype.nbytes
    align = size if e.buf.mem is Mem.GLOBAL and multiple(e.at) % size == 0 else 1
    return f"{e.dtype.name}_at<{align}>({name}, {at})"


def _entry(r: Renderer) -> str:
    name = r.names.fresh_global(r.kernel.name)
    r.entry = KERNEL_PREFIX + name
    access = {b: "" if r.written(b) else "const " for b in r.buffers}
    buffers = [f"{access[b]}{r.exprs.type(b.dtype)}* {r.exprs.buffer(b)}" for b in r.buffers]
    sizes = ["const int* sizes"] if r.kernel.scalars else []
    return f"void {name}({', '.join(buffers + sizes)})"


def _opening(r: Renderer) -> None:
    # In memory, so that a step that was recorded is replayed with others.
    for n, v in enumerate(r.kernel.scalars):
        r.out.line(f"const int {r.exprs.variable(v)} = sizes[{n}];")
    r.out.line("const auto item = syclex::this_work_item::get_nd_item<1>();")
    r.out.line("PER_LANE int invocation = int(item.get_local_linear_id());")
    r.out.line("PER_LANE int subgroup = int(item.get_sub_group().get_group_linear_id());")
    if r.joins:
        r.out.line("PER_LANE int lane = int(item.get_sub_group().get_local_linear_id());")
    r.out.line("const int workgroup = int(item.get_group_linear_id());")
    r.out.line("const int workgroups = int(item.get_group_range(0));")
    memory = (s for s in walk(r.kernel.body) if isinstance(s, FragLoad | FragStore))
    of_matrices = {s.buf for s in memory}
    for buf in r.shared:
        kind, size = r.exprs.type(buf.dtype), r.exprs.size(buf)
        aligned = f"alignas({MATRIX_ALIGN}) " if buf in of_matrices else ""
        r.out.line(f"{aligned}syclexp::work_group_static<{kind}[{size}]> {r.exprs.buffer(buf)};")


def _declarations(r: Renderer) -> None:
    out, group = r.out, r.kernel.group
    out.lines(INCLUDES)
    r.constants()
    out.line(f"{r.dialect.constant} SUBGROUP = {group.subgroup};")
    out.line()
    out.lines(PRELUDE)
    out.line()
    write_functions(out, r.dialect)
    for name in sorted({dtype.name for _, dtype in r.exprs.readers}):
        kind, value = READERS[name]
        arguments = "template <int ALIGN, class Byte>"
        with out.block(f"{arguments} {kind} {name}_at(const Byte* p, int at)"):
            out.line(f"return {value};")
        out.line()
    if any(isinstance(s, FragMma) for s in walk(r.kernel.body)):
        out.lines(MATRIX)
        out.line()
    sizes = f"sub_group_size<{group.subgroup}>", f"work_group_size<{group.invocations}>"
    out.line(f'extern "C" {PROPERTY.format("nd_range_kernel<1>")}')
    for size in sizes:
        out.line(PROPERTY.format(size))


def _order(s: FragLoad | FragStore) -> str:
    return "Order::by_columns" if s.transposed else "Order::by_rows"


def _matrix(r: Renderer, frag: Fragment) -> str:
    """The type of a fragment; that of an operand says in which order it lies in memory."""
    loads = (s for s in walk(r.kernel.body) if isinstance(s, FragLoad) and s.frag is frag)
    orders = {_order(s) for s in loads} if frag.role is not Role.C else set()
    if len(orders) > 1:
        raise UnsupportedError(f"sycl: fragment {frag.name} is loaded in both orders")
    order = orders.pop() if orders else "Order::by_rows"
    rows, cols = r.sides(frag)
    kind = r.exprs.type(frag.shape.dtype(frag.role))
    return f"Matrix<{USES[frag.role]}, {kind}, {rows}, {cols}, {order}>"


def _zero(r: Renderer, s: FragZero) -> None:
    r.out.line(f"matrix_zero({r.fragment(s.frag)});")


def _memory(r: Renderer, s: FragLoad | FragStore) -> None:
    call = "matrix_load" if isinstance(s, FragLoad) else "matrix_store"
    frag, stride = r.fragment(s.frag), r.exprs.bound(s.buf.shape[1])
    at = _pointer(r, s.buf, r.exprs.position(s.buf, s.at))
    r.out.line(f"{call}<{_order(s)}>({frag}, {at}, {stride});")


def _pointer(r: Renderer, buf: Buf, at: str) -> str:
    space = "in_local" if buf.mem is Mem.SHARED else "in_global"
    return f"{space}(&{r.exprs.buffer(buf)}[{at}])"


def _multiply(r: Renderer, s: FragMma) -> None:
    r.out.line(f"matrix_mad({', '.join(r.fragment(f) for f in (s.acc, s.a, s.b))});")


SYCL = Dialect(
    name="sycl",
    title="SYCL",
    first="",
    reserved=CPP | frozenset(_WORDS.split()),
    types=TYPES,
    calls=CALLS,
    bitcasts=BITCASTS,
    float_suffix="f",
    exact="",
    constant="constexpr int",
    function="inline ",
    subgroup="subgroup",
    lane="lane",
    shuffle="sycl::permute_group_by_xor(item.get_sub_group(), {}, {})",
    rolled="ROLLED ",
    barrier="sycl::group_barrier(item.get_group());",
    half="float(sycl::bit_cast<half>(uint16_t({})))",
    reader=_reader,
    fragment=_matrix,
    declarations=_declarations,
    entry=_entry,
    opening=_opening,
    statements={
        FragZero: _zero,
        FragLoad: _memory,
        FragStore: _memory,
        FragMma: _multiply,
    },
)
