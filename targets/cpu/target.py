"""Plan -> a TensorIR function for each kernel and one for the step -> objects -> shared library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tvm import tirx

from speccc.ir.expr import Var
from speccc.ir.plan import Plan, phases
from speccc.ir.schedule import Schedule, Schedules
from speccc.passes.plan_memory import Arena
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.kernel_function import KernelFunction, Source, kernel_function
from speccc.targets.cpu.link import link
from speccc.targets.cpu.objects import MemoryObjects, ObjectStore, build_objects
from speccc.targets.cpu.step_function import Signature, step_function

UNTUNED: Schedules = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A plan as TensorIR: the step and the kernels it calls, equal ones once."""

    step: tirx.PrimFunc
    kernels: tuple[KernelFunction, ...]
    signature: Signature

    @property
    def source(self) -> str:
        """All functions as text to read."""
        return "\n\n".join([self.step.script(), *(k.source for k in self.kernels)])


@dataclass(frozen=True, slots=True)
class Built:
    """Everything the CPU target makes of a plan."""

    signature: Signature
    source: str
    library: bytes


@dataclass(frozen=True)
class CpuTarget:
    """The host CPU (or, with another `isa`, one like it); `jobs` objects are built at a time."""

    isa: Isa
    jobs: int = 1

    def render(
        self,
        plan: Plan,
        arena: Arena,
        bounds: Mapping[Var, int],
        schedules: Schedules = UNTUNED,
    ) -> Rendered:
        """The plan's functions; `bounds` are the largest values of the sizes."""
        functions = {
            kernel: kernel_function(
                self.isa, kernel, bounds, schedules.get(kernel.name, Schedule())
            )
            for kernel in phases(plan.body)
        }
        step, signature = step_function(plan, arena, functions)
        kernels = {f.symbol: f for f in functions.values()}
        return Rendered(step, tuple(kernels.values()), signature)

    def objects(self, rendered: Rendered, store: ObjectStore | None = None) -> list[bytes]:
        """The relocatable objects of the step and its kernels."""
        sources = [k.to_build() for k in rendered.kernels]
        name, text = str(rendered.step.attrs["global_symbol"]), rendered.step.script()
        step = Source(rendered.step, name, text, packed=True)
        return build_objects(self.isa, [step, *sources], store or MemoryObjects(), self.jobs)

    def library(self, rendered: Rendered, store: ObjectStore | None = None) -> bytes:
        """The step as a shared library; objects that the store has are not built again."""
        return link(self.objects(rendered, store))

    def compile(
        self,
        plan: Plan,
        arena: Arena,
        bounds: Mapping[Var, int],
        schedules: Schedules = UNTUNED,
        objects: ObjectStore | None = None,
    ) -> Built:
        """Renders, builds and links a plan."""
        rendered = self.render(plan, arena, bounds, schedules)
        return Built(rendered.signature, rendered.source, self.library(rendered, objects))
