"""SYCL as a target: each phase of a plan is one free-function kernel, launched in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from speccc.errors import UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.fragment import MmaShape
from speccc.ir.plan import Plan
from speccc.ir.tile import Kernel
from speccc.ir.types import I8, I32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.plan_memory import Arena
from speccc.targets.base import Needs, RenderedPlan, Source, ToolMissingError
from speccc.targets.clike.plan import render_plan, unservable
from speccc.targets.clike.render import KernelText
from speccc.targets.clike.schedule import engine_shapes, few_rows
from speccc.targets.devices.profile import Profile
from speccc.targets.sycl.render import render_sycl
from speccc.targets.sycl_build import (
    INSTALL_OCLOC,
    PRECISE,
    VERSION,
    WHEEL,
    Form,
    SyclCompiler,
    XeCode,
    compile_sycl,
    compile_xe,
    find_ocloc,
    find_sycl_compiler,
    ocloc_version,
)

USUAL_SHARED = 65536
"""Bytes of local memory of a work-group where the profile is silent: every Xe has that much."""
INSTALL = "pip install 'speccc[sycl]' (Linux on x86-64), or put oneAPI's icpx on PATH"
SUBGROUPS = 4
"""Of a work-group: 64 work-items, enough for a panel's 16 columns times blocks or rows."""
CHIPS = {"alchemist": "acm-g10", "b70": "bmg-g31"}
"""Architectures, and products, whose chip ocloc calls something else."""
CPU, CPU_DEVICE = "cpu", "opencl:cpu"
"""The architecture that is no GPU, and its device as SYCL filters name it."""


@dataclass(frozen=True, slots=True)
class SyclTarget:
    """SYCL for one device profile; `form` says how its matrices are compiled."""

    profile: Profile
    form: Form = Form.JOINT

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.profile.name

    @property
    def shape(self) -> MmaShape:
        """The matrix instruction of quantized dots: as many tokens as it takes at once."""
        shapes = self.profile.matrix(I8, I8, I32)
        if not shapes:
            raise UnsupportedError(f"{self.name}: no int8 matrix instruction is known")
        return shapes[0]

    @property
    def lowering(self) -> DotToFragment:
        """The pass to fragment level."""
        arch, shape = self.profile.arch, self.shape
        subgroup = arch.subgroup.value if arch.subgroup else shape.n
        few, floats = few_rows(shape, arch.dot4), engine_shapes(self.profile)
        return DotToFragment(shape, subgroup, SUBGROUPS, few, floats=floats)

    def unsupported(self, plan: Plan) -> str | None:
        """Why the plan cannot be served, in words that follow its name; None when it can."""
        known = self.profile.arch.shared_bytes
        return unservable(plan, self.lowering.run, known.value if known else USUAL_SHARED)

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        """The plan's texts and launches; UnsupportedError for two phases of one name."""
        made = render_plan(self.name, "cpp", plan, arena, self.lowering, self._text)
        return replace(made, needs=Needs(device=CPU_DEVICE if self.is_cpu else ""))

    @property
    def chip(self) -> str:
        """What ocloc calls the device."""
        device, arch = self.profile.device, self.profile.arch.name
        return CHIPS.get(device.name if device else "", CHIPS.get(arch, arch))

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU: it has no matrix engine."""
        return self.profile.arch.name == CPU

    def _text(self, kernel: Kernel) -> KernelText:
        return render_sycl(self.lowering.run(kernel), self.name)

    def stages(self) -> Mapping[str, Callable[[Source], bytes]]:
        """SPIR-V; where `ocloc` is found the device's code, its instructions and what it takes."""

        @cache
        def spirv(source: Source) -> bytes:
            return compile_sycl(source.text, _compiler(), self.form, name=source.name)

        @cache
        def xe(source: Source) -> XeCode:
            ocloc = find_ocloc()
            if ocloc is None:
                raise ToolMissingError(f"Xe code needs ocloc: {INSTALL_OCLOC}")
            return compile_xe(spirv(source), self.chip, ocloc, name=source.name)

        first: dict[str, Callable[[Source], bytes]] = {"spv": spirv}
        if self.form is Form.PORTABLE or find_ocloc() is None:
            return first
        return first | {
            "xe.bin": lambda source: xe(source).binary,
            "xe.asm": lambda source: xe(source).text.encode(),
            "json": lambda source: json.dumps(xe(source).facts()).encode(),
        }

    def fingerprint(self) -> str:
        """Versions and flags of the compilers."""
        compiler, ocloc = find_sycl_compiler(), find_ocloc()
        facts = (
            self.name,
            " ".join(self.form.flags),
            "none" if compiler is None else f"{compiler.name} {compiler.version} {compiler.flags}",
            "none" if ocloc is None else f"{ocloc_version(ocloc)} {PRECISE}",
        )
        return hashlib.sha256(" ".join(facts).encode()).hexdigest()


def make(profile: Profile) -> SyclTarget:
    """The target of a profile."""
    return SyclTarget(profile, Form.PORTABLE if profile.arch.name == CPU else Form.JOINT)


def _compiler() -> SyclCompiler:
    found = find_sycl_compiler()
    if found is None:
        raise ToolMissingError(f"SPIR-V of SYCL needs {WHEEL} {VERSION}*: {INSTALL}")
    return found
