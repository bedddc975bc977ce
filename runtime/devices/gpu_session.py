"""A session on a device that is driven by launches: CUDA, ROCm, SYCL, Metal."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.ir.types import DTYPES
from speccc.runtime.devices.gpu_step import (
    BARRIER,
    LATE,
    Code,
    Driver,
    GpuStep,
    Start,
    Strided,
    check_met,
)
from speccc.runtime.devices.launch_plan import LaunchPlan
from speccc.runtime.devices.recorded_steps import RecordedSteps
from speccc.runtime.rows import Splits
from speccc.runtime.session import (
    LANES,
    StepSession,
    StepSpec,
    buffer_shapes,
    results_of,
    rope_tables,
    sizes_of,
)

Array = npt.NDArray[Any]
WORD = np.dtype(np.int64)
"""Of a barrier."""


def largest_sizes(
    spec: StepSpec, tiles: int, context: int, constants: Mapping[str, int]
) -> dict[str, int]:
    """The sizes of a step that asks for most memory; `constants` are those of the weights."""
    return {
        **sizes_of(tiles),
        **constants,
        "m": spec.max_rows,
        "length": context,
        "head_first": 0,
        "head_rows": spec.max_rows,
        "head_logits": 1,
        "head_top": spec.top,
    }


class GpuSession(StepSession):
    """A session whose caches and weights stay on a device; rows go in, picks or logits come out."""

    def __init__(
        self,
        spec: StepSpec,
        driver: Driver,
        plan: LaunchPlan,
        codes: Mapping[str, Code],
        weights: Array,
        vectors: Array,
        *,
        context: int,
        threads: int | None = None,
        splits: Splits | None = None,
    ) -> None:
        """Loads the kernels, allocates everything for `context` tokens and uploads the model.

        `threads` is the most workgroups of a launch.
        """
        groups = min(threads or driver.groups, driver.groups)
        super().__init__(spec, context=context, threads=groups, splits=splits)
        self._constants = {"weight_bytes": weights.size, "vector_elements": vectors.size}
        capacity = largest_sizes(spec, self._tiles, context, self._constants)
        self._shapes = {b.name: shape for b, shape in buffer_shapes(spec, self._tiles).items()}
        self._kinds = {b.name: DTYPES[b.dtype].numpy for b in spec.bufs}
        tables = rope_tables(spec, self._tiles * LANES)
        given = {"weights": weights, "vectors": vectors, **tables}
        self._step = GpuStep(driver, plan, codes, capacity, given, groups)
        self._end = weakref.finalize(self, driver.close)
        self._recorded: RecordedSteps | None = None
        if driver.recorder is not None:
            most = {name: b.nbytes(capacity) for name, b in plan.buffers.items() if not b.window}
            self._recorded = RecordedSteps(driver.recorder, self._step.parts, most)
        self._results: dict[str, Array] = {}

    @property
    def steps(self) -> str:
        """`recorded` where the driver has a recorder, else `launched`."""
        return "launched" if self._recorded is None else "recorded"

    def close(self) -> None:
        """Gives the device back; the session is of no use afterwards."""
        self._end()

    def _execute(self, rows: Mapping[str, Array], sizes: Mapping[str, int]) -> int:
        inputs = {name: values.astype(np.int32) for name, values in rows.items()}
        known = {**sizes, **self._constants}
        starts = self._step.starts(known)
        if self._recorded is not None:
            self._replay(self._recorded, inputs, starts, known)
        else:
            for name, values in inputs.items():
                self._step.write(name, values)
            self._step.launch(starts)
        return len(starts)

    def _replay(
        self,
        recorded: RecordedSteps,
        inputs: Mapping[str, Array],
        starts: Sequence[Start],
        sizes: Mapping[str, int],
    ) -> None:
        """A step with its copies as one recording; what it may be asked for comes along."""
        names = results_of(self.spec, sizes) if sizes["head_rows"] else ()
        shapes = {name: (sizes["head_rows"], *self._shapes[name][1:]) for name in names}
        results = {n: math.prod(s) * self._kinds[n].itemsize for n, s in shapes.items()}
        if BARRIER in self._step.parts:
            results[BARRIER] = (LATE + 1) * WORD.itemsize
        out = recorded.run(inputs, starts, results)
        if BARRIER in out:
            check_met(out[BARRIER].view(WORD))
        self._results = {n: out[n].view(self._kinds[n]).reshape(s) for n, s in shapes.items()}

    def _result(self, name: str, rows: int) -> Array:
        if self._recorded is not None:
            return self._results[name][:rows]
        out = np.empty((rows, *self._shapes[name][1:]), self._kinds[name])
        self._step.read(name, out)
        return out

    def _move(self, source: int, to: int) -> None:
        for moved in self._key_pieces(source, to):
            self._step.copy("k_cache", moved)
        for name in ("v_cache", "k_scale", "v_scale"):
            if name in self._shapes:
                self._step.copy(name, self._slot_pieces(name, source, to))

    def _key_pieces(self, source: int, to: int) -> Iterator[Strided]:
        """K lies in tiles [size, 16 slots]: a slot is a lane of every row of its tile."""
        layers, heads, tiles, size, lanes = self._shapes["k_cache"]
        element = self._kinds["k_cache"].itemsize
        for head in range(layers * heads):
            first, second = (
                element * ((head * tiles + slot // lanes) * size * lanes + slot % lanes)
                for slot in (source, to)
            )
            yield Strided(first, second, element, element * lanes, size)

    def _slot_pieces(self, name: str, source: int, to: int) -> Strided:
        """V and the scales have the slot as axis 3: [.., slots, lanes] or [.., slots]."""
        shape = self._shapes[name]
        piece = math.prod(shape[4:]) * self._kinds[name].itemsize
        return Strided(source * piece, to * piece, piece, shape[3] * piece, math.prod(shape[:3]))
