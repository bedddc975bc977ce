"""The choices of a whole step: those of each of its kernels, `kernel.choice`.

A configuration names only what differs from the default, so the default is the empty one, and of
two equally fast configurations the simpler one is known by its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from speccc.autotune.facts import MOST_FACTS, NAME, Facts
from speccc.autotune.key import digest
from speccc.ir.plan import Plan, phases
from speccc.ir.schedule import Schedule
from speccc.ir.space import Config, Space
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.space import schedule_of, space

DEFAULT: Facts = ()
LONGEST_NAME = 48
"""Characters of a kernel's name that leave room for the name of a choice."""


@dataclass(frozen=True)
class StepSpace:
    """The spaces of a step's kernels by name, in the plan's order."""

    kernels: Mapping[str, Space]

    def config(self, step: Facts, kernel: str) -> Config:
        """All choices of one kernel: the default's where the step's configuration says nothing."""
        own = dict(self.kernels[kernel].default())
        for name, value in step:
            owner, _, choice = name.rpartition(".")
            if owner == kernel:
                own[choice] = value  # type: ignore[assignment]  # a stranger's float: `why_not`
        return own

    def replace(self, step: Facts, kernel: str, config: Config) -> Facts:
        """The step's configuration with one kernel's choices replaced."""
        default = self.kernels[kernel].default()
        kept = {n: v for n, v in step if n.rpartition(".")[0] != kernel}
        changed = {f"{kernel}.{n}": v for n, v in config.items() if v != default[n]}
        return tuple(sorted({**kept, **changed}.items()))

    def why_not(self, step: Facts) -> str | None:
        """Why a configuration, which may be a stranger's, is not one of this space; else None."""
        if len(step) > MOST_FACTS:
            return f"{len(step)} choices are more than a record holds"
        for name, _ in step:
            if name.rpartition(".")[0] not in self.kernels:
                return f"the step has no kernel for {name}"
        spelled = DEFAULT
        for kernel, kernel_space in self.kernels.items():
            own = self.config(step, kernel)
            reason = kernel_space.why_not(own)
            if reason is not None:
                return f"{kernel}: {reason}"
            spelled = self.replace(spelled, kernel, own)
        return None if spelled == step else "it names a default"

    def moves(self, step: Facts, kernel: str) -> Iterator[Facts]:
        """The configurations that differ in one kernel at most, in the order of its space."""
        for config in self.kernels[kernel].enumerate():
            yield self.replace(step, kernel, config)

    def neighbors(self, step: Facts) -> Iterator[Facts]:
        """The configurations one step of one choice away."""
        for kernel, own in self.kernels.items():
            for config in own.neighbors(self.config(step, kernel)):
                yield self.replace(step, kernel, config)

    def schedules(self, step: Facts) -> dict[str, Schedule]:
        """What a legal configuration means to the target: the kernels that are not default."""
        named = dict.fromkeys(name.rpartition(".")[0] for name, _ in step)
        return {kernel: schedule_of(self.config(step, kernel)) for kernel in named}

    def fingerprint(self) -> str:
        """SHA-256 in hex over the kernels' spaces."""
        return digest({name: own.fingerprint() for name, own in self.kernels.items()})


def step_space(plan: Plan, isa: Isa) -> StepSpace:
    """The space of a plan. Kernels without a choice, and those whose names no record can hold,
    stay as they are; kernels of one name share their choices if these are the same."""
    found: dict[str, Space] = {}
    clash: set[str] = set()
    for kernel in phases(plan.body):
        own = space(kernel, isa)
        if not own.params or len(kernel.name) > LONGEST_NAME or not NAME.match(kernel.name):
            continue
        if kernel.name in found and found[kernel.name].fingerprint() != own.fingerprint():
            clash.add(kernel.name)
        found.setdefault(kernel.name, own)
    return StepSpace({name: own for name, own in found.items() if name not in clash})
