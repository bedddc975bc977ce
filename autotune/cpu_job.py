"""What a tuning of the host CPU's step is told: plain data, which needs no compiler to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from speccc.ir.expr import Var
from speccc.ir.plan import Plan
from speccc.passes.plan_memory import Arena
from speccc.runtime.session import StepSpec
from speccc.targets.cpu.object_store import ObjectStore

SUITE = "speccc.autotune.cpu_suite:suite"
WIDTHS = (1, 4, 8)
"""Rows of the timed steps: plain decoding, a short and a long draft."""
CONTEXT, PROMPT = 128, 64
"""Tokens a session holds, and those in it when steps are timed."""


@dataclass(frozen=True)
class CpuJob:
    """All a worker needs to build and run a step. `step` says how to call it, up to what only the
    code knows; `weights` and `vectors` are files of the packed bytes. `objects`: where compiled
    kernels are kept beyond the worker, and the default step as `default_key`."""

    plan: Plan
    arena: Arena
    bounds: Mapping[Var, int]
    isa: str
    step: StepSpec
    weights: Path
    vectors: Path
    context: int
    threads: int
    objects: ObjectStore | None = None
    default_key: str = ""
