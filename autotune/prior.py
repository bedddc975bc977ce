"""What a step should take, by counting bytes and products: the order in which schedules are tried.

    seconds(kernel, m) = max(stream, compute) + HIDDEN * min(stream, compute)

stream   bytes of packed weights / bandwidth, longer without prefetch or with one that comes late
compute  products of m rows / rate, plus what each pass over the rows costs again (codes unpacked,
         loops), more with accumulators that do not fit the registers

Only ratios matter, so the machine's numbers are nominal. What the model does not know (how well
the hardware prefetches, what LLVM makes of a body) is what measuring is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Protocol

from speccc.autotune.facts import Facts
from speccc.autotune.step_space import StepSpace
from speccc.ir.plan import Loop, Plan, Step
from speccc.ir.schedule import Schedule
from speccc.ir.tile import Kernel, RowTiles, ScaledDot, walk
from speccc.targets.cpu.isa import Isa

HIDDEN = 0.25
"""Of the shorter of the two, what is not hidden behind the longer one."""
NO_PREFETCH, OFF_BY_TWO = 0.08, 0.03
"""Share of the stream's time lost without prefetch, and for each doubling away from the best."""
BEST_PREFETCH = 2048
"""Bytes: one core streams 1 KB while a miss lasts (100 ns at 10 GB/s), and misses queue up."""
NO_FAR = 0.04
"""Share of the stream's time lost when lines come from memory straight into the first cache."""
TURNS = 0.02
"""Share lost when neighbours in memory go to different workers: pages are opened more often."""
UNPACK = 6.0
"""Cycles to bring one block of codes into registers, paid once a tile of rows."""
TRIP = 2.0
"""Cycles of loop counting a trip."""
SPILL = 4.0
"""Cycles to write and read back an accumulator that has no register, a block."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Nominal numbers of a core: bytes and cycles a second, row dots of a block a cycle."""

    bytes_per_s: float
    hertz: float
    dots: float
    registers: int


# A block of a panel is 8 quads of 4 columns for 16 rows: so many dot instructions, 2 a cycle at
# best; the sets without a 512-bit dot take several instructions for each.
MACHINES: dict[str, Machine] = {
    "avx512vnni": Machine(12e9, 2.5e9, 1 / 8, 30),
    "avxvnni": Machine(12e9, 2.5e9, 1 / 16, 6),
    "avx2": Machine(12e9, 2.5e9, 1 / 32, 6),
    "dotprod": Machine(12e9, 2.5e9, 1 / 16, 6),
    "portable": Machine(12e9, 2.5e9, 1 / 128, 6),
}


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does in one step: one entry a weight matrix, repeated over the layers."""

    bytes: float
    blocks: float

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.blocks + other.blocks)


NOTHING = Work(0.0, 0.0)
LEAST_SHARE = 0.02
"""Of a step's time, what a kernel of unknown work is taken for."""


class Prior(Protocol):
    """What is expected before anything is measured."""

    def ratio(self, config: Facts) -> float:
        """Time of a configuration over the default's."""

    def share(self, kernel: str) -> float:
        """Of the default's time, a kernel's part."""


@dataclass(frozen=True)
class StepPrior:
    """The prior of a step: means over `widths` of the nominal T(m) over the default's."""

    space: StepSpace
    works: Mapping[str, Work]
    machine: Machine
    widths: tuple[int, ...]
    known: dict[tuple[str, Schedule], float] = field(default_factory=dict)

    def ratio(self, config: Facts) -> float:
        """Kernels add up; what is unknown of a step changes nothing."""
        changed = self.space.schedules(config).items()
        return 1.0 + sum(self._part(k, s) - self._part(k, Schedule()) for k, s in changed)

    def share(self, kernel: str) -> float:
        """At least a little: who knows."""
        return max(self._part(kernel, Schedule()), LEAST_SHARE)

    def _part(self, kernel: str, schedule: Schedule) -> float:
        """A kernel's time with a schedule over the default step's."""
        key = (kernel, schedule)
        if key not in self.known:
            work = self.works.get(kernel, NOTHING)
            times = (seconds(work, schedule, m, self.machine) for m in self.widths)
            self.known[key] = mean(t / b for t, b in zip(times, self._default(), strict=True))
        return self.known[key]

    def _default(self) -> list[float]:
        """Nominal time of the untuned step by width."""
        sums = (
            sum(seconds(w, Schedule(), m, self.machine) for w in self.works.values())
            for m in self.widths
        )
        return [total or 1.0 for total in sums]


def step_prior(plan: Plan, space: StepSpace, isa: Isa, widths: tuple[int, ...]) -> StepPrior:
    """The prior of a plan on an instruction set."""
    machine = MACHINES.get(isa.name, MACHINES["portable"])
    return StepPrior(space, step_work(plan), machine, widths)


def step_work(plan: Plan) -> dict[str, Work]:
    """The work of each kernel in one step, over all layers."""
    works: dict[str, Work] = {}
    for kernel, trips in _trips(plan.body, 1):
        one = kernel_work(kernel)
        whole = Work(one.bytes * trips, one.blocks * trips)
        works[kernel.name] = works.get(kernel.name, NOTHING) + whole
    return works


def kernel_work(kernel: Kernel) -> Work:
    """Bytes and blocks of the packed matrices a kernel multiplies with, each counted once."""
    total = NOTHING
    seen: set[tuple[object, object]] = set()
    for s in walk(kernel.body):
        if not isinstance(s, RowTiles):
            continue
        # The variants of a tile do the same for different numbers of rows.
        tallest = max(s.variants, key=lambda v: v[0])[1]
        for dot in walk(tallest):
            if isinstance(dot, ScaledDot) and (dot.w, dot.offset) not in seen:
                seen.add((dot.w, dot.offset))
                total += Work(float(dot.w.nbytes), float(dot.w.panels * dot.w.blocks))
    return total


def seconds(work: Work, schedule: Schedule, m: int, machine: Machine) -> float:
    """Nominal time of one core for a kernel's work at m rows."""
    if not work.bytes:
        return 0.0
    late = NO_PREFETCH
    if schedule.prefetch:
        late = OFF_BY_TWO * abs(math.log2(schedule.prefetch / BEST_PREFETCH))
    late += NO_FAR * (schedule.far == 0) + TURNS * (schedule.deal == "turns")
    stream = work.bytes / machine.bytes_per_s * (1 + late)
    tiles = math.ceil(m / schedule.rows)
    tall = min(m, schedule.rows)
    spilled = max(0, tall - machine.registers)
    cycles = m / machine.dots + tiles * (UNPACK + TRIP / schedule.unroll) + SPILL * spilled
    compute = work.blocks * cycles / machine.hertz
    return max(stream, compute) + HIDDEN * min(stream, compute)


def _trips(body: tuple[Step, ...], times: int) -> Iterator[tuple[Kernel, int]]:
    for step in body:
        if isinstance(step, Loop):
            yield from _trips(step.body, times * step.extent)
        else:
            yield step, times
