"""A session on a Vulkan device: the step is recorded once and replayed with other sizes."""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, UnsupportedError
from speccc.ir.types import DTYPES
from speccc.runtime.cores import cores
from speccc.runtime.devices.gpu_session import largest_sizes
from speccc.runtime.devices.gpu_step import Code
from speccc.runtime.devices.launch_plan import SCRATCH, WHOLE, Launch, LaunchPlan, Needs
from speccc.runtime.devices.vulkan_worker import (
    Copies,
    DeviceInfo,
    Dispatch,
    Span,
    VulkanWorker,
    WorkerError,
)
from speccc.runtime.rows import Splits
from speccc.runtime.session import (
    LANES,
    StepSession,
    StepSpec,
    buffer_shapes,
    results_of,
    rope_tables,
)
from speccc.vulkan_home import need_vulkan

Array = npt.NDArray[Any]
BYTES, HALVES = ("s8", "s8", "s32"), ("f16", "f16", "f32")
"""Operands and sums of matrix instructions, as a device lists them."""
MOST_ELEMENTS = 2**31 - 1
"""Kernels count elements with 32-bit integers; the weights are counted in bytes."""
PART = 1 << 24
"""Bytes of one upload."""
WORKERS = 256
"""Workgroups of a launch where nobody knows the device's number of units."""
STEP_S = 120.0
"""A request that takes longer has hung."""
MOST_RECORDED = 16
"""Recordings by which launches have work: a long context, a head, the largest logits, .."""
ARENA, SIZES = "arena", "sizes"
"""With the scratch, the buffers that are no parameters of the step."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The worker's number of a recorded step, and how many launches it has."""

    number: int
    launches: int


