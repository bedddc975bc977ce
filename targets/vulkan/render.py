"""Fragment-level kernel -> one GLSL compute shader, and how to bind and call it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir.expr import Apply, Expr, Fn, Var
from speccc.ir.fragment import (
    Barrier,
    FragLoad,
    Fragment,
    FragmentKernel,
    FragMma,
    FragStore,
    FragZero,
    LaneFold,
    LaneMap,
    Role,
    Subgroups,
    allocated,
    walk,
)
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.tile import Alloc, Axis, Buf, For, Mem, Red, RowTiles, Share, Stmt
from speccc.ir.types import F32
from speccc.targets.vulkan.glsl_expr import Exprs, type_name
from speccc.targets.vulkan.glsl_prelude import Fma, byte_reader, prelude
from speccc.targets.vulkan.glsl_text import Names, Writer

EXTENSIONS = (
    "GL_KHR_cooperative_matrix",
    "GL_KHR_memory_scope_semantics",
    "GL_KHR_shader_subgroup_basic",
    "GL_EXT_shader_explicit_arithmetic_types",
    "GL_EXT_shader_8bit_storage",
    "GL_EXT_shader_16bit_storage",
)
USES = {
    Role.A: "gl_MatrixUseA",
    Role.B: "gl_MatrixUseB",
    Role.C: "gl_MatrixUseAccumulator",
}
SIDES = {Role.A: ("M", "K"), Role.B: ("K", "N"), Role.C: ("M", "N")}
BARRIER = (
    "controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, "
    "gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);"
)


@dataclass(frozen=True, slots=True)
class Shader:
    """A shader's text and its interface.

    Binding n of set 0 is `buffers[n]`: the kernel's own, then SCRATCH, of which each workgroup has
    a part as large as the buffer's shape. The push constants are the kernel's scalars as i32.
    Dispatch any number of workgroups along x, with `subgroup` required and full.
    """

    name: str
    text: str
    buffers: tuple[Buf, ...]
    scalars: tuple[Var, ...]
    subgroup: int


def render_shader(kernel: FragmentKernel, fma: Fma = Fma.DEVICE) -> Shader:
    """The shader of a verified kernel; equal kernels give equal text."""
    verify_fragment(kernel)
    return _Renderer(kernel, fma).shader()


class _Renderer:
    """State of one text: names, what is written, and the fragments declared so far."""

    def __init__(self, kernel: FragmentKernel, fma: Fma) -> None:
        self.kernel, self.fma = kernel, fma
        self.names = Names()
        self.exprs = Exprs(self.names)
        self.out = Writer()
        self.declared: set[Fragment] = set()
        scratch = tuple(b for b in allocated(kernel) if b.mem is Mem.SCRATCH)
        self.buffers = (*kernel.bufs, *scratch)

    def shader(self) -> Shader:
        """Declarations come first in the text but last in time: the body says what it needs."""
        kernel = self.kernel
        for v in kernel.scalars:
            self.names.of(v, v.name)
        for buf in (*self.buffers, *allocated(kernel)):
            self.names.of(buf, buf.name)
        main, self.out = self.out, Writer()
        self._main()
        body, self.out = self.out.text(), main
        self._declarations()
        text = self.out.text() + body
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        head = (
            "#version 450\n"
            f"// {kernel.name} for Vulkan, {self._shapes()}, "
            f"{kernel.group.subgroups} subgroups of {kernel.group.subgroup}.\n"
            f"// sha256 of what follows: {digest}\n"
        )
        return Shader(kernel.name, head + text, self.buffers, kernel.scalars, kernel.group.subgroup)

    def _shapes(self) -> str:
        shapes = {str(s.acc.shape) for s in walk(self.kernel.body) if isinstance(s, FragMma)}
        return ", ".join(sorted(shapes)) or "no matrix instruction"

    def _declarations(self) -> None:
        out, group = self.out, self.kernel.group
        for name in EXTENSIONS:
            out.line(f"#extension {name} : require")
        out.line()
        out.line(f"layout(local_size_x = {group.invocations}) in;")
        out.line(f"const int INVOCATIONS = {group.invocations};")
        out.line(f"const int SUBGROUPS = {group.subgroups};")
        self._mma_constants()
        out.line()
        for n, buf in enumerate(self.buffers):
            name = self.names.of(buf, buf.name)
            block = self.names.fresh(f"{name}_block")
            access = "" if self._written(buf) else "readonly "
            out.line(
                f"layout(set = 0, binding = {n}, std430) {access}buffer {block} "
                f"{{ {type_name(buf.dtype)} {name}[]; }};"
            )
        if self.kernel.scalars:
            fields = " ".join(f"int {self.exprs.variable(v)};" for v in self.kernel.scalars)
            out.line(f"layout(push_constant) uniform Sizes {{ {fields} }};")
        for buf in allocated(self.kernel):
            if buf.mem is Mem.SHARED:
                name = self.names.of(buf, buf.name)
                out.line(f"shared {type_name(buf.dtype)} {name}[{self.exprs.size(buf)}];")
        out.line()
        prelude(out, self.fma)
        for (buf, dtype), name in self.exprs.readers.items():
            out.line()
            byte_reader(self.names.of(buf, buf.name), name, dtype, out)
        out.line()

    def _mma_constants(self) -> None:
        shapes = {s.acc.shape for s in walk(self.kernel.body) if isinstance(s, FragMma)}
        if len(shapes) > 1:
            raise UnsupportedError(f"kernel {self.kernel.name}: matrix instructions of two shapes")
        for shape in shapes:
            self.out.line(f"const int M = {shape.m}, N = {shape.n}, K = {shape.k};")

    def _written(self, buf: Buf) -> bool:
        if buf.mem is not Mem.GLOBAL:
            return True
        stores = (s for s in walk(self.kernel.body) if isinstance(s, (LaneMap, LaneFold)))
        frags = (s for s in walk(self.kernel.body) if isinstance(s, FragStore))
        return any(s.dst is buf for s in stores) or any(s.buf is buf for s in frags)

    def _main(self) -> None:
        with self.out.block("void main()"):
            self.out.line("const int invocation = int(gl_LocalInvocationIndex);")
            self.out.line("const int workgroup = int(gl_WorkGroupID.x);")
            self.out.line("const int workgroups = int(gl_NumWorkGroups.x);")
            self.statements(self.kernel.body)

    def statements(self, body: tuple[Stmt, ...]) -> None:
        """A block, in a scope of its own."""
        outer = set(self.declared)
        with self.names.scope():
            for s in body:
                _RENDER[type(s)](self, s)
        self.declared = outer

    def loop(self, var: Var, lo: str, hi: str, body: tuple[Stmt, ...]) -> None:
        with self.names.scope():
            v = self.exprs.variable(var)
            with self.out.block(f"for (int {v} = {lo}; {v} < {hi}; ++{v})"):
                self.statements(body)

    def fragment(self, frag: Fragment) -> str:
        """The fragment's name, declared where it is first set."""
        name = self.names.of(frag, frag.name)
        if frag not in self.declared:
            self.declared.add(frag)
            self.out.line(f"{_coopmat(frag)} {name};")
        return name

    def memory(self, call: str, s: FragLoad | FragStore) -> None:
        at = self.exprs.position(s.buf, s.at)
        size = s.buf.shape[1]
        layout = "Column" if s.transposed else "Row"
        self.out.line(
            f"{call}({self.fragment(s.frag)}, {self.names.of(s.buf, s.buf.name)}, {at}, "
            f"{self.exprs.bound(size)}, gl_CooperativeMatrixLayout{layout}Major);"
        )

    def lanes(self, axes: tuple[Axis, ...], inner: Callable[[], None]) -> None:
        """Elements dealt out to the invocations in turn, their indices unravelled."""
        if not axes:
            with self.names.scope(), self.out.block("if (invocation == 0)"):
                inner()
            return
        with self.names.scope():
            self._lane_loop(axes, inner)

    def _lane_loop(self, axes: tuple[Axis, ...], inner: Callable[[], None]) -> None:
        e = self.names.fresh("e")
        extents = [self.exprs.bound(a.extent) for a in axes]
        total = " * ".join(f"({x})" if " " in x else x for x in extents)
        head = f"for (int {e} = invocation; {e} < {total}; {e} += INVOCATIONS)"
        with self.out.block(head):
            rest = e
            for n, a in reversed(list(enumerate(axes))):
                v = self.exprs.variable(a.var)
                extent = f"({extents[n]})" if " " in extents[n] else extents[n]
                index = rest if n == 0 else f"{rest} % {extent}"
                self.out.line(f"int {v} = {index};")
                rest = f"{rest} / {extent}"
            inner()


