"""What the targets share around launches: places and units of a plan, and its form as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Var, variables
from speccc.ir.plan import Plan, Role, size_of
from speccc.ir.plan import Step as PlanStep
from speccc.ir.tile import Kernel, Share, walk
from speccc.ir.tile_text import print_expr
from speccc.passes.plan_memory import Arena
from speccc.targets.base import Launch, LaunchLoop, LaunchStep, Place, RenderedPlan

SCRATCH = "scratch"
FLOAT_BYTES = 4
"""An arena counts in f32 elements."""


def plan_places(plan: Plan, arena: Arena) -> tuple[Place, ...]:
    """The plan's buffers in its order; activations no phase uses have no place in the arena."""
    return tuple(
        Place(
            b.buf.name,
            b.buf.dtype.name,
            b.buf.shape,
            b.role.value,
            FLOAT_BYTES * arena.offsets[b.buf] if b.role is Role.ACTIVATION else None,
            b.window,
        )
        for b in plan.bufs
        if b.role is not Role.ACTIVATION or b.buf in arena.offsets
    )


def plan_launches(
    body: tuple[PlanStep, ...], launch: Callable[[Kernel], LaunchStep]
) -> tuple[LaunchStep, ...]:
    """One launch a phase, loops kept."""
    return tuple(
        launch(step)
        if isinstance(step, Kernel)
        else LaunchLoop(step.var.name, step.extent, plan_launches(step.body, launch))
        for step in body
    )


def units(kernel: Kernel) -> Expr | int:
    """Most independent units of a phase: workgroups beyond them idle. 1 when one does it all.

    With none of them a phase has no work; one whose units are found out as it runs counts as one.
    """
    found = [s.extent for s in walk(kernel.body) if isinstance(s, Share)]
    fixed = [n for n in found if isinstance(n, int) or variables(n) <= set(kernel.scalars)]
    if len(fixed) < len(found) or not found:
        fixed.append(1)
    most = fixed[0]
    for n in fixed[1:]:
        most = _larger(most, n)
    return most


def _larger(a: Expr | int, b: Expr | int) -> Expr | int:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else ex.maximum(a, b)


def launches(steps: tuple[LaunchStep, ...]) -> Iterator[Launch]:
    """Every launch of a step in order, loops repeated."""
    for step in steps:
        for _ in range(step.extent if isinstance(step, LaunchLoop) else 1):
            if isinstance(step, Launch):
                yield step
            else:
                yield from launches(step.body)


def launches_per_step(rendered: RenderedPlan) -> int:
    """Most kernel launches of one step."""
    return sum(1 for _ in launches(rendered.launches))


def launches_with_work(rendered: RenderedPlan, sizes: Mapping[Var, int]) -> int:
    """Kernel launches of a step of these sizes: those without work are not made."""
    return sum(size_of(launch.grid.units, sizes) > 0 for launch in launches(rendered.launches))


def document(rendered: RenderedPlan) -> Mapping[str, object]:
    """The launch plan as JSON: what a driver needs to run a step, sizes as expressions."""
    return {
        "target": rendered.target,
        "plan": rendered.plan,
        "needs": asdict(rendered.needs),
        "sizes": [v.name for v in rendered.sizes],
        "arena_bytes": rendered.arena,
        "buffers": [_place(p) for p in rendered.places],
        "kernels": [
            {"name": s.name, "entry": s.entry, "file": f"{s.name}.{s.ext}"}
            for s in rendered.sources
        ],
        "launches_per_step": launches_per_step(rendered),
        "launches": [_launch(s) for s in rendered.launches],
    }


def _place(p: Place) -> Mapping[str, object]:
    shape = [d if isinstance(d, int) else print_expr(d) for d in p.shape]
    out: dict[str, object] = {"name": p.name, "dtype": p.dtype, "shape": shape, "role": p.role}
    if p.window is not None:
        out["window"] = print_expr(p.window)
    return out if p.offset is None else {**out, "arena_offset": p.offset}


def _launch(step: LaunchStep) -> Mapping[str, object]:
    if isinstance(step, LaunchLoop):
        return {"loop": step.var, "extent": step.extent, "body": [_launch(s) for s in step.body]}
    units = step.grid.units
    return {
        "kernel": step.source,
        "buffers": list(step.buffers),
        "scalars": list(step.scalars),
        "scalar_type": step.scalar,
        "workgroups": {
            "most": units if isinstance(units, int) else print_expr(units),
            "threads": step.grid.threads,
            "all_resident": step.grid.resident,
        },
    }
