"""A plan -> the entries of an artifact for a device of recorded steps: texts, code, launches.

Devices count workgroups where a CPU counts threads: a session says how many a launch may have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from speccc.errors import UnsupportedError
from speccc.ir.expr import Expr, Var
from speccc.ir.plan import Plan, size_of
from speccc.ir.types import DTYPES
from speccc.kernel_cache import open_kernel_cache
from speccc.memory_plan import check_fits
from speccc.passes.plan_memory import Arena
from speccc.runtime.cores import cores
from speccc.runtime.devices.vulkan_home import find_vulkan, need_vulkan
from speccc.runtime.devices.vulkan_launches import (
    ARENA,
    FILE,
    FOLDER,
    SCRATCH,
    SOFTWARE_DEVICE,
    code_entries,
    read_launches,
    scratch_bytes,
    sealed_code,
)
from speccc.runtime.devices.vulkan_session import Array, VulkanSession
from speccc.runtime.devices.vulkan_worker import VulkanWorker
from speccc.runtime.rows import Splits
from speccc.runtime.session import StepSpec
from speccc.runtime.step_spec import SCRATCH as SCRATCH_TYPES
from speccc.targets.base import Launch, LaunchLoop, Place, RenderedPlan, Source
from speccc.targets.cpu.built import Signature
from speccc.targets.devices import profile, profile_names
from speccc.targets.registry import target
from speccc.targets.vulkan.target import VulkanTarget
from speccc.verify_cost import VerifyTable, measure

WEIGHTS_MOST = 2**31 - 1
"""Kernels find a byte of the weights by a signed 32-bit number."""
WORKERS = 256
"""Workgroups of a launch on a GPU whose number of units no profile knows."""
SOFTWARE = "lavapipe"
"""The profile of Mesa's CPU device."""
ANY = "vulkan:any"
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A built step: how to call it, and the entries that hold it."""

    signature: Signature
    entries: Mapping[str, bytes]

    @property
    def texts(self) -> dict[str, str]:
        """What a person may read of it, by file name."""
        texts = {n: d for n, d in self.entries.items() if not n.endswith(".spv")}
        return {n.rpartition("/")[2]: d.decode() for n, d in texts.items()}

    @property
    def library(self) -> bytes:
        """What the manifest's seal binds: see `sealed_code`."""
        return sealed_code(self.entries)


def device_target(name: str) -> VulkanTarget:
    """The target of a name; "vulkan" alone is the best device here.

    UnsupportedError names what is close or what there is.
    """
    found = target(_device_here() if name == "vulkan" else name)
    if not isinstance(found, VulkanTarget):
        raise UnsupportedError(f"--target {name}: this version does not run it")
    return found


def _device_here() -> str:
    """The name of the profile whose product the device is, as both call it."""
    with VulkanWorker(need_vulkan()) as worker:
        info = worker.query()
    return profile_of_device(info.name, is_cpu=info.is_cpu)


def profile_of_device(device: str, *, is_cpu: bool) -> str:
    """The Vulkan target for a device's own name: of its product, else of any device."""
    if is_cpu:
        return f"vulkan:{SOFTWARE}"
    named = {n: profile(n).device for n in profile_names() if n.startswith("vulkan:")}
    titles = {
        n: title
        for n, product in named.items()
        if product is not None
        for title in product.title.split(", ")
        if title in device
    }
    # "Radeon RX 9070" is a part of "Radeon RX 9070 XT".
    return max(titles, key=lambda n: len(titles[n]), default=ANY)


def build_device_step(
    device: VulkanTarget,
    plan: Plan,
    arena: Arena,
    bounds: Mapping[Var, int],
    weight_bytes: int,
    tell: Callable[[str, int, int], None],
) -> DeviceStep:
    """The step for a Vulkan device. UnsupportedError for what the target or its tools cannot."""
    if weight_bytes > WEIGHTS_MOST:
        raise UnsupportedError(
            f"--target {device.name}: the weights are {weight_bytes} bytes, it reaches "
            f"{WEIGHTS_MOST}: use a smaller format or --target cpu"
        )
    reason = device.unsupported(plan)
    if reason is not None:
        raise UnsupportedError(f"--target {device.name}: {reason}")
    rendered = device.render(plan, arena, bounds)
    entries: dict[str, bytes] = {}
    for n, source in enumerate(rendered.sources):
        tell("build", n, len(rendered.sources))
        entries[f"{FOLDER}/{source.name}.{source.ext}"] = source.text.encode()
        entries[f"{FOLDER}/{source.name}.spv"] = _code(device, source)
    document = _document(device, rendered, bounds)
    entries[FILE] = json.dumps(document, indent=1).encode()
    signature = Signature(
        bufs=(),
        arena=arena.elements,
        scratch={**dict.fromkeys(SCRATCH_TYPES, 0), "f32": _scratch(rendered, bounds)},
        sizes=tuple(v.name for v in rendered.sizes),
    )
    return DeviceStep(signature, entries)