def _coopmat(frag: Fragment) -> str:
    rows, cols = SIDES[frag.role]
    kind = type_name(frag.shape.dtype(frag.role))
    return f"coopmat<{kind}, gl_ScopeSubgroup, {rows}, {cols}, {USES[frag.role]}>"


def _alloc(r: _Renderer, s: Alloc) -> None:
    """Declared before main."""


def _for(r: _Renderer, s: For) -> None:
    r.loop(s.var, r.exprs.bound(s.lo), r.exprs.bound(s.hi), s.body)


def _share(r: _Renderer, s: Share) -> None:
    extent = r.exprs.bound(s.extent)
    lo = f"workgroup * ({extent}) / workgroups"
    r.loop(s.var, lo, f"(workgroup + 1) * ({extent}) / workgroups", s.body)


def _row_tiles(r: _Renderer, s: RowTiles) -> None:
    with r.names.scope(), r.out.block(""):
        v, extent = r.exprs.variable(s.var), r.exprs.inner(s.extent)
        r.out.line(f"int {v} = 0;")
        for width, body in sorted(s.variants, key=lambda variant: -variant[0]):
            with r.out.block(f"for (; {extent} - {v} >= {width}; {v} += {width})"):
                r.statements(body)


def _subgroups(r: _Renderer, s: Subgroups) -> None:
    extent = r.exprs.bound(s.extent)
    with r.names.scope():
        v = r.exprs.variable(s.var)
        head = f"for (int {v} = int(gl_SubgroupID); {v} < {extent}; {v} += SUBGROUPS)"
        with r.out.block(head):
            r.statements(s.body)


