"""GLSL as a dialect: Vulkan compute with GL_KHR_cooperative_matrix."""

from __future__ import annotations

from collections.abc import Callable

from speccc.ir.expr import Apply, Expr, Fn, LoadBytes, Var, children
from speccc.ir.fragment import (
    LANE_STMTS,
    FragLoad,
    Fragment,
    FragMma,
    FragStore,
    FragZero,
    Role,
    walk,
)
from speccc.ir.tile import Buf, Mem
from speccc.targets.clike.aligned import multiple
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.expr import Exprs
from speccc.targets.clike.prelude import CALLS as SHARED_CALLS
from speccc.targets.clike.render import Renderer
from speccc.targets.vulkan.glsl_prelude import Fma, byte_reader, prelude
from speccc.targets.vulkan.glsl_words import RESERVED

TYPES = {
    "f32": "float",
    "f16": "float16_t",
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
    Fn.MIN: "min",
    Fn.MAX: "max",
    Fn.DOT4: "dotPacked4x8EXT",
    Fn.ABS: "abs",
    Fn.RINT: "roundEven",
    Fn.SQRT: "sqrt",
}
BITCASTS = {
    ("f32", "i32"): "floatBitsToInt",
    ("f32", "u32"): "floatBitsToUint",
    ("i32", "f32"): "intBitsToFloat",
    ("u32", "f32"): "uintBitsToFloat",
    ("i32", "u32"): "uint",
    ("u32", "i32"): "int",
    ("bf16", "u32"): "uint",
    ("u32", "bf16"): "uint16_t",
    ("i8", "u8"): "uint8_t",
    ("u8", "i8"): "int8_t",
}
OWN = frozenset(("two_sum", "two_product", "Pushed"))
"""Names of the prelude and the interface."""
EXTENSIONS = (
    "GL_EXT_control_flow_attributes",
    "GL_KHR_cooperative_matrix",
    "GL_KHR_memory_scope_semantics",
    "GL_KHR_shader_subgroup_basic",
    "GL_EXT_shader_explicit_arithmetic_types",
    "GL_EXT_shader_8bit_storage",
    "GL_EXT_shader_16bit_storage",
)
VIEWED = {2: "uint16_t", 4: "uint"}
WHOLE = {
    "f16": "half_value(uint({}))",
    "bf16": "uintBitsToFloat(uint({}) << 16)",
    "f32": "uintBitsToFloat({})",
    "i32": "int({})",
    "u32": "{}",
}
"""The value of a number whose bits are read at once; halves come as their float."""
DOT_EXTENSION = "GL_EXT_integer_dot_product"
SHUFFLE_EXTENSION = "GL_KHR_shader_subgroup_shuffle"
USES = {
    Role.A: "gl_MatrixUseA",
    Role.B: "gl_MatrixUseB",
    Role.C: "gl_MatrixUseAccumulator",
}
BARRIER = (
    "controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, "
    "gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);"
)


Views = dict[tuple[Buf, int], str]
"""Buffers of bytes seen as numbers of 2 or 4 bytes: the views' names."""


def _reader(r: Exprs, e: LoadBytes, at: str, views: Views) -> str:
    """One load where the place is surely aligned; else byte by byte.

    A buffer cannot be passed to a function, so each has a reader of its own.
    """
    size = e.dtype.nbytes
    if e.dtype.name in WHOLE and e.buf.mem is Mem.GLOBAL and multiple(e.at) % size == 0:
        name = views.get((e.buf, size))
        if name is None:
            name = r.names.fresh_global(f"{r.buffer(e.buf)}_by_{size}")
            views[e.buf, size] = name
        return WHOLE[e.dtype.name].format(f"{name}[{r.call(Fn.IDIV, r.render(e.at), str(size))}]")
    key = (e.buf, e.dtype)
    if key not in r.readers:
        r.readers[key] = r.names.fresh_global(f"{r.buffer(e.buf)}_{e.dtype.name}_at")
    return f"{r.readers[key]}({at})"


def _entry(r: Renderer) -> str:
    r.entry = "main"
    return "void main()"


def _opening(r: Renderer) -> None:
    r.out.line("const int invocation = int(gl_LocalInvocationIndex);")
    r.out.line("const int workgroup = int(gl_WorkGroupID.x);")
    r.out.line("const int workgroups = int(gl_NumWorkGroups.x);")


def _declarations(r: Renderer, fma: Fma, sizes: tuple[Var, ...], views: Views) -> None:
    out = r.out
    needed = ((DOT_EXTENSION, _dots(r)), (SHUFFLE_EXTENSION, r.joins))
    for name in (*EXTENSIONS, *(name for name, used in needed if used)):
        out.line(f"#extension {name} : require")
    out.line()
    out.line(f"layout(local_size_x = {r.kernel.group.invocations}) in;")
    r.constants()
    out.line()
    _interface(r, sizes, views)
    out.line()
    prelude(out, fma, r.dialect)
    for (buf, dtype), name in r.exprs.readers.items():
        byte_reader(r.exprs.buffer(buf), name, dtype, out)
        out.line()


