"""What the tests of compiled code share: models compiled once, kernels built and run on arrays."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from built_once import shared
from models import LINEAR_SCALING, LLAMA3_SCALING, Tiny, tiny_llama, tiny_llama_hf

import speccc
from speccc import device_step, driver
from speccc.api import Model
from speccc.driver import CompileOptions, compile_to
from speccc.errors import InputError
from speccc.ir.expr import Var
from speccc.ir.plan import Plan, PlanBuf, Role, phases, run_plan
from speccc.ir.schedule import Schedule, Schedules
from speccc.ir.tile import Buf, Kernel
from speccc.models import smollm2
from speccc.passes.plan_memory import PlanMemory
from speccc.runtime.aligned import aligned
from speccc.runtime.devices.cpu import CpuStep
from speccc.targets.cpu.built import Signature
from speccc.targets.cpu.isa import ISAS, Isa, detect, runs_here
from speccc.targets.cpu.space import schedule_of, space
from speccc.targets.cpu.target import UNTUNED, CpuTarget

Array = npt.NDArray[Any]
Arrays = Mapping[Buf, Array]
AVX512_AS_VNNI = replace(
    ISAS["avxvnni"],
    attrs=("+avx512vl", "+avx512vnni"),
    flags=frozenset({"avx512vl", "avx512_vnni"}),
)
"""The same instructions as AVX-VNNI in AVX-512's encoding: its rule runs where only that is."""
HERE = tuple(
    isa if runs_here(isa) else AVX512_AS_VNNI
    for isa in ISAS.values()
    if runs_here(isa) or (isa.name == "avxvnni" and runs_here(AVX512_AS_VNNI))
)
"""Every instruction set this machine can execute."""

ROPES = {"none": None, "linear": LINEAR_SCALING, "llama3": LLAMA3_SCALING}


@dataclass(frozen=True)
class Spec:
    """A tiny model to compile: its shape, the format of its matrices, its cache, its file."""

    tiny: Tiny
    fmt: str = "f32"
    kv: str = "f16"
    rope: str = "none"
    kind: str = "gguf"
    isa: str = "auto"
    activations: str = "int8"
    attention: str = "f32"


def model_file(spec: Spec, folder: Path) -> Path:
    """Writes the model a spec describes."""
    tiny = replace(spec.tiny, rope_scaling=ROPES[spec.rope])
    if spec.kind == "gguf":
        return tiny_llama(folder, fmt=spec.fmt, tiny=tiny)
    return tiny_llama_hf(folder, dtype=spec.fmt, model_type=spec.kind, tiny=tiny)


@functools.cache
def compiled(spec: Spec) -> Model:
    """The compiled model, one compilation a process."""
    with tempfile.TemporaryDirectory(prefix="speccc-") as folder:
        classes = {"activations": spec.activations, "attention": spec.attention}
        options = {"kv": spec.kv, "isa": spec.isa, **classes}
        return unmeasured(model_file(spec, Path(folder)), **options)


def unmeasured(path: Path, **options: str) -> Model:
    """Compiles without timing T(m): how far to draft must not depend on how busy the machine is.

    What is built is built once in all processes of a run.
    """
    with (
        tempfile.TemporaryDirectory(prefix="speccc-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for builder in (driver, device_step):
            patch.setattr(builder, "open_kernel_cache", shared)
        artifact = Path(folder) / "m.speccc"
        compile_to(path, artifact, CompileOptions(**options, measure=False))
        return speccc.load(artifact)


def smollm2_file() -> Path:
    """SmolLM2's file; skips the test where it is not at hand, but not in CI."""
    try:
        return smollm2(fetch=bool(os.environ.get("CI")))
    except InputError as error:
        pytest.skip(str(error))


@functools.cache
def compiled_smollm2() -> Model:
    """SmolLM2, compiled once a process."""
    return unmeasured(smollm2_file())


def single(kernels: Sequence[Kernel], activations: Sequence[Buf] = ()) -> Plan:
    """A plan of these kernels; buffers that are no activations belong to the caller."""
    bufs = dict.fromkeys(b for k in kernels for b in k.bufs)
    sizes = dict.fromkeys(v for k in kernels for v in k.scalars)
    roles = [PlanBuf(b, Role.ACTIVATION if b in activations else Role.STATE) for b in bufs]
    return Plan("step", tuple(sizes), tuple(roles), tuple(kernels))


@dataclass(frozen=True)
class Built:
    """A plan as machine code of one instruction set."""

    plan: Plan
    library: Array
    signature: Signature

    def run(self, arrays: Arrays, sizes: Mapping[Var, int], workers: int = 1) -> dict[Buf, Array]:
        """Runs on copies of the arrays and returns them."""
        own = {b: aligned(a.shape, a.dtype) for b, a in arrays.items()}
        for b, a in arrays.items():
            own[b][...] = a
        external = [b.buf for b in self.plan.bufs if b.role is not Role.ACTIVATION]
        sig = self.signature
        given = [own[b] for b in external] + [aligned((sig.arena,), np.float32)]
        kinds = {"f32": np.float32, "i8": np.int8, "i32": np.int32}
        given += [aligned((workers * n,), kinds[t]) for t, n in sig.scratch.items()]
        by_name = {v.name: n for v, n in sizes.items()}
        CpuStep(self.library, self.plan.name, given)([by_name[n] for n in sig.sizes], workers)
        return own


def build(
    plan: Plan,
    bounds: Mapping[Var, int],
    isa: Isa | None = None,
    schedules: Schedules = UNTUNED,
) -> Built:
    """Compiles a plan for an instruction set, the best one here by default."""
    target = CpuTarget(isa or detect())
    arena = PlanMemory(bounds).run(plan)
    made = target.compile(plan, arena, bounds, schedules, shared())
    return Built(plan, np.frombuffer(made.library, np.uint8), made.signature)


def random_schedules(plan: Plan, isa: Isa, seed: int) -> dict[str, Schedule]:
    """A schedule for each kernel, drawn from what a tuner may choose."""
    rng = Random(seed)
    return {k.name: schedule_of(space(k, isa).sample(rng)) for k in phases(plan.body)}


def golden(plan: Plan, arrays: Arrays, sizes: Mapping[Var, int], workers: int = 1) -> Arrays:
    """The NumPy machine on copies of the arrays."""
    own = {b: a.copy() for b, a in arrays.items()}
    run_plan(plan, own, sizes, workers=workers)
    return own


def same_bits(a: Array, b: Array) -> bool:
    """Bitwise equality; the sign of zero and the payload of a NaN count."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()
