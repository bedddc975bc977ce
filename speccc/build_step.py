"""A plan -> its built step, from the kernel cache when it was built before.

The key is made from the plan's text, so that a build that was kept needs neither TVM nor a C
compiler.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata

import speccc.ir
import speccc.targets
from speccc import user_cache
from speccc.ir.expr import Var
from speccc.ir.plan import Plan, Role, phases
from speccc.ir.schedule import Schedule, Schedules
from speccc.ir.tile_text import print_plan
from speccc.passes.plan_memory import Arena
from speccc.runtime.cores import cores
from speccc.targets.cpu.built import Built
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.object_store import ObjectStore
from speccc.targets.cpu.target import CpuTarget


def build_step(
    plan: Plan,
    arena: Arena,
    bounds: Mapping[Var, int],
    schedules: Schedules,
    isa: Isa,
    store: ObjectStore,
) -> Built:
    """The step of a plan; what had to be built for it is kept in `store`."""
    key = step_key(plan, arena, bounds, schedules, isa)
    kept = store.get(key)
    if kept is not None:
        return Built.from_bytes(kept)
    built = CpuTarget(isa, cores()).compile(plan, arena, bounds, schedules, store)
    store.put(key, built.to_bytes())
    return built


def step_key(
    plan: Plan, arena: Arena, bounds: Mapping[Var, int], schedules: Schedules, isa: Isa
) -> str:
    """SHA-256 in hex of everything that decides the step: plan, places, choices, tools, sources."""
    facts = {
        "plan": print_plan(plan),
        "arena": [arena.elements, *map(arena.offsets.get, plan.by_role(Role.ACTIVATION))],
        "bounds": [[v.name, n] for v, n in bounds.items()],
        "schedules": [
            [k.name, asdict(schedules.get(k.name, Schedule()))] for k in phases(plan.body)
        ],
        "isa": [isa.name, isa.mcpu, *isa.attrs, platform.machine()],
        "tvm": metadata.version("apache-tvm"),
        "sources": user_cache.sources_fingerprint(speccc.ir, speccc.targets),
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
