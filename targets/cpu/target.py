"""Plan -> a TensorIR function for each kernel and one for the step -> objects -> shared library.

TVM is imported by the first method that needs it: it takes two seconds, and a build that was kept
needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from speccc.ir.expr import Var
from speccc.ir.plan import Plan, phases
from speccc.ir.schedule import Schedule, Schedules
from speccc.ir.tile import Kernel
from speccc.passes.plan_memory import Arena
from speccc.targets.cpu.built import Built, Signature
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.link import link
from speccc.targets.cpu.object_store import MemoryObjects, ObjectStore

if TYPE_CHECKING:
    from speccc.targets.cpu.kernel_function import KernelFunction, Source

UNTUNED: Schedules = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A plan as TensorIR: the step and the kernels it calls, equal ones once."""

    step: Source
    kernels: tuple[KernelFunction, ...]
    signature: Signature

    @property
    def source(self) -> str:
        """All functions as text to read."""
        return "\n\n".join([self.step.text, *(k.source for k in self.kernels)])


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
        from speccc.targets.cpu.kernel_function import kernel_function

        functions = {
            kernel: kernel_function(
                self.isa, kernel, bounds, schedules.get(kernel.name, Schedule())
            )
            for kernel in phases(plan.body)
        }
        return self.assemble(plan, arena, functions)

    def assemble(
        self, plan: Plan, arena: Arena, functions: Mapping[Kernel, KernelFunction]
    ) -> Rendered:
        """The plan's functions when its kernels are rendered already."""
        from speccc.targets.cpu.kernel_function import Source
        from speccc.targets.cpu.step_function import step_function

        step, signature = step_function(plan, arena, functions)
        kernels = {f.symbol: f for f in functions.values()}
        source = Source(step, plan.name, str(step.script()), packed=True)
        return Rendered(source, tuple(kernels.values()), signature)

    def objects(self, rendered: Rendered, store: ObjectStore | None = None) -> list[bytes]:
        """The relocatable objects of the step and its kernels."""
        from speccc.targets.cpu.objects import build_objects

        sources = [rendered.step, *(k.to_build() for k in rendered.kernels)]
        return build_objects(self.isa, sources, store or MemoryObjects(), self.jobs)

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
