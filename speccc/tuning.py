"""Schedules for a step: from the user's tuning cache, or measured here and kept there."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

import speccc.targets
from speccc import user_cache
from speccc.autotune.cache import TuneCache, warn
from speccc.autotune.cpu_job import CONTEXT, PROMPT, SUITE, WIDTHS, CpuJob
from speccc.autotune.host import host_device
from speccc.autotune.key import TuneKey, make_key
from speccc.autotune.measure import DefaultFails, Worker
from speccc.autotune.prior import step_prior
from speccc.autotune.step_space import DEFAULT, step_space
from speccc.autotune.tuner import Problem, Tell, Tuned, best_known, tune, usable_entries
from speccc.autotune.winner import Choice
from speccc.build_step import step_key
from speccc.errors import SpecccError
from speccc.ir.expr import Var
from speccc.ir.packed import PANEL
from speccc.ir.plan import Plan
from speccc.ir.schedule import Schedule, Schedules
from speccc.ir.tile_text import print_plan
from speccc.kernel_cache import open_kernel_cache
from speccc.passes.plan_memory import Arena
from speccc.runtime.cores import cores
from speccc.runtime.session import StepSpec
from speccc.scratch import Scratch
from speccc.targets.cpu.isa import Isa, runs_here

NUMERIC_CLASS = "blocks of 32 along k in order, f32 fma, sums of 16 lanes, kv tiles of 16"
"""What no schedule may change; the same words as in `docs/architecture.md`."""
WEIGHTS = "weights-"
"""How folders with weights for workers begin."""
TOOLS = ("apache-tvm", "numpy")


@dataclass(frozen=True)
class Subject:
    """A step to tune: its plan, how it is called, its packed weights (u8) and vectors (f32)."""

    plan: Plan
    arena: Arena
    bounds: Mapping[Var, int]
    isa: Isa
    kv: str
    step: StepSpec
    weights: npt.NDArray[np.uint8]
    vectors: npt.NDArray[np.float32]
    most_context: int

    @property
    def nbytes(self) -> int:
        """Bytes of weights and vectors."""
        return self.weights.nbytes + self.vectors.nbytes


def schedules_for(subject: Subject, seconds: float, tell: Tell | None = None) -> Schedules:
    """The best schedules known for a step on this machine; none for code of another one.

    When nothing is known yet, `seconds` are spent on tuning; 0 only looks. What keeps a cache or
    a disk from being used is a notice, not an error. DefaultFails when the step itself is wrong.
    """
    if not runs_here(subject.isa):
        return {}
    problem = problem_of(subject)
    if not problem.space.kernels:
        return {}
    try:
        with TuneCache(user_cache.folder("tune")) as cache:
            choice = known_choice(problem, cache)
            if choice is None and seconds > 0:
                choice = tune_step(subject, problem, cache, seconds, tell).choice
    except DefaultFails:
        raise
    except SpecccError as error:
        warn(f"not tuned: {error}")
        return {}
    return problem.space.schedules(choice.config if choice is not None else DEFAULT)


def tune_here(subject: Subject, seconds: float, tell: Tell | None = None) -> tuple[Problem, Tuned]:
    """Tunes a step for `seconds`, on top of what is known; the results are kept.

    SpecccError for a cache that cannot be used, DefaultFails as `tune_step`.
    """
    problem = problem_of(subject)
    with TuneCache(user_cache.folder("tune")) as cache:
        return problem, tune_step(subject, problem, cache, seconds, tell)


def known_choice(problem: Problem, cache: TuneCache) -> Choice | None:
    """The choice of what was measured and checked on this machine; None when nobody tried."""
    entries = usable_entries(problem, cache)
    return best_known(entries) if entries else None


def tune_step(
    subject: Subject, problem: Problem, cache: TuneCache, seconds: float, tell: Tell | None = None
) -> Tuned:
    """Builds the default, then tunes for `seconds`, in a process of its own.

    The default is no part of the budget: a compile needs it anyway, and finds it in the kernel
    cache.

    DefaultFails when the untuned step itself is wrong or does not run.
    """
    # Times are of one plan, renderer and compiler: that default was compared with the golden model
    # when the first of them was taken.
    golden = not any(entry.record.ms for entry in usable_entries(problem, cache))
    with job_of(subject, cache.folder) as job, Worker(SUITE, job, golden=golden) as worker:
        worker.prepare()
        return tune(problem, cache, worker, seconds, tell=tell)


def problem_of(subject: Subject) -> Problem:
    """The keys, the space and the prior of a step on this machine."""
    space = step_space(subject.plan, subject.isa)
    program = hashlib.sha256(print_plan(subject.plan).encode()).hexdigest()
    compilers = {tool.replace("-", "_"): metadata.version(tool) for tool in TOOLS}
    compilers["speccc"] = metadata.version("speccc")
    compilers["renderer"] = user_cache.sources_fingerprint(speccc.targets)[:16]
    # A record names what differs from the default: what that was belongs to it.
    default = ", ".join(f"{name} {value}" for name, value in asdict(Schedule()).items())
    device = host_device(subject.isa.name)

    def key(m: int) -> TuneKey:
        return make_key(
            "step",
            program=program,
            numeric_class=NUMERIC_CLASS,
            m=m,
            shapes={"weight_bytes": subject.weights.nbytes, "vocab": subject.step.vocab},
            formats={"kv": subject.kv},
            layout={"panel": PANEL, "default": default},
            device=device,
            compilers=compilers,
            policy={"threads": cores(), "in_step": True, "cold": False, "prompt": PROMPT},
        )

    prior = step_prior(subject.plan, space, subject.isa, WIDTHS)
    return Problem({m: key(m) for m in WIDTHS}, space, prior)


@contextmanager
def job_of(subject: Subject, base: Path) -> Iterator[CpuJob]:
    """The job of a worker process, which maps the weights from files in a folder of `base` that
    ends with it. SpecccError when the disk has no room for them."""
    if shutil.disk_usage(base).free < 2 * subject.nbytes:
        raise SpecccError(
            f"tuning needs {2 * subject.nbytes} bytes of free disk space", where=str(base)
        )
    with Scratch(WEIGHTS, base) as folder:
        subject.weights.tofile(folder / "weights")
        subject.vectors.tofile(folder / "vectors")
        yield CpuJob(
            plan=subject.plan,
            arena=subject.arena,
            bounds=subject.bounds,
            isa=subject.isa.name,
            step=subject.step,
            weights=folder / "weights",
            vectors=folder / "vectors",
            context=min(CONTEXT, subject.most_context),
            threads=cores(),
            objects=open_kernel_cache(),
            default_key=step_key(subject.plan, subject.arena, subject.bounds, {}, subject.isa),
        )


Report = Callable[[str, int, int], None]


def told(report: Report) -> Tell:
    """A progress of (work, done, total) as the tuner's: tenths of seconds of the budget."""
    return lambda p: report(
        "tune", min(round(10 * p.spent), round(10 * p.budget)), round(10 * p.budget)
    )