def open_session(
    spec: StepSpec,
    entries: Mapping[str, Any],
    weights: Array,
    vectors: Array,
    *,
    context: int,
    threads: int | None = None,
    splits: Splits | None = None,
    where: str = "",
) -> VulkanSession:
    """A session of an artifact's step on the device here; its errors are those of the session."""
    launches = read_launches(entries, where)
    if launches.device == SOFTWARE_DEVICE:
        check_fits(spec, weights.nbytes + vectors.nbytes, context, threads or cores())
    code = [bytes(entries[name]) for name in code_entries(launches)]
    return VulkanSession(
        spec, launches, code, weights, vectors, context=context, threads=threads, splits=splits
    )


def measured_here(
    device: VulkanTarget,
    spec: StepSpec,
    entries: Mapping[str, Any],
    weights: Array,
    vectors: Array,
    room: int,
) -> VerifyTable | None:
    """T(m) on the device here; None where there is none, or another than was compiled for.

    A software device is not measured: it is there to try things, and takes a minute for it.
    """
    if device.software or find_vulkan() is None:
        return None
    try:
        session = open_session(spec, entries, weights, vectors, context=room)
    except UnsupportedError:
        return None
    try:
        return measure(session, room)
    finally:
        session.close()


def _code(device: VulkanTarget, source: Source) -> bytes:
    """SPIR-V of a text, from the kernel cache when it was built before."""
    store = open_kernel_cache()
    facts = f"{device.fingerprint()} {source.text}"
    key = hashlib.sha256(facts.encode()).hexdigest()
    kept = store.get(key)
    if kept is None:
        kept = device.stages()["spv"](source)
        store.put(key, kept)
    return kept


def _document(
    device: VulkanTarget, rendered: RenderedPlan, bounds: Mapping[Var, int]
) -> dict[str, Any]:
    """What `parse_launches` reads."""
    places = {p.name: p for p in rendered.places}
    kernels: dict[str, dict[str, Any]] = {}
    order: list[dict[str, Any]] = []
    # Only matrices care how large a subgroup is; 0 leaves that to the driver.
    subgroup = device.lowering.subgroup if device.shape is not None else 0
    fixed = {v.name for v in rendered.sizes}
    for step in rendered.launches:
        launches, count = (step.body, step.extent) if isinstance(step, LaunchLoop) else ((step,), 1)
        numbers = []
        for launch in launches:
            if not isinstance(launch, Launch):
                raise UnsupportedError(f"--target {device.name}: a loop within a loop")
            numbers.append(len(kernels))
            units = launch.grid.units
            kernels[launch.source] = {
                "name": launch.source,
                "subgroup": subgroup,
                "most": units if isinstance(units, int) else None,
                "bindings": [_binding(places[n], bounds) for n in launch.buffers],
                "pushed": not set(launch.scalars) <= fixed,
            }
        order.append({"count": count, "kernels": numbers})
    shape, product = device.shape, device.profile.device
    known = product.units if product is not None else None
    return {
        "device": SOFTWARE_DEVICE if device.software else "",
        "matrix": None if shape is None else [shape.m, shape.n, shape.k],
        "workers": 4 * known.value if known is not None else WORKERS,
        "kernels": list(kernels.values()),
        "order": order,
    }


def _binding(place: Place, bounds: Mapping[Var, int]) -> dict[str, Any]:
    if place.role == SCRATCH:
        return {"buffer": SCRATCH, "each": _each(place, bounds)}
    if place.offset is not None:
        return {"buffer": ARENA, "offset": place.offset}
    return {"buffer": place.name}


def _each(place: Place, bounds: Mapping[Var, int]) -> int:
    """Bytes of a workgroup's part of a scratch buffer."""
    sides = [d if isinstance(d, int) else _size(d, bounds) for d in place.shape]
    return int(np.prod(sides, dtype=np.int64)) * DTYPES[place.dtype].nbytes


def _size(d: Expr, bounds: Mapping[Var, int]) -> int:
    return size_of(d, bounds)


def _scratch(rendered: RenderedPlan, bounds: Mapping[Var, int]) -> int:
    """f32 elements of scratch that a worker needs: those of the kernel that needs most."""
    parts: dict[str, list[int]] = {}
    for place in rendered.places:
        if place.role == SCRATCH:
            parts.setdefault(place.name.rpartition(".")[0], []).append(_each(place, bounds))
    return max((scratch_bytes(p) for p in parts.values()), default=0) // FLOAT_BYTES
