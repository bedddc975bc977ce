"""Vulkan as a target: each phase of a plan is one compute shader; all are recorded and replayed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from speccc.errors import UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.fragment import MmaShape
from speccc.ir.plan import Plan, phases
from speccc.ir.tile import Kernel, walk
from speccc.ir.types import F16, I8, I32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.plan_memory import Arena
from speccc.passes.scaled_dot_to_fragment import Staging
from speccc.targets.base import Needs, RenderedPlan, Source, ToolMissingError
from speccc.targets.clike.plan import render_plan, unservable
from speccc.targets.clike.schedule import engine_shapes, few_rows
from speccc.targets.devices.profile import Profile
from speccc.targets.glsl_build import (
    OLDEST_GLSLANG,
    TARGET_ENV,
    GlslTools,
    compile_glsl,
    find_glsl_tools,
    glslang_version,
)
from speccc.targets.radv_build import compile_amd, find_radv
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import Shader, render_shader

PROMISED_SHARED = 16384
"""Bytes of shared memory that every Vulkan device has (maxComputeSharedMemorySize)."""
USUAL_SUBGROUP = 32
INVOCATIONS = 64
"""Least invocations of a workgroup: a panel's 16 columns times blocks or rows keep them busy."""
MATRIX_TYPES = (F16,)
"""Of floats: GL_KHR_cooperative_matrix alone has no bf16."""
SOFTWARE = ("lavapipe",)
"""Devices whose own fma rounds twice, and whose workgroups are threads of few CPUs."""
SOFTWARE_DEVICE = "llvmpipe"
"""How Mesa's device that is the CPU calls itself."""
WORKERS, WAVES = 256, 4
"""Workgroups of a launch on a GPU whose units no profile knows; and for each unit of one."""


@dataclass(frozen=True, slots=True)
class VulkanTarget:
    """GLSL for one device profile; `matrix=False` does without its matrix instruction.

    With one, tiles of at most `few` rows do without it all the same: by default as many as cost
    less that way (`speccc.targets.clike.schedule`).
    """

    profile: Profile
    matrix: bool = True
    few: int | None = None

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
        arch, shape = self.profile.arch, self.shape
        subgroup = arch.subgroup.value if arch.subgroup else USUAL_SUBGROUP
        # lavapipe runs a workgroup on one thread: a second subgroup is no use beyond the panel.
        least = 2 * subgroup if self.software else INVOCATIONS
        few = few_rows(shape, arch.dot4) if self.few is None else self.few
        # Where nobody says how large subgroups are, none of them can add anything up.
        split = None if arch.subgroup else 1
        floats = engine_shapes(self.profile, MATRIX_TYPES) if self.matrix else ()
        subgroups = max(1, least // subgroup)
        return DotToFragment(shape, subgroup, subgroups, few, split, floats)

    @property
    def software(self) -> bool:
        """Whether the device is a CPU."""
        return self.profile.arch.name in SOFTWARE

    def unsupported(self, plan: Plan) -> str | None:
        """Why the plan cannot be served, in words that follow its name; None when it can."""
        known = self.profile.arch.shared_bytes
        return unservable(plan, self.lowering.run, known.value if known else PROMISED_SHARED)

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        """The plan's texts and launches; UnsupportedError for two phases of one name."""
        made = render_plan(
            self.name, "comp", plan, arena, self.lowering, lambda k: self._shader(k, plan.sizes)
        )
        return replace(made, needs=self._needs(plan))

    def _needs(self, plan: Plan) -> Needs:
        shape, product, lowering = self.shape, self.profile.device, self.lowering
        known = product.units if product is not None else None
        statements = (s for kernel in phases(plan.body) for s in walk(kernel.body))
        halves = next(filter(None, map(lowering.engine, statements)), None)
        return Needs(
            device=SOFTWARE_DEVICE if self.software else "",
            # Who multiplies or adds up together must be as many as the text says; 0: any number.
            subgroup=lowering.subgroup if shape or halves or lowering.lanes_share else 0,
            matrix=None if shape is None else (shape.m, shape.n, shape.k),
            halves=None if halves is None else (halves.m, halves.n, halves.k),
            workers=WORKERS if known is None else WAVES * known.value,
        )

    def _shader(self, kernel: Kernel, sizes: tuple[Var, ...]) -> Shader:
        fma = Fma.PAIRS if self.software else Fma.DEVICE
        return render_shader(self.lowering.run(kernel), fma, sizes)

    def stages(self) -> Mapping[str, Callable[[Source], bytes]]:
        """SPIR-V, checked by spirv-val; where RADV is found, AMD's code and what it takes."""
        radv, spirv = find_radv(self.profile.arch.name), cache(_spirv)
        if radv is None:
            return {"spv": spirv}
        # `_needs` asks for this size too: on every AMD GPU a subgroup's invocations share sums.
        size = self.lowering.subgroup
        amd = cache(lambda source: compile_amd(spirv(source), radv, size, name=source.name))
        return {
            "spv": spirv,
            "amd.asm": lambda source: amd(source).text.encode(),
            "json": lambda source: json.dumps(amd(source).facts()).encode(),
        }

    def fingerprint(self) -> str:
        """glslang's version and flags; RADV's version where it makes code."""
        tools, radv = find_glsl_tools(), find_radv(self.profile.arch.name)
        version = "none" if tools is None else ".".join(map(str, glslang_version(tools)))
        facts = f"{self.name} {self.lowering} glslang {version} {TARGET_ENV}"
        if radv is not None:
            facts += f" {radv.device} {radv.version}"
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


def _spirv(source: Source) -> bytes:
    return compile_glsl(source.text, _tools(), name=source.name)


def _tools() -> GlslTools:
    tools = find_glsl_tools()
    if tools is None:
        oldest = ".".join(map(str, OLDEST_GLSLANG))
        raise ToolMissingError(
            f"SPIR-V needs glslang {oldest} or newer and SPIRV-Tools: "
            "apt install glslang-tools spirv-tools"
        )
    return tools
