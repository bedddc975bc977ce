"""Vulkan as a target: each phase of a plan is one compute shader; all are recorded and replayed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from speccc.errors import UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.fragment import MmaShape, shared_bytes
from speccc.ir.plan import Plan, phases
from speccc.ir.tile import Buf, Kernel, Mem
from speccc.ir.types import I8, I32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.plan_memory import Arena
from speccc.passes.scaled_dot_to_fragment import Staging
from speccc.targets.base import Grid, Launch, Place, RenderedPlan, Source, ToolMissingError
from speccc.targets.devices.profile import Profile
from speccc.targets.glsl_build import (
    OLDEST_GLSLANG,
    TARGET_ENV,
    GlslTools,
    compile_glsl,
    find_glsl_tools,
    glslang_version,
)
from speccc.targets.launch_plan import FLOAT_BYTES, SCRATCH, plan_launches, plan_places, units
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import Shader, render_shader

PROMISED_SHARED = 16384
"""Bytes of shared memory that every Vulkan device has (maxComputeSharedMemorySize)."""
USUAL_SUBGROUP = 32
INVOCATIONS = 64
"""Least invocations of a workgroup: a panel's 16 columns times blocks or rows keep them busy."""
SOFTWARE = ("lavapipe",)
"""Devices whose own fma rounds twice, and whose workgroups are threads of few CPUs."""


@dataclass(frozen=True, slots=True)
class VulkanTarget:
    """GLSL for one device profile; `matrix=False` does without its matrix instruction."""

    profile: Profile
    matrix: bool = True

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.profile.name

    @property
    def shape(self) -> MmaShape | None:
        """The matrix instruction for quantized dots, or None: integer dots of the invocations."""
        shapes = self.profile.matrix(I8, I8, I32) if self.matrix else ()
        return next((s for s in shapes if _serves(s)), None)

    @property
    def lowering(self) -> DotToFragment:
        """The pass to fragment level."""
        known = self.profile.arch.subgroup
        subgroup = known.value if known else USUAL_SUBGROUP
        # lavapipe runs a workgroup on one thread: a second subgroup is no use beyond the panel.
        least = 2 * subgroup if self.software else INVOCATIONS
        return DotToFragment(self.shape, subgroup, max(1, least // subgroup))

    @property
    def software(self) -> bool:
        """Whether the device is a CPU."""
        return self.profile.arch.name in SOFTWARE

    def unsupported(self, plan: Plan) -> str | None:
        """Why the plan cannot be served, in words that follow its name; None when it can."""
        known = self.profile.arch.shared_bytes
        room = known.value if known else PROMISED_SHARED
        for kernel in phases(plan.body):
            try:
                need = shared_bytes(self.lowering.run(kernel))
            except UnsupportedError as error:
                return f"phase {kernel.name}: {error}"
            if need > room:
                return f"phase {kernel.name} needs {need} bytes of shared memory, not {room}"
        return None

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        """The plan's texts and launches; UnsupportedError for two phases of one name."""
        kernels = tuple(phases(plan.body))
        shaders = {k: self._shader(k, plan.sizes) for k in kernels}
        names = [k.name for k in kernels]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UnsupportedError(f"two phases are called {twice}", where=plan.name)
        return RenderedPlan(
            target=self.name,
            plan=plan.name,
            sizes=plan.sizes,
            sources=tuple(_source(s) for s in shaders.values()),
            places=(*plan_places(plan, arena), *_scratch(shaders)),
            launches=plan_launches(plan.body, lambda k: _launch(k, shaders[k])),
            arena=FLOAT_BYTES * arena.elements,
        )

    def _shader(self, kernel: Kernel, sizes: tuple[Var, ...]) -> Shader:
        fma = Fma.PAIRS if self.software else Fma.DEVICE
        return render_shader(self.lowering.run(kernel), fma, sizes)

    def stages(self) -> Mapping[str, Callable[[Source], bytes]]:
        """SPIR-V, checked by spirv-val."""
        return {"spv": lambda source: compile_glsl(source.text, _tools(), name=source.name)}

    def fingerprint(self) -> str:
        """glslang's version and flags."""
        tools = find_glsl_tools()
        version = "none" if tools is None else ".".join(map(str, glslang_version(tools)))
        facts = f"{self.name} {self.matrix} glslang {version} {TARGET_ENV}"
        return hashlib.sha256(facts.encode()).hexdigest()


def make(profile: Profile) -> VulkanTarget:
    """The target of a profile."""
    return VulkanTarget(profile)


def _serves(shape: MmaShape) -> bool:
    try:
        Staging.of(shape)
    except UnsupportedError:
        return False
    return True


def _tools() -> GlslTools:
    tools = find_glsl_tools()
    if tools is None:
        oldest = ".".join(map(str, OLDEST_GLSLANG))
        raise ToolMissingError(
            f"SPIR-V needs glslang {oldest} or newer and SPIRV-Tools: "
            "apt install glslang-tools spirv-tools"
        )
    return tools


def _source(shader: Shader) -> Source:
    return Source(shader.name, "comp", shader.entry, shader.text, shader)


def _launch(kernel: Kernel, shader: Shader) -> Launch:
    return Launch(
        kernel.name,
        tuple(_place_name(kernel.name, b) for b in shader.buffers),
        tuple(v.name for v in shader.scalars),
        Grid(units(kernel), shader.group.invocations),
    )


def _place_name(kernel: str, buf: Buf) -> str:
    return f"{kernel}.{buf.name}" if buf.mem is Mem.SCRATCH else buf.name


def _scratch(shaders: Mapping[Kernel, Shader]) -> tuple[Place, ...]:
    return tuple(
        Place(_place_name(k.name, b), b.dtype.name, b.shape, SCRATCH)
        for k, shader in shaders.items()
        for b in shader.buffers
        if b.mem is Mem.SCRATCH
    )
