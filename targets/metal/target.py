"""Metal as a target: each phase of a plan is one kernel in MSL, launched in order and replayed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from speccc.errors import UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.fragment import MmaShape
from speccc.ir.plan import Plan, phases
from speccc.ir.tile import Kernel
from speccc.ir.types import F16, F32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.plan_memory import Arena
from speccc.targets.base import RenderedPlan, Source
from speccc.targets.clike.plan import render_plan, unservable
from speccc.targets.clike.render import KernelText, render_kernel
from speccc.targets.clike.schedule import engine_shapes, few_rows
from speccc.targets.devices.profile import Fact, Profile
from speccc.targets.metal.metal_build import FLAGS, compile_msl, metal_version
from speccc.targets.metal.msl import MSL

MSL_PDF = "https://developer.apple.com/metal/Metal-Shading-Language-Specification.pdf"
SIMDGROUP = Fact(32, MSL_PDF)
"""Threads of a simdgroup where a profile is silent: those of every GPU of Apple."""
SHARED = Fact(32768, "https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf")
SIMDGROUPS = 2
"""Of a threadgroup: one for each fragment of a panel's 16 columns."""


@dataclass(frozen=True, slots=True)
class MetalTarget:
    """MSL for one device profile; `matrix=False` does without simdgroup matrices.

    These have no integers. Codes are integers below 2^8 and a block's sum stays below 2^20, so
    halves and an f32 accumulator are exact: `speccc.passes.scaled_dot_to_fragment`. Tiles of at
    most `few` rows take integer dots of the threads: by default as many as cost less that way
    (`speccc.targets.clike.schedule`).
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
        """The matrix instruction of quantized dots, or None: integer dots of the threads."""
        shapes = self.profile.matrix(F16, F16, F32) if self.matrix else ()
        return shapes[0] if shapes else None

    @property
    def lowering(self) -> DotToFragment:
        """The pass to fragment level."""
        simdgroup = self.profile.arch.subgroup or SIMDGROUP
        few = few_rows(self.shape, self.profile.arch.dot4) if self.few is None else self.few
        floats = engine_shapes(self.profile) if self.matrix else ()
        return DotToFragment(self.shape, simdgroup.value, SIMDGROUPS, few, floats=floats)

    def unsupported(self, plan: Plan) -> str | None:
        """Why the plan cannot be served, in words that follow its name; None when it can."""
        shared = self.profile.arch.shared_bytes or SHARED
        reason = unservable(plan, self.lowering.run, shared.value)
        return reason or next(filter(None, map(self._refused, phases(plan.body))), None)

    def _refused(self, kernel: Kernel) -> str | None:
        try:
            self._text(kernel)
        except UnsupportedError as error:
            return f"phase {kernel.name}: {error}"
        return None

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        """The plan's texts and launches; UnsupportedError for two phases of one name."""
        return render_plan(self.name, "metal", plan, arena, self.lowering, self._text)

    def _text(self, kernel: Kernel) -> KernelText:
        named = replace(MSL, title=f"Metal, {self.name}")
        return render_kernel(self.lowering.run(kernel), named)

    def stages(self) -> Mapping[str, Callable[[Source], bytes]]:
        """A Metal library, on a Mac; a device can compile the text itself, too."""
        return {"metallib": lambda source: compile_msl(source.text, name=source.name)}

    def fingerprint(self) -> str:
        """The compiler's version and flags."""
        facts = f"{self.name} {self.lowering} {metal_version() or 'none'} {FLAGS}"
        return hashlib.sha256(facts.encode()).hexdigest()


def make(profile: Profile) -> MetalTarget:
    """The target of a profile."""
    return MetalTarget(profile)
