"""A kernel's tile program -> one TensorIR function with a plain C interface, named by its content.

The function takes a pointer for each buffer (already at its first element), a pointer for each
type of scratch memory (already at the worker's share), the kernel's scalars, the worker and the
number of workers, and returns nothing. Nothing in it depends on the plan around it, so equal tile
programs are equal functions whatever their names are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import PointerType, PrimType

from speccc.ir.expr import Var
from speccc.ir.plan import size_of
from speccc.ir.schedule import Schedule
from speccc.ir.tile import Alloc, Buf, Kernel, walk
from speccc.targets.cpu import tir
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.render_expr import Place, Scope
from speccc.targets.cpu.render_tile import Render, on_stack
from speccc.targets.cpu.tir import Node

SCRATCH_TYPES = ("f32", "i8", "i32")
ALIGN = 64
"""Elements between scratch buffers: a cache line for every type."""
PLACEHOLDER = "kernel"
"""The function's name while its content is being named."""
PREFIX = "p_"
"""Before a parameter's name: no local variable has it, so none is printed otherwise for it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A function to build, its symbol, and the text that decides its code.

    `packed`: called through TVM's packed convention, like the step; else a plain C function.
    """

    func: tirx.PrimFunc
    symbol: str
    text: str
    packed: bool = False


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """One kernel as TensorIR: what it is called with, and its text.

    `scratch` has the elements of each type one worker needs; types it does not use are absent.
    `deal` is how its schedule gives units to workers.
    `symbol` is the same for all kernels that compute the same thing in the same way.
    """

    name: str
    symbol: str
    bufs: tuple[Buf, ...]
    scratch: Mapping[str, int]
    scalars: tuple[Var, ...]
    deal: str
    func: tirx.PrimFunc
    script: str
    """The function as TVM prints it, the name left open."""
    text: str
    """The same with parameters by number: what the symbol is made from."""

    def to_build(self) -> Source:
        """What an object is made of."""
        return Source(self.func, self.symbol, self.text)

    @property
    def source(self) -> str:
        """The text to read."""
        header = f"# {self.name}: {', '.join(b.name for b in self.bufs)}\n"
        return header + self.script.replace(f"def {PLACEHOLDER}(", f"def {self.symbol}(", 1)


def kernel_function(
    isa: Isa, kernel: Kernel, bounds: Mapping[Var, int], schedule: Schedule
) -> KernelFunction:
    """Renders a kernel for an instruction set; `bounds` are the largest values of its sizes."""
    made = _Parameters()
    scope = Scope()
    for buf in kernel.bufs:
        scope.places[buf] = Place(made.array(buf.name, buf.dtype.name), tir.index(0))
    scratch, layout = scratch_layout(kernel, bounds)
    arrays = {t: made.array(f"scratch_{t}", t) for t in scratch}
    places = {b: Place(arrays[t], tir.index(at)) for b, (t, at) in layout.items()}
    for v in kernel.scalars:
        scope.variables[v] = made.scalar(v.name)
    worker, workers = made.scalar("worker"), made.scalar("workers")
    body = Render(isa, worker, workers, places, schedule).block(kernel.body, scope)
    func = made.function([*made.declared, *body])
    script = str(func.script())
    text = _by_number(script, [p.name for p in made.params])
    symbol = f"{PLACEHOLDER}_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    named = func.with_attr("global_symbol", symbol)
    bufs, scalars = kernel.bufs, kernel.scalars
    return KernelFunction(
        kernel.name, symbol, bufs, scratch, scalars, schedule.deal, named, script, text
    )


class _Parameters:
    """The parameters of a function in order, and the statements that declare its arrays."""

    def __init__(self) -> None:
        self.params: list[Node] = []
        self.declared: list[Node] = []

    def array(self, name: str, dtype: str) -> Node:
        """A pointer parameter, seen as a flat buffer."""
        element, name = tir.TVM_NAMES[dtype], f"{PREFIX}{name}"
        pointer = tirx.Var(f"{name}_data", PointerType(PrimType(element)))
        # How long it is matters to nobody: indices were checked on the tile program.
        buffer = tirx.decl_buffer((1,), element, name)
        self.params.append(pointer)
        self.declared.append(tirx.DeclBuffer(buffer, data=pointer))
        return buffer

    def scalar(self, name: str) -> Node:
        """An int64 parameter."""
        self.params.append(tirx.Var(f"{PREFIX}{name}", "int64"))
        return self.params[-1]

    def function(self, body: Iterable[Node]) -> tirx.PrimFunc:
        """The function; no two of its arrays overlap."""
        func = tirx.PrimFunc(self.params, tir.seq(list(body)))
        attrs = {"global_symbol": PLACEHOLDER, "tirx.noalias": True, "s_tir": True}
        for name, value in attrs.items():
            func = func.with_attr(name, value)
        return func


def scratch_layout(
    kernel: Kernel, bounds: Mapping[Var, int]
) -> tuple[dict[str, int], dict[Buf, tuple[str, int]]]:
    """One worker's scratch: elements by type, and the type and offset of each buffer."""
    used: dict[str, int] = {}
    out: dict[Buf, tuple[str, int]] = {}
    for s in walk(kernel.body):
        if isinstance(s, Alloc) and not on_stack(s.buf) and s.buf not in out:
            count = 1
            for d in s.buf.shape:
                count *= size_of(d, bounds)
            name = s.buf.dtype.name
            out[s.buf] = (name, used.get(name, 0))
            used[name] = used.get(name, 0) + -(-count // ALIGN) * ALIGN
    return {t: used[t] for t in SCRATCH_TYPES if t in used}, out


def _by_number(text: str, names: list[str]) -> str:
    """The text with parameters called by their place, so that equal functions have equal texts."""
    numbers = {}
    for n, name in enumerate(names):
        numbers[name] = f"arg{n}"
        numbers[name.removesuffix("_data")] = f"arg{n}_array"
    words = "|".join(re.escape(name) for name in sorted(numbers, key=len, reverse=True))
    return re.sub(rf"(?<![\w.\"])({words})\b", lambda found: numbers[found[1]], text)
