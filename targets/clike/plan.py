"""A plan in a C-like language: one kernel and one launch a phase, whatever the dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from speccc.errors import UnsupportedError
from speccc.ir.fragment import FragmentKernel, shared_bytes
from speccc.ir.plan import Plan, phases
from speccc.ir.tile import Buf, Kernel, Mem
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.passes.plan_memory import Arena
from speccc.targets.base import Grid, Launch, Place, RenderedPlan, Source
from speccc.targets.clike.render import KernelText
from speccc.targets.launch_plan import FLOAT_BYTES, SCRATCH, plan_launches, plan_places, units


def render_plan(
    target: str,
    ext: str,
    plan: Plan,
    arena: Arena,
    lowering: DotToFragment,
    render: Callable[[Kernel], KernelText],
) -> RenderedPlan:
    """A source with the ending `ext` for each phase; UnsupportedError for two of one name.

    `render` gives the text of a phase as `lowering` makes it.
    """
    texts = {k: render(k) for k in phases(plan.body)}
    names = [k.name for k in texts]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UnsupportedError(f"two phases are called {twice[0]}", where=plan.name)
    return RenderedPlan(
        target=target,
        plan=plan.name,
        sizes=plan.sizes,
        sources=tuple(Source(t.name, ext, t.entry, t.text, t) for t in texts.values()),
        places=(*plan_places(plan, arena), *_scratch(texts)),
        launches=plan_launches(plan.body, lambda k: _launch(k, texts[k])),
        arena=FLOAT_BYTES * arena.elements,
        height=lowering.height,
    )


def unservable(plan: Plan, lower: Callable[[Kernel], FragmentKernel], shared: int) -> str | None:
    """Why no kernel of a plan can be made, or which wants more than `shared` bytes; else None."""
    for kernel in phases(plan.body):
        try:
            need = shared_bytes(lower(kernel))
        except UnsupportedError as error:
            return f"phase {kernel.name}: {error}"
        if need > shared:
            return f"phase {kernel.name} needs {need} bytes of shared memory, not {shared}"
    return None


def _launch(kernel: Kernel, text: KernelText) -> Launch:
    return Launch(
        kernel.name,
        tuple(_place(kernel.name, b) for b in text.buffers),
        tuple(v.name for v in text.scalars),
        Grid(units(kernel), text.group.invocations),
    )


def _place(kernel: str, buf: Buf) -> str:
    return f"{kernel}.{buf.name}" if buf.mem is Mem.SCRATCH else buf.name


def _scratch(texts: Mapping[Kernel, KernelText]) -> tuple[Place, ...]:
    return tuple(
        Place(_place(k.name, b), b.dtype.name, b.shape, SCRATCH)
        for k, text in texts.items()
        for b in text.buffers
        if b.mem is Mem.SCRATCH
    )
