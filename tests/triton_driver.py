"""Sessions on Triton's interpreter: the launch plan's own session over a driver of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from emulation.triton_interpret import TritonMachine

from speccc.driver import _step
from speccc.emit import Front
from speccc.pack import pack_weights
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import Code, Part, Strided, copy_through_host
from speccc.runtime.devices.launch_plan import read_launch_plan
from speccc.runtime.step_spec import SCRATCH, parse_step
from speccc.targets.cpu.built import Signature
from speccc.targets.launch_plan import document
from speccc.targets.triton.target import TritonTarget
from speccc.targets.triton_build import TritonKernel

Array = npt.NDArray[np.generic]
POINTERS = {
    "*fp32": np.float32,
    "*fp16": np.float16,
    "*u16": np.uint16,
    "*i8": np.int8,
    "*u8": np.uint8,
    "*i32": np.int32,
    "*u32": np.uint32,
    "*i64": np.int64,
}


@dataclass
class InterpretedDriver:
    """A grid of `groups`; memory is files that the interpreter maps."""

    machine: TritonMachine
    kernels: Mapping[str, TritonKernel]
    groups: int = 1
    launched: int = 0
    widest: int = 0
    views: dict[tuple[int, int, str], Array] = field(default_factory=dict)
    recorder: None = None

    def load(self, code: Code) -> TritonKernel:
        """The kernel of an entry."""
        return self.kernels[code.entry]

    def allocate(self, nbytes: int) -> Array:
        """A buffer of zeros."""
        return self.machine.empty((-(-nbytes // 64) * 64,), np.uint8)

    def upload(self, part: Part, data: Array) -> None:
        """Copies bytes in."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        part.memory[part.offset : part.offset + raw.size] = raw

    def download(self, part: Part, into: Array) -> None:
        """Copies bytes out."""
        raw = into.reshape(-1).view(np.uint8)
        raw[...] = part.memory[part.offset : part.offset + raw.size]

    def copy(self, memory: Array, moved: Strided) -> None:
        """Piece by piece."""
        copy_through_host(self, memory, moved)

    def resident(self, kernel: TritonKernel, threads: int) -> int:
        """As many as run at once: one in a machine of one process."""
        return self.groups

    def launch(
        self,
        kernel: TritonKernel,
        groups: int,
        threads: int,
        buffers: Sequence[Part],
        scalars: Sequence[int],
        scalar: str,
    ) -> None:
        """Arguments by position, each of the type that the kernel's signature has."""
        assert groups <= self.groups
        assert scalar == "i64"
        assert threads == 32 * kernel.warps
        names = list(kernel.signature)
        assert len(names) == len(buffers) + len(scalars)
        args: dict[str, Array | int | float | bool] = {}
        args |= zip(names[len(buffers) :], scalars, strict=True)
        for name, part in zip(names[: len(buffers)], buffers, strict=True):
            args[name] = self._view(part, kernel.signature[name])
        self.machine.run(kernel.source, kernel.name, (groups,), args)
        self.launched += 1
        self.widest = max(self.widest, groups)

    def _view(self, part: Part, kind: str) -> Array:
        key = (id(part.memory), part.offset, kind)
        if key not in self.views:
            self.views[key] = self.machine.part(part.memory, part.offset, POINTERS[kind])
        return self.views[key]

    def finish(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """The machine goes on."""


@dataclass(frozen=True)
class InterpretedModel:
    """A model's step as the target makes it, and how to call it."""

    front: Front
    target: TritonTarget
    machine: TritonMachine

    def session(self, context: int = 32, workers: int = 1) -> tuple[GpuSession, InterpretedDriver]:
        """An empty sequence, its steps by so many workers."""
        front = self.front
        rendered = self.target.render(front.plan, front.arena, front.bounds)
        kernels = {s.entry: s.detail for s in rendered.sources}
        driver = InterpretedDriver(self.machine, kernels, workers)  # type: ignore[arg-type]
        sizes = tuple(v.name for v in front.plan.sizes)
        call = Signature((), front.arena.elements, dict.fromkeys(SCRATCH, 0), sizes)
        weights, vectors = pack_weights(front.lowered.weights, front.source.weights)
        session = GpuSession(
            parse_step(_step(front.source, front.lowered, call)),
            driver,
            read_launch_plan(json.loads(json.dumps(document(rendered))), "launch-plan.json"),
            {s.name: Code(s.text.encode(), s.entry) for s in rendered.sources},
            weights,
            vectors,
            context=context,
        )
        return session, driver