class VulkanSession(StepSession):
    """A session in a worker process with one device; a hang or a crash of it is a WorkerError."""

    def __init__(
        self,
        spec: StepSpec,
        plan: LaunchPlan,
        codes: Mapping[str, Code],
        weights: Array,
        vectors: Array,
        *,
        context: int,
        threads: int | None = None,
        splits: Splits | None = None,
        hidden: bool = False,
    ) -> None:
        """Opens the device and uploads the model. `threads` is the most workgroups of a launch.

        `hidden` keeps all buffers where the host does not see them. UnsupportedError when the
        device is not what the step was compiled for, InputError when the context is too long.
        """
        worker = VulkanWorker(need_vulkan(), timeout_s=STEP_S, device=plan.needs.device)
        self._end = weakref.finalize(self, worker.close)
        self._worker = worker
        info = worker.query()
        _check_device(plan.needs, info)
        workers = threads or (cores() if info.is_cpu else plan.needs.workers or WORKERS)
        super().__init__(spec, context=context, threads=workers, splits=splits)
        self.device, self.plan = info, plan
        constants = {"weight_bytes": weights.size, "vector_elements": vectors.size}
        self._largest = largest_sizes(spec, self._tiles, context, constants)
        self._results: dict[str, Array] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._kinds = {b.name: DTYPES[b.dtype].numpy for b in spec.bufs}
        self._launches = plan.launches()
        self._scratch = {s: plan.scratch(s, workers, self._largest) for s in self._launches}
        self._spans = self._make_buffers(weights, vectors, hidden)
        self._upload({"weights": weights, "vectors": vectors})
        self._upload(rope_tables(spec, self._tiles * LANES))
        self._order = list(self._bind(codes))
        self._recorded: dict[tuple[bool, ...], Recorded] = {}

    @property
    def steps(self) -> str:
        """`recorded`, by the worker."""
        return "recorded"

    @property
    def _windowed(self) -> bool:
        """Whether kernels see parts of the weights."""
        return any(b.window is not None for b in self.plan.buffers.values())

    def close(self) -> None:
        """Ends the worker; the session is of no use afterwards."""
        self._end()

    def _make_buffers(self, weights: Array, vectors: Array, hidden: bool) -> dict[str, Span]:
        constants = {"weights": weights.shape, "vectors": vectors.shape}
        out: dict[str, Span] = {}
        for buf, shape in buffer_shapes(self.spec, self._tiles).items():
            self._shapes[buf.name] = constants.get(buf.name, shape)
            count = math.prod(self._shapes[buf.name])
            if count > MOST_ELEMENTS and not (buf.name == WHOLE and self._windowed):
                raise InputError(
                    f"{buf.name} has {count} elements, kernels count to {MOST_ELEMENTS}: "
                    "give a shorter context (-c) or a smaller model"
                )
            out[buf.name] = self._buffer(buf.name, count * DTYPES[buf.dtype].nbytes, hidden)
        others = {
            ARENA: self.plan.arena,
            SCRATCH: max((end for _, end in self._scratch.values()), default=0),
            SIZES: 4 * len(self.plan.sizes),
        }
        return {**out, **{name: self._buffer(name, size, hidden) for name, size in others.items()}}

    def _buffer(self, name: str, size: int, hidden: bool) -> Span:
        size, most = max(size, 4), self.device.buffer_bytes
        if size > most:
            raise InputError(
                f"{name} takes {size} bytes, a buffer of {self.device.name} {most}: "
                "give a shorter context (-c), a smaller model or a smaller format (--weights)"
            )
        return Span(self._worker.buffer(size, hidden=hidden), 0, size)

    def _upload(self, arrays: Mapping[str, Array]) -> None:
        for name, array in arrays.items():
            raw, span = array.reshape(-1).view(np.uint8), self._spans[name]
            for at in range(0, raw.size, PART):
                part = raw[at : at + PART].tobytes()
                self._worker.step([(Span(span.buffer, at, len(part)), part)], [])

    def _kernel(
        self, launch: Launch, windows: Mapping[str, int], code: Code, *, pushed: bool
    ) -> int:
        places = [self._bound(launch, name, windows) for name in launch.buffers]
        try:
            return self._worker.kernel(
                code.binary,
                [*places, self._spans[SIZES]],
                uniforms=1,
                push=pushed,
                subgroup=self.plan.needs.subgroup,
            )
        except WorkerError as error:
            device = self.device.name
            raise WorkerError(
                f"kernel {launch.kernel}: {error}: is it compiled for this device, {device}? "
                "(--target)"
            ) from None

    def _bound(self, launch: Launch, name: str, windows: Mapping[str, int]) -> Span:
        b = self.plan.buffers[name]
        if name in windows:
            return Span(self._spans[WHOLE].buffer, windows[name], b.nbytes(self._largest))
        if b.role == SCRATCH:
            whole, at = self._spans[SCRATCH], self._scratch[launch][0][name]
        elif b.offset is not None:
            whole, at = self._spans[ARENA], b.offset
        else:
            return self._spans[name]
        return Span(whole.buffer, at, whole.size - at)

    def _bind(self, codes: Mapping[str, Code]) -> Iterator[tuple[int, Dispatch]]:
        """Every launch with its number in the plan; a loop's round is pushed."""
        kernels: dict[tuple[int, tuple[int, ...]], int] = {}
        for number, launch, rounds in self.plan.turns():
            if len(rounds) > 1:
                raise InputError("the launch plan has a loop within a loop")
            windows = self.plan.windows(launch, {**self._largest, **rounds})
            key = number, tuple(windows.values())
            if key not in kernels:
                pushed = not set(launch.scalars) <= set(self.plan.sizes)
                code = codes[launch.kernel]
                kernels[key] = self._kernel(launch, windows, code, pushed=pushed)
            groups = self.threads if launch.fixed is None else launch.fixed
            push = next(iter(rounds.values()), 0)
            yield number, (kernels[key], max(1, min(self.threads, groups)), push)

    def _recording(self, sizes: Mapping[str, int]) -> Recorded:
        """That of the launches with work; of all, which does the same, where there are too many."""
        busy = tuple(launch.most(sizes) > 0 for launch in self._launches)
        if busy not in self._recorded and len(self._recorded) >= MOST_RECORDED:
            busy = (True,) * len(busy)
        if busy not in self._recorded:
            launches = [dispatch for number, dispatch in self._order if busy[number]]
            self._recorded[busy] = Recorded(self._worker.record(launches), len(launches))
        return self._recorded[busy]

    def _execute(self, rows: Mapping[str, Array], sizes: Mapping[str, int]) -> int:
        constants = {
            "weight_bytes": self._shapes["weights"][0],
            "vector_elements": self._shapes["vectors"][0],
        }
        known = {**sizes, **constants}
        numbers = (min(known[name], MOST_ELEMENTS) for name in self.plan.sizes)
        given = struct.pack(f"<{len(self.plan.sizes)}i", *numbers)
        writes = [self._given(SIZES, given)]
        writes += [self._given(n, v.astype(np.int32).tobytes()) for n, v in rows.items()]
        names = results_of(self.spec, sizes)
        shapes = {name: (sizes["head_rows"], *self._shapes[name][1:]) for name in names}
        wanted = [Span(self._spans[n].buffer, 0, 4 * math.prod(s)) for n, s in shapes.items()]
        recorded = self._recording(known)
        found = self._worker.step(writes, wanted, run=recorded.number)
        self._results = {
            name: np.frombuffer(raw, self._kinds[name]).reshape(shapes[name])
            for name, raw in zip(names, found, strict=True)
        }
        return recorded.launches

    def _given(self, name: str, data: bytes) -> tuple[Span, bytes]:
        return Span(self._spans[name].buffer, 0, len(data)), data

    def _result(self, name: str, rows: int) -> Array:
        return self._results[name][:rows]

    def _move(self, source: int, to: int) -> None:
        copies = list(self._key_copies(source, to))
        for name in ("v_cache", "k_scale", "v_scale"):
            if name in self._shapes:
                copies.append(self._slot_copies(name, source, to))
        self._worker.copy(copies)

    def _key_copies(self, source: int, to: int) -> Iterator[Copies]:
        """K lies in tiles of 16 slots: a slot is a lane of each of a tile's rows."""
        layers, heads, tiles, size, lanes = self._shapes["k_cache"]
        element = self._kinds["k_cache"].itemsize
        for head in range(layers * heads):
            first, second = (
                ((head * tiles + slot // lanes) * size * lanes + slot % lanes) * element
                for slot in (source, to)
            )
            buffer = self._spans["k_cache"].buffer
            yield Copies(buffer, first, second, element, lanes * element, size)

    def _slot_copies(self, name: str, source: int, to: int) -> Copies:
        """V and the scales have the slot as an axis: [.., slots, lanes] or [.., slots]."""
        shape, at = self._shapes[name], 3
        part = math.prod(shape[at + 1 :]) * self._kinds[name].itemsize
        buffer, count = self._spans[name].buffer, math.prod(shape[:at])
        return Copies(buffer, source * part, to * part, part, shape[at] * part, count)


def _check_device(needs: Needs, info: DeviceInfo) -> None:
    """UnsupportedError when the kernels need what the device lacks."""
    if needs.subgroup and not info.min_subgroup <= needs.subgroup <= info.max_subgroup:
        raise UnsupportedError(
            f"is compiled for subgroups of {needs.subgroup}, which {info.name} lacks: "
            "compile the model for this device (--target)"
        )
    known = {(s.a, s.b, s.c, s.m, s.n, s.k) for s in info.shapes}
    for types, sides in ((BYTES, needs.matrix), (HALVES, needs.halves)):
        if sides is not None and (*types, *sides) not in known:
            shown = f"{'x'.join(map(str, sides))} of {types[0]}"
            raise UnsupportedError(
                f"is compiled for matrices of {shown}, which {info.name} lacks: "
                "compile the model for this device (--target)"
            )
