"""Fragment-level kernel -> the text of one kernel in a dialect, and how to bind and call it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir.expr import Fn, Var
from speccc.ir.fragment import (
    LANE_STMTS,
    FoldRows,
    Fragment,
    FragmentKernel,
    FragMma,
    FragStore,
    MmaShape,
    Role,
    Workgroup,
    allocated,
    walk,
)
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.tile import Axis, Buf, Mem, Stmt
from speccc.targets.clike.dialect import Dialect
from speccc.targets.clike.expr import Exprs
from speccc.targets.clike.names import Names
from speccc.targets.clike.statements import STATEMENTS
from speccc.targets.clike.writer import Writer

SIDES = {Role.A: "MK", Role.B: "KN", Role.C: "MN"}
"""A fragment's rows and columns in the words of the text."""


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel's text and its interface.

    `buffers` are bound in order: the kernel's own, then SCRATCH, of which each workgroup has a
    part as large as the buffer's shape. Then come the scalars, each an i32. Launch any number of
    workgroups along x, each of `group.invocations` in full subgroups of `group.subgroup`.
    """

    name: str
    text: str
    entry: str
    buffers: tuple[Buf, ...]
    scalars: tuple[Var, ...]
    group: Workgroup

    @property
    def subgroup(self) -> int:
        """Invocations of a subgroup."""
        return self.group.subgroup


def render_kernel(kernel: FragmentKernel, dialect: Dialect) -> KernelText:
    """The text of a verified kernel; equal kernels give equal text."""
    verify_fragment(kernel)
    return Renderer(kernel, dialect).kernel_text()


class Renderer:
    """State of one text: names, what is written, and the fragments declared so far."""

    def __init__(self, kernel: FragmentKernel, dialect: Dialect) -> None:
        """Nothing is written yet."""
        self.kernel, self.dialect = kernel, dialect
        self.names = Names(dialect.reserved)
        self.exprs = Exprs(dialect, self.names)
        self.out = Writer()
        self.table = {**STATEMENTS, **dialect.statements}
        self.declared: set[Fragment] = set()
        made = allocated(kernel)
        self.buffers = (*kernel.bufs, *(b for b in made if b.mem is Mem.SCRATCH))
        self.shared = tuple(b for b in made if b.mem is Mem.SHARED)
        self.entry = ""

    def kernel_text(self) -> KernelText:
        """Declarations come first in the text but last in time: the body says what it needs."""
        kernel, dialect = self.kernel, self.dialect
        for v in kernel.scalars:
            self.names.of(v, v.name)
        for buf in (*self.buffers, *allocated(kernel)):
            self.names.of(buf, buf.name)
        main, self.out = self.out, Writer()
        with self.out.block(dialect.entry(self)):
            dialect.opening(self)
            self.statements(kernel.body)
        body, self.out = self.out.text(), main
        dialect.declarations(self)
        text = self.out.text() + body
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        head = (
            f"{dialect.first}"
            f"// {kernel.name} for {dialect.title}, {self._shapes()}, "
            f"{kernel.group.subgroups} subgroups of {kernel.group.subgroup}.\n"
            f"// sha256 of what follows: {digest}\n"
        )
        return KernelText(
            kernel.name, head + text, self.entry, self.buffers, kernel.scalars, kernel.group
        )

    def _shapes(self) -> str:
        return ", ".join(sorted(map(str, self.shapes))) or "no matrix instruction"

    @property
    def shapes(self) -> frozenset[MmaShape]:
        """The matrix instructions of the kernel."""
        return frozenset(s.acc.shape for s in walk(self.kernel.body) if isinstance(s, FragMma))

    def constants(self) -> None:
        """The workgroup's size, and the sides of the matrix instructions."""
        group, constant = self.kernel.group, self.dialect.constant
        self.out.line(f"{constant} INVOCATIONS = {group.invocations};")
        self.out.line(f"{constant} SUBGROUPS = {group.subgroups};")
        for shape in sorted(self.shapes, key=str):
            sizes = {"M": shape.m, "N": shape.n, "K": shape.k}
            sides = (f"{self._side(shape, word)} = {n}" for word, n in sizes.items())
            self.out.line(f"{constant} {', '.join(sides)};")

    def sides(self, frag: Fragment) -> tuple[str, str]:
        """A fragment's rows and columns."""
        rows, cols = (self._side(frag.shape, word) for word in SIDES[frag.role])
        return rows, cols

    def _side(self, shape: MmaShape, word: str) -> str:
        """M, N or K; with the operands' type where there are instructions of several."""
        if len({s.a for s in self.shapes}) < len(self.shapes):
            raise UnsupportedError(f"kernel {self.kernel.name}: two instructions for {shape.a}")
        return word if len(self.shapes) == 1 else f"{word}_{shape.a}"

    @property
    def joins(self) -> bool:
        """Whether invocations of a subgroup add up what they have."""
        return any(isinstance(s, FoldRows) and s.split > 1 for s in walk(self.kernel.body))

    def written(self, buf: Buf) -> bool:
        """Whether the kernel writes to a buffer."""
        if buf.mem is not Mem.GLOBAL:
            return True
        stores = (s for s in walk(self.kernel.body) if isinstance(s, LANE_STMTS))
        frags = (s for s in walk(self.kernel.body) if isinstance(s, FragStore))
        return any(s.dst is buf for s in stores) or any(s.buf is buf for s in frags)

    def statements(self, body: tuple[Stmt, ...]) -> None:
        """A block, in a scope of its own."""
        outer = set(self.declared)
        with self.names.scope():
            for s in body:
                self.table[type(s)](self, s)
        self.declared = outer

    def loop(self, var: Var, lo: str, hi: str, body: tuple[Stmt, ...], step: str = "") -> None:
        """Statements for var = lo, lo + 1 (or `step`), ... below hi."""
        with self.names.scope():
            v = self.exprs.variable(var)
            with self.counted(v, lo, hi, step, self.dialect.rolled):
                self.statements(body)

    def counted(
        self, v: str, lo: str, hi: str, step: str = "", how: str = ""
    ) -> AbstractContextManager[None]:
        """The block of a loop over a variable that has its name already."""
        index = self.dialect.types["index"]
        move = f"{v} += {step}" if step else f"++{v}"
        return self.out.block(f"{how}for ({index} {v} = {lo}; {v} < {hi}; {move})")

    def fragment(self, frag: Fragment) -> str:
        """The fragment's name, declared where it is first set."""
        name = self.names.of(frag, frag.name)
        if frag not in self.declared:
            self.declared.add(frag)
            self.out.line(f"{self.dialect.fragment(self, frag)} {name};")
        return name

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
        how = self.dialect.rolled
        with self.counted(e, "invocation", self.elements(axes), "INVOCATIONS", how):
            self.unravel(e, axes)
            inner()

    def elements(self, axes: tuple[Axis, ...]) -> str:
        """How many elements some axes have."""
        return " * ".join(map(self._extent, axes))

    def unravel(self, e: str, axes: tuple[Axis, ...]) -> None:
        """The axes' variables of element `e`, the last axis fastest."""
        index, call, rest = self.dialect.types["index"], self.exprs.call, e
        for n, a in reversed(list(enumerate(axes))):
            v, extent = self.exprs.variable(a.var), self._extent(a)
            self.out.line(f"{index} {v} = {rest if n == 0 else call(Fn.MOD, rest, extent)};")
            rest = call(Fn.IDIV, rest, extent)

    def _extent(self, a: Axis) -> str:
        text = self.exprs.bound(a.extent)
        return f"({text})" if " " in text else text
