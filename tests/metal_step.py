"""A whole step for Metal on the stand-in: the target's launches over a session's own arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from emulation.metal_stand_in import MetalStandIn
from fragment_rig import Array

from speccc.driver import _step
from speccc.emit import Front
from speccc.ir.expr import Expr, Var
from speccc.ir.plan import size_of
from speccc.ir.types import DTYPES
from speccc.pack import pack_weights
from speccc.runtime.session import CpuSession, StepSession
from speccc.runtime.step_spec import SCRATCH, parse_step
from speccc.targets.base import Launch, LaunchStep, Place, RenderedPlan, Target
from speccc.targets.clike.render import KernelText
from speccc.targets.cpu.built import Signature

GROUPS = 3
"""Threadgroups of a launch, if it has units for them."""


@dataclass
class StandInStep:
    """Runs the launches of a rendered plan. `arrays` by name are all buffers but its own."""

    machine: MetalStandIn
    rendered: RenderedPlan
    arrays: Mapping[str, Array]
    sizes: dict[str, int] = field(default_factory=dict)
    launches: int = 0

    @cached_property
    def arena(self) -> Array:
        """Bytes of the activations, at first anything but zeros."""
        return np.full(self.rendered.arena, 0x55, np.uint8)

    @cached_property
    def places(self) -> dict[str, Place]:
        """The buffers by name."""
        return {p.name: p for p in self.rendered.places}

    def __call__(self, sizes: Sequence[int], workers: int) -> None:
        """One step; `sizes` are the plan's."""
        self.sizes = dict(zip((v.name for v in self.rendered.sizes), sizes, strict=True))
        self._run(self.rendered.launches, {})

    def _run(self, steps: tuple[LaunchStep, ...], loops: dict[str, int]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                self._launch(step, {**self.sizes, **loops})
                continue
            for n in range(step.extent):
                self._run(step.body, {**loops, step.var: n})

    def _size(self, e: Expr | int) -> int:
        known: dict[Var, int] = {v: self.sizes[v.name] for v in self.rendered.sizes}
        return size_of(e, known)

    def _view(self, name: str, groups: int) -> Array:
        """A buffer as the launch sees it: what is written to the view is kept, but for scratch."""
        place = self.places[name]
        dtype = DTYPES[place.dtype].numpy
        if place.role == "scratch":
            return np.zeros((groups, *map(self._size, place.shape)), dtype)
        if place.offset is None:
            return self.arrays[name]
        shape = tuple(map(self._size, place.shape))
        end = place.offset + int(np.prod(shape)) * dtype.itemsize
        return self.arena[place.offset : end].view(dtype).reshape(shape)

    def _launch(self, launch: Launch, scalars: Mapping[str, int]) -> None:
        text = next(s for s in self.rendered.sources if s.name == launch.source)
        assert isinstance(text.detail, KernelText)
        groups = max(1, min(self._size(launch.grid.units), GROUPS))
        views = [self._view(name, groups) for name in launch.buffers]
        scratch = [n for n, b in enumerate(launch.buffers) if self.places[b].role == "scratch"]
        given = list(views)
        if launch.scalars:
            given.append(np.array([scalars[name] for name in launch.scalars], np.int32))
        simdgroups = launch.grid.threads // text.detail.subgroup
        out = self.machine.run(
            text.text,
            text.entry,
            given,
            groups=groups,
            simdgroups=simdgroups,
            undefined=scratch,
            order=self.launches % 5,
        )
        for view, made in zip(views, out, strict=False):
            view[...] = made
        self.launches += 1


class StandInSession(CpuSession):
    """A session whose steps are the target's launches on the stand-in."""

    def __init__(self, front: Front, target: Target, machine: MetalStandIn, context: int) -> None:
        """An empty sequence; nothing is compiled for this CPU."""
        source, lowered = front.source, front.lowered
        sizes = tuple(v.name for v in front.plan.sizes)
        call = Signature((), front.arena.elements, dict.fromkeys(SCRATCH, 0), sizes)
        spec = parse_step(_step(source, lowered, call))
        StepSession.__init__(self, spec, context=context, threads=1)
        self._arrays = self._allocate(*pack_weights(lowered.weights, source.weights))
        rendered = target.render(front.plan, front.arena, front.bounds)
        self._step = StandInStep(machine, rendered, self._arrays)  # type: ignore[assignment]
