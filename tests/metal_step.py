"""Whole steps for Metal on the stand-in: the real driver and session, over a fake of pyobjc."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from emulation.metal_stand_in import MetalStandIn
from fragment_rig import Array
from gpu_fakes import Host
from metal_fake import FakeMetal
from metal_rig import launched

from speccc.driver import _step
from speccc.emit import Front
from speccc.ir.plan import size_of
from speccc.ir.tile import Buf, Mem
from speccc.pack import pack_weights
from speccc.runtime.devices import drivers, metal
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import Code
from speccc.runtime.devices.launch_plan import read_launch_plan
from speccc.runtime.step_spec import SCRATCH, parse_step
from speccc.targets.base import Target
from speccc.targets.clike.render import KernelText
from speccc.targets.cpu.built import Signature
from speccc.targets.launch_plan import document

WEIGHTS, LARGE = "weights", 1 << 20
GROUPS = 3
"""Threadgroups of a launch, if it has units for them."""


@dataclass
class StandInHost(Host):
    """Memory of a fake; a launch runs a kernel's text on copies of exactly its buffers."""

    machine: MetalStandIn | None = None
    texts: dict[str, KernelText] = field(default_factory=dict)
    """By entry."""
    files: dict[str, Path] = field(default_factory=dict)
    """Buffers that are too large to be handed over at each launch, and never change."""

    def numbers(self, name: str) -> int:
        """How many numbers a kernel takes."""
        return len(self.texts[name].scalars)

    def launch(
        self, name: str, groups: int, threads: int, pointers: Sequence[int], numbers: Sequence[int]
    ) -> None:
        """Scratch must lie in memory; what it holds may not be read before it is written."""
        text = self.texts[name]
        assert threads == text.group.invocations, name
        assert self.machine is not None
        scalars = dict(zip(text.scalars, numbers, strict=True))
        views: dict[Buf, Array] = {}
        for buf, address in zip(text.buffers, pointers, strict=True):
            parts = groups if buf.mem is Mem.SCRATCH else 1
            shape = tuple(size_of(d, scalars) for d in buf.shape)
            memory = self.inside(address, parts * math.prod(shape) * buf.dtype.nbytes)
            if buf.mem is not Mem.SCRATCH:
                views[buf] = memory.view(buf.dtype.numpy).reshape(shape)
        order = len(self.launched) % 5
        for buf, view in views.items():
            if buf.name == WEIGHTS and view.nbytes > LARGE and buf.name not in self.files:
                self.files[buf.name] = self.machine.folder / "weights"
                view.tofile(self.files[buf.name])
        out = launched(
            self.machine, text, views, scalars, groups=groups, order=order, files=self.files
        )
        for buf, view in views.items():
            if out[buf] is not view:
                view[...] = out[buf]
        self.launched.append((name, groups, threads))


class StandInMetal(FakeMetal):
    """A library is its text; a function is known by its name."""

    host: StandInHost

    def newLibraryWithSource_options_error_(self, text: str, options: Any, out: None) -> Any:
        """Knows the texts of the plan, and no others."""
        entry = next(name for name, known in self.host.texts.items() if known.text == text)
        return super().newLibraryWithSource_options_error_(entry, options, out)


@dataclass(frozen=True)
class MetalModel:
    """A model's step as the target makes it, and how to call it."""

    front: Front
    target: Target
    machine: MetalStandIn

    def session(self, monkeypatch: pytest.MonkeyPatch, context: int = 64) -> GpuSession:
        """An empty sequence on the driver that `open_driver` finds."""
        front = self.front
        rendered = self.target.render(front.plan, front.arena, front.bounds)
        texts = {s.entry: s.detail for s in rendered.sources if isinstance(s.detail, KernelText)}
        fake = StandInMetal(StandInHost({}, machine=self.machine, texts=texts))
        monkeypatch.setitem(sys.modules, "Metal", fake)
        monkeypatch.setitem(sys.modules, "objc", fake.objc)
        monkeypatch.setattr(metal, "GROUPS", GROUPS)
        sizes = tuple(v.name for v in front.plan.sizes)
        call = Signature((), front.arena.elements, dict.fromkeys(SCRATCH, 0), sizes)
        plan = json.loads(json.dumps(document(rendered)))
        weights, vectors = pack_weights(front.lowered.weights, front.source.weights)
        return GpuSession(
            parse_step(_step(front.source, front.lowered, call)),
            drivers.open_driver("metal"),
            read_launch_plan(plan, "launch-plan.json"),
            {s.name: Code(s.text.encode(), s.entry) for s in rendered.sources},
            weights,
            vectors,
            context=context,
        )
