"""Plan -> one TensorIR function -> object file -> shared library."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx

from speccc.errors import SpecccError, UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.plan import Loop, Plan, PlanBuf, Role, Step, size_of
from speccc.ir.tile import Alloc, Buf, Kernel, walk
from speccc.passes.plan_memory import Arena
from speccc.targets.cpu import pipeline, tir
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.render_expr import Place, Scope
from speccc.targets.cpu.render_tile import Render, on_stack
from speccc.targets.cpu.tir import Node

SCRATCH_TYPES = ("f32", "i8", "i32")
ALIGN = 64
"""Elements between scratch buffers: a cache line for every type."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How to call the step: buffers, arena, a scratch array a type, sizes, number of workers."""

    bufs: tuple[str, ...]
    arena: int
    scratch: Mapping[str, int]
    sizes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """Everything the CPU target makes of a plan."""

    signature: Signature
    source: str
    library: bytes


@dataclass(frozen=True)
class CpuTarget:
    """The host CPU (or, with another `isa`, one like it)."""

    isa: Isa

    def render(
        self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]
    ) -> tuple[tirx.PrimFunc, Signature]:
        """The whole plan as one TensorIR function named after the plan."""
        return _Function(self.isa, plan, arena, bounds).build()

    def tvm_target(self) -> tvm.target.Target:
        """LLVM settings for the instruction set; code for another machine is built, not run."""
        arch = self.isa.arch or os.uname().machine
        # The code is vectorised and unrolled as written: -O2 and -O3 take longer and gain nothing.
        triple = f"{arch}-unknown-linux-gnu"
        spec: dict[str, object] = {"kind": "llvm", "opt-level": 1, "mtriple": triple}
        if self.isa.mcpu:
            spec["mcpu"] = self.isa.mcpu
        if self.isa.attrs:
            spec["mattr"] = list(self.isa.attrs)
        return tvm.target.Target(spec)

    def object_code(self, func: tirx.PrimFunc, name: str) -> bytes:
        """The relocatable object of one function."""
        module = self._build(func, name)
        with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
            path = Path(folder) / "step.o"
            module.write_to_file(str(path), "o")
            return path.read_bytes()

    def library(self, func: tirx.PrimFunc, name: str) -> bytes:
        """The function as a shared library, linked by the C compiler at hand."""
        module = self._build(func, name)
        with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
            path = Path(folder) / "step.so"
            module.export_library(str(path), fcompile=_link)
            return path.read_bytes()

    def _build(self, func: tirx.PrimFunc, name: str) -> tvm.runtime.Module:
        module = tvm.IRModule({name: func})
        return tirx.build(module, target=self.tvm_target(), pipeline=pipeline.register())

    def compile(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> Built:
        """Renders, builds and links a plan."""
        func, signature = self.render(plan, arena, bounds)
        return Built(signature, func.script(), self.library(func, plan.name))


def linker() -> str | None:
    """The C compiler that links shared libraries: $CC, cc, gcc or clang."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    return None


def _link(output: str, objects: list[str], options: object = None, **_: object) -> None:
    cc = linker()
    if cc is None:
        raise UnsupportedError("no C compiler found to link kernels: install gcc, or set CC")
    files = [objects] if isinstance(objects, str) else list(objects)
    done = subprocess.run(
        [cc, "-shared", "-fPIC", "-o", output, *files], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SpecccError(f"{cc} failed to link a kernel: {done.stderr.strip().splitlines()[-1]}")


_link.output_format = "so"  # type: ignore[attr-defined]  # how TVM asks for the suffix


class _Function:
    """Builds the function: parameters, then phases inside one parallel launch."""

    def __init__(self, isa: Isa, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> None:
        self.isa, self.plan, self.arena, self.bounds = isa, plan, arena, bounds
        self.scope = Scope()
        self.params: list[Node] = []
        self.workers = tirx.Var("workers", "int64")
        self.scratch_size = dict.fromkeys(SCRATCH_TYPES, 0)
        self.scratch_buf: dict[str, Node] = {}

    def build(self) -> tuple[tirx.PrimFunc, Signature]:
        external = [b for b in self.plan.bufs if b.role is not Role.ACTIVATION]
        for b in external:
            self._parameter(b)
        arena = self._array("arena", "f32")
        for buf, offset in self.arena.offsets.items():
            self.scope.places[buf] = Place(arena, tir.index(offset))
        for name in SCRATCH_TYPES:
            self.scratch_buf[name] = self._array(f"scratch_{name}", name)
        for v in self.plan.sizes:
            self.scope.variables[v] = tirx.Var(v.name, "int64")
            self.params.append(self.scope.variables[v])
        self.params.append(self.workers)
        layout = {k: self._layout(k) for k in _kernels(self.plan.body)}
        body = self._steps(self.plan.body, self.scope, layout)
        launch = tirx.AttrStmt(tir.index(0), "pragma_parallel_launch_point", tir.index(1), body)
        func = tirx.PrimFunc(self.params, launch).with_attr("global_symbol", self.plan.name)
        names = tuple(b.buf.name for b in external)
        sizes = tuple(v.name for v in self.plan.sizes)
        signature = Signature(names, self.arena.elements, dict(self.scratch_size), sizes)
        return func.with_attr("s_tir", True), signature

    def _array(self, name: str, dtype: str) -> Node:
        size = tirx.Var(f"{name}_size", "int64")
        buffer = tirx.decl_buffer((size,), tir.TVM_NAMES[dtype], name)
        self.params.append(buffer)
        return buffer

    def _parameter(self, b: PlanBuf) -> None:
        buffer = self._array(b.buf.name, b.buf.dtype.name)
        self.scope.places[b.buf] = Place(buffer, tir.index(0))

    def _layout(self, kernel: Kernel) -> dict[Buf, tuple[str, int]]:
        """Offsets of a kernel's scratch buffers in one worker's share."""
        used = dict.fromkeys(SCRATCH_TYPES, 0)
        out: dict[Buf, tuple[str, int]] = {}
        for s in walk(kernel.body):
            if isinstance(s, Alloc) and not on_stack(s.buf) and s.buf not in out:
                count = 1
                for d in s.buf.shape:
                    count *= size_of(d, self.bounds)
                name = s.buf.dtype.name
                out[s.buf] = (name, used[name])
                used[name] += -(-count // ALIGN) * ALIGN
        for name, size in used.items():
            self.scratch_size[name] = max(self.scratch_size[name], size)
        return out

    def _steps(
        self,
        body: tuple[Step, ...],
        scope: Scope,
        layout: Mapping[Kernel, dict[Buf, tuple[str, int]]],
    ) -> Node:
        out = []
        for step in body:
            if isinstance(step, Loop):
                inner = scope.child()
                inner.variables[step.var] = tir.loop_var(step.var.name)
                steps = self._steps(step.body, inner, layout)
                out.append(tir.serial(inner.variables[step.var], tir.index(step.extent), [steps]))
            else:
                out.append(self._phase(step, scope, layout[step]))
        return tir.seq(out)

    def _phase(self, kernel: Kernel, scope: Scope, layout: dict[Buf, tuple[str, int]]) -> Node:
        worker = tirx.Var(f"{kernel.name}_worker", "int64")
        places = {
            buf: Place(
                self.scratch_buf[name],
                worker * tir.index(self.scratch_size[name]) + tir.index(offset),
            )
            for buf, (name, offset) in layout.items()
        }
        body = Render(self.isa, worker, self.workers, places).block(kernel.body, scope)
        loop = tirx.For(worker, tir.index(0), self.workers, tirx.ForKind.PARALLEL, tir.seq(body))
        barrier = "pragma_parallel_barrier_when_finish"
        return tirx.AttrStmt(tir.index(0), barrier, tir.index(1), loop)


def _kernels(body: tuple[Step, ...]) -> list[Kernel]:
    out: list[Kernel] = []
    for step in body:
        out.extend(_kernels(step.body) if isinstance(step, Loop) else [step])
    return out
