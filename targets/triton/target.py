"""A CUDA or ROCm device as a target: a step is one persistent kernel, built ahead of time."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Var
from speccc.ir.plan import Plan, phases
from speccc.ir.tile import ScaledDot, walk
from speccc.passes.plan_memory import Arena
from speccc.targets.base import Grid, Launch, Place, RenderedPlan, Source, Step, ToolMissingError
from speccc.targets.build_error import BuildError
from speccc.targets.devices.profile import Profile
from speccc.targets.launch_plan import FLOAT_BYTES, SCRATCH, plan_places, units
from speccc.targets.triton.heights import height, is_fp4
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.step import BARRIER, WORDS, render_step
from speccc.targets.triton_build import CALLS, Built, TritonKernel

ZEROED = "state"
"""The role of the barrier: like a cache it is zero at first and lives across steps."""


@dataclass(frozen=True)
class TritonTarget:
    """`build` makes the stages named in `outputs`: the text, then the binary.

    `waves` is how many threads of a warp there are.
    """

    profile: Profile
    build: Callable[[TritonKernel], Built]
    outputs: tuple[str, str]
    waves: int
    shape: Shape = field(default_factory=Shape)

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.profile.name

    def unsupported(self, plan: Plan) -> str | None:
        """Why the plan cannot be rendered; None when it can."""
        try:
            bounds = dict.fromkeys(plan.sizes, 1)
            render_step(plan, tuple(b.buf for b in plan.bufs), self.shape, bounds, self.name)
        except UnsupportedError as error:
            return str(error)
        return None

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        """One source and one launch: all phases, loops over layers and barriers are inside."""
        places = plan_places(plan, arena)
        known = {p.name for p in places}
        bufs = tuple(b.buf for b in plan.bufs if b.buf.name in known)
        shape = self.shape_of(plan)
        text = render_step(plan, bufs, shape, bounds, self.name)
        extra = [Place(f"{SCRATCH}_{t}", t, (n,), SCRATCH) for t, n in text.own.items()]
        if text.barriers:
            extra.insert(0, Place(BARRIER, "index", (WORDS,), ZEROED))
        grid = Grid(_most_units(plan), shape.warps * self.waves, text.barriers)
        names = (*(b.name for b in bufs), *(p.name for p in extra))
        launch = Launch(plan.name, names, tuple(v.name for v in plan.sizes), grid, "i64")
        source = Source(plan.name, "py", text.kernel.name, text.kernel.source, text.kernel)
        return RenderedPlan(
            self.name,
            plan.name,
            plan.sizes,
            (source,),
            (*places, *extra),
            (launch,),
            FLOAT_BYTES * arena.elements,
            height=lambda s, extent: height(s, shape, extent),
        )

    def shape_of(self, plan: Plan) -> Shape:
        """How a plan's kernels are cut; products of NVFP4 by NVFP4 take tiles of their own."""
        fp4, dots = self.shape.fp4, (s for k in phases(plan.body) for s in walk(k.body))
        if fp4 is None or not any(isinstance(s, ScaledDot) and is_fp4(s) for s in dots):
            return self.shape
        return replace(self.shape, warps=fp4.warps, units=fp4.units)

    def stages(self) -> Mapping[str, Step]:
        """The assembly text, the binary, and what a launch must ask for, of one compilation."""
        text, binary = self.outputs
        return {
            text: lambda source: self.built(source).text.encode(),
            binary: lambda source: self.built(source).binary,
            "json": lambda source: _facts(self.built(source)),
        }

    def built(self, source: Source) -> Built:
        """Both stages and the shared memory of a source. BuildError, or ToolMissingError."""
        kernel = source.detail
        if not isinstance(kernel, TritonKernel):
            raise BuildError("a source of another target", where=source.name)
        return _built_once(self.build, _Hashed(kernel))

    def fingerprint(self) -> str:
        """Triton's version (it brings its LLVM and its assembler), its hooks, the schedule."""
        try:
            version = importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
        return f"triton {version}; {CALLS}; {self.shape}"


def _facts(built: Built) -> bytes:
    return (json.dumps({"shared_bytes": built.shared_bytes}) + "\n").encode()


def _most_units(plan: Plan) -> Expr | int:
    """Units of the largest phase: workers beyond them would idle."""
    found = [units(k) for k in phases(plan.body)]
    numbers = [n for n in found if isinstance(n, int)]
    most: Expr | int = max(numbers, default=1)
    for n in found:
        most = most if isinstance(n, int) else ex.maximum(most, n)
    return most


@dataclass(frozen=True, slots=True)
class _Hashed:
    """A kernel by its text, which fixes all the rest of it."""

    kernel: TritonKernel = field(compare=False)
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", self.kernel.source)


@functools.lru_cache(maxsize=8)
def _built_once(build: Callable[[TritonKernel], Built], kernel: _Hashed) -> Built:
    try:
        return build(kernel.kernel)
    except UnsupportedError as error:
        if "not installed" in str(error):
            raise ToolMissingError(str(error)) from error
        raise