def _dots(r: Renderer) -> bool:
    """Whether the kernel dots packed bytes."""
    values = (s.value for s in walk(r.kernel.body) if isinstance(s, LANE_STMTS))
    return any(map(_has_dot, values))


def _has_dot(e: Expr) -> bool:
    return (isinstance(e, Apply) and e.fn is Fn.DOT4) or any(map(_has_dot, children(e)))


def _interface(r: Renderer, sizes: tuple[Var, ...], views: Views) -> None:
    for n, buf in enumerate(r.buffers):
        name, kind = r.exprs.buffer(buf), r.exprs.type(buf.dtype)
        block = r.names.fresh(f"{name}_block")
        access = "" if r.written(buf) else "readonly "
        at = f"layout(set = 0, binding = {n}, std430)"
        r.out.line(f"{at} {access}buffer {block} {{ {kind} {name}[]; }};")
        for view, size in ((v, s) for (b, s), v in views.items() if b is buf):
            whole = f"{view}_block {{ {VIEWED[size]} {view}[]; }};"
            r.out.line(f"{at} readonly buffer {whole}")
    kept = [v for v in sizes if v in r.kernel.scalars]
    if kept:
        at = f"layout(set = 0, binding = {len(r.buffers)}, std140)"
        places = (f"layout(offset = {4 * sizes.index(v)}) int {r.exprs.variable(v)};" for v in kept)
        r.out.line(f"{at} uniform Sizes {{ {' '.join(places)} }};")
    pushed = [v for v in r.kernel.scalars if v not in kept]
    if pushed:
        fields = " ".join(f"int {r.exprs.variable(v)};" for v in pushed)
        name = "Pushed" if kept else "Sizes"
        r.out.line(f"layout(push_constant) uniform {name} {{ {fields} }};")
    for buf in r.shared:
        kind, count = r.exprs.type(buf.dtype), r.exprs.size(buf)
        r.out.line(f"shared {kind} {r.exprs.buffer(buf)}[{count}];")


def _coopmat(r: Renderer, frag: Fragment) -> str:
    rows, cols = r.sides(frag)
    kind = r.exprs.type(frag.shape.dtype(frag.role))
    return f"coopmat<{kind}, gl_ScopeSubgroup, {rows}, {cols}, {USES[frag.role]}>"


def _zero(r: Renderer, s: FragZero) -> None:
    r.out.line(f"{r.fragment(s.frag)} = {_coopmat(r, s.frag)}(0);")


def _memory(call: str) -> Callable[[Renderer, FragLoad | FragStore], None]:
    def write(r: Renderer, s: FragLoad | FragStore) -> None:
        at, stride = r.exprs.position(s.buf, s.at), r.exprs.bound(s.buf.shape[1])
        layout = f"gl_CooperativeMatrixLayout{'Column' if s.transposed else 'Row'}Major"
        frag, buf = r.fragment(s.frag), r.exprs.buffer(s.buf)
        r.out.line(f"{call}({frag}, {buf}, {at}, {stride}, {layout});")

    return write


def _multiply(r: Renderer, s: FragMma) -> None:
    acc, a, b = (r.fragment(f) for f in (s.acc, s.a, s.b))
    r.out.line(f"{acc} = coopMatMulAdd({a}, {b}, {acc});")


def glsl(fma: Fma, sizes: tuple[Var, ...] = ()) -> Dialect:
    """The dialect of one text: its fused multiply-add, and which sizes lie in a uniform buffer."""
    views: Views = {}
    return Dialect(
        name="vulkan",
        title="Vulkan",
        first="#version 450\n",
        reserved=RESERVED | OWN,
        types=TYPES,
        calls=CALLS,
        bitcasts=BITCASTS,
        float_suffix="",
        exact="precise ",
        constant="const int",
        function="",
        subgroup="int(gl_SubgroupID)",
        lane="int(gl_SubgroupInvocationID)",
        shuffle="subgroupShuffleXor({}, {}u)",
        rolled="[[dont_unroll]] ",
        barrier=BARRIER,
        half="unpackHalf2x16({}).x",
        reader=lambda r, e, at: _reader(r, e, at, views),
        fragment=_coopmat,
        declarations=lambda r: _declarations(r, fma, sizes, views),
        entry=_entry,
        opening=_opening,
        statements={
            FragZero: _zero,
            FragLoad: _memory("coopMatLoad"),
            FragStore: _memory("coopMatStore"),
            FragMma: _multiply,
        },
    )
