"""What the tests of tuning share: problems to tune, caches, a process that tunes until killed."""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from cache_rig import HERE, key
from models import Tiny, tiny_llama
from tune_suite import SUITE, WIDTHS, Job

from speccc.autotune.cache import TuneCache
from speccc.autotune.facts import Facts, facts
from speccc.autotune.key import Device
from speccc.autotune.measure import Limits, Measured, OutOfTime, Worker
from speccc.autotune.prior import Prior
from speccc.autotune.record import Outcome
from speccc.autotune.step_space import StepSpace
from speccc.autotune.tuner import Problem
from speccc.ir.space import Choice, Pow2, Space

if TYPE_CHECKING:
    from speccc.ir.frontends import ModelSource
    from speccc.passes.lower_graph import Lowered
    from speccc.tuning import Subject

PATIENT = Limits(start=60.0, build=60.0, check=60.0, time=60.0)
"""A busy machine takes no candidate for one that hangs."""

MATMUL = Space((("rows", Pow2(1, 8, 8)), ("unroll", Choice((1, 2, 4), 1))))
STEP = StepSpace(
    {"up": MATMUL, "down": MATMUL, "soft": Space((("deal", Choice(("runs", "turns"), "runs")),))}
)


def config(**values: object) -> Facts:
    """A configuration; `up_rows=4` is the choice `up.rows`."""
    named = {name.replace("_", ".", 1): value for name, value in values.items()}
    return facts(named, "config")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Expect:
    """A prior that expects what it is told of choices, and nothing of the others."""

    gains: Mapping[Facts, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, chosen: Facts) -> float:
        return 1.0 - sum(gain for part, gain in self.gains.items() if set(part) <= set(chosen))

    def share(self, kernel: str) -> float:
        return self.shares.get(kernel, 0.1)


FLAT = Expect()


def problem(
    space: StepSpace = STEP,
    prior: Prior = FLAT,
    device: Device = HERE,
) -> Problem:
    """A problem of the C suite's widths."""
    return Problem({m: key(device, m=m) for m in WIDTHS}, space, prior)


@dataclass
class Table:
    """A measurer that looks up ratios; every measurement takes a second of its own clock."""

    ratios: Mapping[Facts, float] = field(default_factory=dict)
    outcomes: Mapping[Facts, Outcome] = field(default_factory=dict)
    noise: Callable[[], float] = lambda: 1.0
    cost: float = 1.0
    now: float = 0.0
    tried: list[Facts] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def measure(self, chosen: Facts, *, seconds: float, deadline: float) -> Measured:
        if self.now + self.cost > deadline:
            self.now = deadline
            raise OutOfTime
        self.now += self.cost
        self.tried.append(chosen)
        outcome = self.outcomes.get(chosen, Outcome.OK)
        if outcome is not Outcome.OK:
            return Measured(outcome, message="planted")
        ratio = self.ratios.get(chosen, 1.0)
        ms: dict[int, tuple[float, ...]] = {}
        default_ms: dict[int, float] = {}
        for m in WIDTHS:
            # As the worker does it: each sample beside a run of the default.
            default = [2.0 * m * self.noise() for _ in range(15 if seconds > 1.0 else 5)]
            default_ms[m] = median(default)
            ms[m] = tuple(default_ms[m] * ratio * 2.0 * m * self.noise() / d for d in default)
        return Measured(outcome, ms, default_ms)


@functools.cache
def lowered_tiny(tiny: Tiny, fmt: str) -> Lowered:
    """A tiny model's plan."""
    return _lowered(tiny, fmt)[1]


def tiny_subject(tiny: Tiny, fmt: str) -> Subject:
    """A tiny model's step, to be tuned."""
    from speccc.driver import _bounds, _step
    from speccc.pack import pack_weights
    from speccc.passes.plan_memory import PlanMemory
    from speccc.runtime.step_spec import SCRATCH, parse_step
    from speccc.targets.cpu.built import Signature
    from speccc.targets.cpu.isa import detect
    from speccc.tuning import Subject

    source, lowered = _lowered(tiny, fmt)
    bounds = _bounds(lowered)
    arena = PlanMemory(bounds).run(lowered.plan)
    early = Signature((), arena.elements, dict.fromkeys(SCRATCH, 0), ())
    step = parse_step(_step(source, lowered, early))
    weights, vectors = pack_weights(lowered.weights, source.weights)
    return Subject(
        lowered.plan, arena, bounds, detect(), "f16", step, weights, vectors, tiny.context
    )


def _lowered(tiny: Tiny, fmt: str) -> tuple[ModelSource, Lowered]:
    # Here, so that a process that only tunes does not load the compiler.
    from speccc.driver import CompileOptions, _Times, final_graph
    from speccc.ir.frontends import open_model
    from speccc.passes.lower_graph import LowerGraph

    folder = Path(tempfile.mkdtemp(prefix="speccc-"))
    try:
        source = open_model(tiny_llama(folder, fmt=fmt, tiny=tiny))
        return source, LowerGraph("f16").run(final_graph(source, CompileOptions(), _Times()))
    finally:
        # The file is mapped: it lives as long as the source does.
        shutil.rmtree(folder)


def tune_until_killed(folder: Path) -> None:
    """Tunes with slow steps, and says when a configuration is done."""
    from speccc.autotune.tuner import tune

    job = Job(folder, pause=0.02)
    (folder / "cache").mkdir(exist_ok=True)
    with TuneCache(folder / "cache") as cache, Worker(SUITE, job, limits=PATIENT) as worker:
        tune(problem(), cache, worker, 600.0, tell=lambda p: print(p.tried, flush=True))


if __name__ == "__main__":
    tune_until_killed(Path(sys.argv[1]))