def _barrier(r: _Renderer, s: Barrier) -> None:
    r.out.line(BARRIER)


def _lane_map(r: _Renderer, s: LaneMap) -> None:
    def store() -> None:
        value = r.exprs.render(s.value)
        dst = r.exprs.element(s.dst, s.index)
        # `precise`: nothing that leads to the value may be contracted or reassociated.
        r.out.line(f"precise {type_name(s.value.dtype)} value = {value};")
        r.out.line(f"{dst} = value;")

    r.lanes(s.axes, store)


def _lane_fold(r: _Renderer, s: LaneFold) -> None:
    def fold() -> None:
        kind = type_name(s.value.dtype)
        r.out.line(f"precise {kind} total = {r.exprs.render(s.init)};")
        v = r.exprs.variable(s.var)
        lo, hi = r.exprs.bound(s.lo), r.exprs.bound(s.hi)
        with r.out.block(f"for (int {v} = {lo}; {v} < {hi}; ++{v})"):
            r.out.line(f"total = {_fold_step(r, s.red, s.value)};")
        r.out.line(f"{r.exprs.element(s.dst, s.index)} = total;")

    r.lanes(s.axes, fold)


def _fold_step(r: _Renderer, red: Red, value: Expr) -> str:
    if red is Red.MAX:
        return f"max(total, {r.exprs.render(value)})"
    if isinstance(value, Apply) and value.fn is Fn.MUL and value.dtype == F32:
        a, b = (r.exprs.render(x) for x in value.args)
        return f"fma_ir({a}, {b}, total)"
    return f"total + {r.exprs.inner(value)}"


def _frag_zero(r: _Renderer, s: FragZero) -> None:
    r.out.line(f"{r.fragment(s.frag)} = {_coopmat(s.frag)}(0);")


def _frag_load(r: _Renderer, s: FragLoad) -> None:
    r.memory("coopMatLoad", s)


def _frag_store(r: _Renderer, s: FragStore) -> None:
    r.memory("coopMatStore", s)


def _frag_mma(r: _Renderer, s: FragMma) -> None:
    acc, a, b = (r.fragment(f) for f in (s.acc, s.a, s.b))
    r.out.line(f"{acc} = coopMatMulAdd({a}, {b}, {acc});")


_RENDER: dict[type, Callable[..., None]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Subgroups: _subgroups,
    Barrier: _barrier,
    LaneMap: _lane_map,
    LaneFold: _lane_fold,
    FragZero: _frag_zero,
    FragLoad: _frag_load,
    FragStore: _frag_store,
    FragMma: _frag_mma,
}
