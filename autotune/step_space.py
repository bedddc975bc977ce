"""The choices of a whole step: those of each of its kernels, `kernel.choice`.

A configuration names only what differs from the default, so the default is the empty one, and of
two equally fast configurations the simpler one is known by its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from speccc.autotune.facts import MOST_FACTS, NAME, Facts, facts
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

    def config(self, facts_: Facts, kernel: str) -> Config:
        """All choices of one kernel: the default's where the configuration says nothing."""
        own = dict(self.kernels[kernel].default())
        start = f"{kernel}."
        own.update(
            {n.removeprefix(start): v for n, v in facts_ if n.startswith(start)}  # type: ignore[misc]
        )
        return own

    def replace(self, facts_: Facts, kernel: str, config: Config) -> Facts:
        """The configuration with one kernel's choices replaced."""
        default = self.kernels[kernel].default()
        kept = {n: v for n, v in facts_ if n.rpartition(".")[0] != kernel}
        changed = {f"{kernel}.{n}": v for n, v in config.items() if v != default[n]}
        return tuple(sorted({**kept, **changed}.items()))

    def why_not(self, facts_: Facts) -> str | None:
        """Why a configuration, which may be a stranger's, is not one of this space; else None."""
        if len(facts_) > MOST_FACTS:
            return f"{len(facts_)} choices are more than a record holds"
        for name, _ in facts_:
            if name.rpartition(".")[0] not in self.kernels:
                return f"the step has no kernel for {name}"
        for kernel, own in self.kernels.items():
            config = self.config(facts_, kernel)
            reason = own.why_not(config)
            if reason is not None:
                return f"{kernel}: {reason}"
        spelled = DEFAULT
        for kernel in self.kernels:
            spelled = self.replace(spelled, kernel, self.config(facts_, kernel))
        return None if spelled == facts_ else "it names a default"

    def moves(self, facts_: Facts, kernel: str) -> Iterator[Facts]:
        """The configurations that differ in one kernel at most, in the order of its space."""
        for config in self.kernels[kernel].enumerate():
            yield self.replace(facts_, kernel, config)

    def neighbors(self, facts_: Facts) -> Iterator[Facts]:
        """The configurations one step of one choice away."""
        for kernel, own in self.kernels.items():
            for config in own.neighbors(self.config(facts_, kernel)):
                yield self.replace(facts_, kernel, config)

    def schedules(self, facts_: Facts) -> dict[str, Schedule]:
        """What a legal configuration means to the target: the kernels that are not default."""
        named = dict.fromkeys(name.rpartition(".")[0] for name, _ in facts_)
        return {kernel: schedule_of(self.config(facts_, kernel)) for kernel in named}

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


def config_from(values: Mapping[str, str | int | float | bool]) -> Facts:
    """A configuration from a mapping in any order. InputError for what no record can hold."""
    return facts(values, "config")
