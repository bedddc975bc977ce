"""A whole model on Intel's CPU device: the target's texts, built, behind the real driver."""

from __future__ import annotations

import json
import os
from pathlib import Path

from emulation.sycl_cpu import find_driver
from emulation.sycl_kernel import built
from speccc.driver import _step
from speccc.emit import EmitOptions, Front, read_model
from speccc.pack import pack_weights
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import Code
from speccc.runtime.devices.launch_plan import read_launch_plan
from speccc.runtime.devices.sycl import SyclDriver
from speccc.runtime.step_spec import SCRATCH, parse_step
from speccc.targets.base import Target
from speccc.targets.cpu.built import Signature
from speccc.targets.launch_plan import document

CPU_DEVICE = "opencl:cpu"


class SyclModel:
    """The kernels of a model's step in their portable form; a session is an empty sequence."""

    def __init__(self, path: Path, target: Target, **options: str) -> None:
        """Renders and builds the step of a model file."""
        # Read by Intel's loader when the first queue of this process is made.
        os.environ.setdefault("OCL_ICD_FILENAMES", str(find_driver()))
        self.front: Front = read_model(path, EmitOptions(**options), lambda *_: None, target.name)
        plan, arena, bounds = self.front.plan, self.front.arena, self.front.bounds
        rendered = target.render(plan, arena, bounds)
        self.codes = {s.name: Code(built(s.text, s.name), s.entry) for s in rendered.sources}
        self.launches = json.loads(json.dumps(document(rendered)))

    def session(self, context: int = 64) -> GpuSession:
        """A session on the CPU device."""
        front = self.front
        sizes = tuple(v.name for v in front.plan.sizes)
        call = Signature((), front.arena.elements, dict.fromkeys(SCRATCH, 0), sizes)
        weights, vectors = pack_weights(front.lowered.weights, front.source.weights)
        return GpuSession(
            parse_step(_step(front.source, front.lowered, call)),
            SyclDriver(CPU_DEVICE),
            read_launch_plan(self.launches, "launch-plan.json"),
            self.codes,
            weights,
            vectors,
            context=context,
        )
