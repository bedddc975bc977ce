"""A plan -> the entries of an artifact for a GPU: texts, built code, and the plan of launches.

Devices count workgroups where a CPU counts threads: a session says how many a launch may have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.plan import Plan, size_of
from speccc.ir.types import DTYPES
from speccc.kernel_cache import open_kernel_cache
from speccc.memory_plan import check_fits
from speccc.passes.plan_memory import Arena
from speccc.runtime.cores import cores
from speccc.runtime.devices.built_kernels import FOLDER, Files, read_plan, sealed_code
from speccc.runtime.devices.drivers import binary_ending
from speccc.runtime.devices.launch_plan import FILE
from speccc.runtime.devices.open_session import DeviceSession
from speccc.runtime.devices.open_session import open_session as open_on_device
from speccc.runtime.rows import Splits
from speccc.runtime.session import StepSpec
from speccc.runtime.step_spec import SCRATCH as SCRATCH_TYPES
from speccc.targets.base import Place, RenderedPlan, Source, Step, Target, ToolMissingError
from speccc.targets.build_error import BuildError
from speccc.targets.cpu.built import Signature
from speccc.targets.cpu.object_store import ObjectStore
from speccc.targets.launch_plan import SCRATCH, document
from speccc.verify_cost import VerifyTable, measure

Array = npt.NDArray[Any]
HOST_DEVICES = ("llvmpipe", "opencl:cpu")
"""Devices that are the CPU: their memory is the host's."""
FLOAT_BYTES = 4
BINARY = ("spv", "cubin", "hsaco", "metallib", "xe.bin")


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A built step: how to call it, and the entries that hold it."""

    backend: str
    signature: Signature
    entries: Mapping[str, bytes]

    @property
    def texts(self) -> dict[str, str]:
        """What a person may read of it, by file name."""
        texts = {n: d for n, d in self.entries.items() if not n.endswith(BINARY)}
        return {n.rpartition("/")[2]: d.decode() for n, d in texts.items()}

    @property
    def library(self) -> bytes:
        """What the manifest's seal binds: see `sealed_code`."""
        return sealed_code(self.entries, self.backend)


def build_device_step(
    device: Target,
    plan: Plan,
    arena: Arena,
    bounds: Mapping[Var, int],
    tell: Callable[[str, int, int], None],
) -> DeviceStep:
    """The step for a device. UnsupportedError for what the target or its tools cannot."""
    reason = device.unsupported(plan)
    if reason is not None:
        raise UnsupportedError(f"--target {device.name}: {reason}")
    backend = device.profile.backend
    rendered, store = device.render(plan, arena, bounds), open_kernel_cache()
    entries: dict[str, bytes] = {}
    for n, source in enumerate(rendered.sources):
        tell("build", n, len(rendered.sources))
        entries[f"{FOLDER}/{source.name}.{source.ext}"] = source.text.encode()
        for ext, code in _stages(device, source, binary_ending(backend), store).items():
            entries[f"{FOLDER}/{source.name}.{ext}"] = code
    entries[FILE] = json.dumps(document(rendered), indent=1).encode()
    signature = Signature(
        bufs=(),
        arena=arena.elements,
        scratch={**dict.fromkeys(SCRATCH_TYPES, 0), "f32": _scratch(rendered, bounds)},
        sizes=tuple(v.name for v in rendered.sizes),
    )
    return DeviceStep(backend, signature, entries)


def _stages(device: Target, source: Source, needed: str, store: ObjectStore) -> dict[str, bytes]:
    """All that can be built of a source here; only without the file `needed` is it an error.

    The others are to be read: `emit` says what keeps a compiler from making one.
    """
    built: dict[str, bytes] = {}
    for ext, step in device.stages().items():
        try:
            built[ext] = _built(device, source, ext, step, store)
        except (BuildError, ToolMissingError):
            if ext == needed:
                raise
    return built


def _built(device: Target, source: Source, ext: str, step: Step, store: ObjectStore) -> bytes:
    """One stage, from the kernel cache when it was built before."""
    facts = f"{device.fingerprint()} {ext} {source.text}"
    key = hashlib.sha256(facts.encode()).hexdigest()
    kept = store.get(key)
    if kept is None:
        kept = step(source)
        store.put(key, kept)
    return kept


def open_session(
    spec: StepSpec,
    backend: str,
    entries: Files,
    weights: Array,
    vectors: Array,
    *,
    context: int,
    threads: int | None = None,
    splits: Splits | None = None,
    where: str = "",
) -> DeviceSession:
    """A session of an artifact's step on the device here; its errors are those of the session."""
    if read_plan(entries, where).needs.device in HOST_DEVICES:
        check_fits(spec, weights.nbytes + vectors.nbytes, context, threads or cores())
    return open_on_device(
        backend, spec, entries, weights, vectors,
        context=context, threads=threads, splits=splits, where=where,
    )  # fmt: skip


def measured_here(
    device: Target,
    spec: StepSpec,
    entries: Files,
    weights: Array,
    vectors: Array,
    room: int,
) -> VerifyTable | None:
    """T(m) on the device here; None where there is none, or another than was compiled for.

    A software device is not measured: it is there to try things, and takes a minute for it.
    """
    if read_plan(entries, "").needs.device in HOST_DEVICES:
        return None
    try:
        session = open_session(
            spec, device.profile.backend, entries, weights, vectors, context=room
        )
    except UnsupportedError:
        return None
    try:
        return measure(session, room)
    finally:
        session.close()


def _scratch(rendered: RenderedPlan, bounds: Mapping[Var, int]) -> int:
    """f32 elements of scratch that a worker needs: those of the kernel that needs most."""
    parts: dict[str, int] = {}
    for place in rendered.places:
        if place.role == SCRATCH:
            kernel = place.name.rpartition(".")[0]
            parts[kernel] = parts.get(kernel, 0) + _padded(_each(place, bounds))
    return max(parts.values(), default=0) // FLOAT_BYTES


def _padded(n: int, align: int = 256) -> int:
    return -(-n // align) * align


def _each(place: Place, bounds: Mapping[Var, int]) -> int:
    """Bytes of a workgroup's part of a scratch buffer."""
    sides = [d if isinstance(d, int) else size_of(d, bounds) for d in place.shape]
    return int(np.prod(sides, dtype=np.int64)) * DTYPES[place.dtype].nbytes
