"""What every GPU target offers: a plan in, texts and launches out, and the steps that build them.

A target compiles only; devices are `speccc.runtime.devices`. Each backend has a module with
`make(profile: Profile) -> Target`, listed in `speccc.targets.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Union

from speccc.errors import UnsupportedError
from speccc.ir.expr import Expr, Var
from speccc.ir.plan import Plan
from speccc.ir.tile import RowTiles
from speccc.passes.plan_memory import Arena
from speccc.targets.devices.profile import Profile


class ToolMissingError(UnsupportedError):
    """A stage's tool is not on this machine; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Source:
    """One text to build.

    `name` is a kernel of the plan in the model's words, or the plan's own for a step in one kernel;
    `ext` its file's ending ("comp", "py", "cpp", "metal"); `entry` the function to launch.
    `detail` is what the target's own stages need besides the text; nobody else looks at it.
    """

    name: str
    ext: str
    entry: str
    text: str
    detail: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Grid:
    """How many workgroups to launch, along x.

    Any number gives the same bits; more than `units` would idle (units may be an expression of the
    plan's sizes). `threads` is the size of one. `resident`: they meet at grid barriers, so at most
    as many as the device holds at once.
    """

    units: Expr | int
    threads: int
    resident: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: which source, its buffers in binding order, its scalars in order.

    A kernel takes all its buffers first (scratch among them), then its scalars, each a `scalar`.
    Vulkan has the plan's sizes in a uniform buffer at the next binding, each at four times its
    number among them, so that recorded launches can be replayed; a loop's variable is pushed.
    """

    source: str
    buffers: tuple[str, ...]
    scalars: tuple[str, ...]
    grid: Grid
    scalar: str = "i32"


@dataclass(frozen=True, slots=True)
class LaunchLoop:
    """Launches repeated for var = 0..extent-1, where `var` is a scalar of the launches."""

    var: str
    extent: int
    body: tuple[LaunchStep, ...]


LaunchStep = Union[Launch, LaunchLoop]  # noqa: UP007 (forward reference)


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer that a launch binds.

    `role` is a `Role`'s value or "scratch". An activation lies `offset` bytes into the arena; a
    scratch buffer holds one part of this shape for each workgroup; a `window` is a part of the
    buffer `weights` from that byte on. Others stand by themselves.
    """

    name: str
    dtype: str
    shape: tuple[Expr | int, ...]
    role: str
    offset: int | None = None
    window: Expr | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a launch plan asks of the device that it runs on.

    `device` is what its driver calls it (a part of its name, or a filter), "" for the first there
    is; `subgroup` is invocations, 0 for any; `matrix` an int8 instruction's m, n, k; `halves` those
    of one that sums f16 as f32. `workers` are workgroups that keep it busy, 0 where the driver
    knows.
    """

    device: str = ""
    subgroup: int = 0
    matrix: tuple[int, int, int] | None = None
    halves: tuple[int, int, int] | None = None
    workers: int = 0


@dataclass(frozen=True, slots=True)
class RenderedPlan:
    """A whole step for one target: the same plan gives the same texts, byte by byte.

    `launches` run in order, each seeing what those before it wrote. `arena` is bytes. `height`
    tells how many of so many rows a row tile takes at once, where it is not the program's widths.
    """

    target: str
    plan: str
    sizes: tuple[Var, ...]
    sources: tuple[Source, ...]
    places: tuple[Place, ...]
    launches: tuple[LaunchStep, ...]
    arena: int
    needs: Needs = Needs()
    height: Callable[[RowTiles, int], int] | None = None


Step = Callable[[Source], bytes]
"""One stage: BuildError when the tool refuses the text, ToolMissingError when there is no tool."""


class Target(Protocol):
    """A backend and a device profile. Five methods; think before adding a sixth."""

    @property
    def name(self) -> str:
        """The profile's name, as "cuda:sm_90"."""

    @property
    def profile(self) -> Profile:
        """What it compiles for."""

    def unsupported(self, plan: Plan) -> str | None:
        """Why the plan cannot be served, in words that follow its name; None when it can."""

    def render(self, plan: Plan, arena: Arena, bounds: Mapping[Var, int]) -> RenderedPlan:
        """The plan's texts and launches; `bounds` are the largest values of the sizes."""

    def stages(self) -> Mapping[str, Step]:
        """File ending -> the step that makes it of a source, in the order they are made.

        A stage "json" says what a driver must know and no file tells: `shared_bytes` to ask for at
        launch; registers, spills and instructions if the compiler counted them.
        """

    def fingerprint(self) -> str:
        """Versions and flags of all that the outputs depend on besides the plan and the profile."""
