"""Whole steps as one persistent Triton kernel, under the interpreter: golden bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import test_numerics
from cpu_rig import Spec, golden, same_bits, single
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from models import Tiny
from test_numerics import PlanSession, tokens_of
from triton_rig import Array, Stepper, rendered, stepped

from speccc.ir.expr import Var
from speccc.ir.plan import Loop, Plan, Role, run_plan
from speccc.ir.tile import Buf, Kernel
from speccc.runtime.rows import chain
from speccc.targets.triton.schedule import Fp4, Shape
from speccc.targets.triton.step import LATE, SPINS

SMALL = Tiny(seed=7, hidden=32, heads=2, kv_heads=1, ffn=64)
# Every format of a matrix and of the cache, tied and untied heads, a loop over two layers or none.
SPECS = {
    "q4_0, kv f16": Spec(SMALL, "q4_0"),
    "q4_1, kv i8": Spec(
        Tiny(seed=2, hidden=64, heads=4, kv_heads=2, ffn=96, layers=1), "q4_1", "i8"
    ),
    "q8_0, kv f32": Spec(Tiny(seed=3, hidden=32, heads=2, ffn=32, tied=False), "q8_0", "f32"),
    "f16, kv i8": Spec(Tiny(seed=4, hidden=32, heads=2, ffn=32, layers=1), "f16", "i8"),
    "bf16, kv f16": Spec(Tiny(seed=5, hidden=32, heads=2, ffn=32, layers=1), "bf16"),
    "f32, kv f16": Spec(Tiny(seed=6, hidden=32, heads=2, ffn=32, layers=1), "f32"),
    "mxfp4, kv f16": Spec(Tiny(seed=8, hidden=32, heads=2, ffn=32, layers=1), "mxfp4"),
    "nvfp4, kv f16": Spec(
        Tiny(seed=9, hidden=64, heads=2, ffn=64, layers=1, tied=False), "nvfp4_rows"
    ),
    "fp8, kv f16": Spec(Tiny(seed=9, hidden=32, heads=2, ffn=32, layers=1), "fp8", kind="llama"),
    "nvfp4 by nvfp4": Spec(
        Tiny(seed=9, hidden=64, heads=2, ffn=64, layers=1), "nvfp4", activations="nvfp4"
    ),
}
THIRDS = Shape(units=2, fill=2)
"""Leaves three tiles of the six panels of a row."""
Bufs = Mapping[Buf, Array]
Sizes = Mapping[Var, int]


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine(timeout_s=120) as running:
        yield running


class Compared:
    """A plan machine that runs each step both ways and insists on equal buffers."""

    def __init__(self, machine: TritonMachine, shape: Shape) -> None:
        self.machine, self.shape = machine, shape
        self.steps = 0

    def run_plan(self, plan: Plan, bufs: Bufs, sizes: Sizes, *, workers: int) -> None:
        before = {b: a.copy() for b, a in bufs.items()}
        run_plan(plan, bufs, sizes)
        after = stepped(self.machine, rendered(plan, self.shape), before, sizes)
        for b in plan.bufs:
            # Slots past the ones in use are nobody's: a tile may leave anything there.
            if b.role is not Role.WORKSPACE:
                assert same_bits(after[b.buf], bufs[b.buf]), f"{b.buf.name} differs"
        self.steps += 1


@pytest.mark.parametrize("which", SPECS)
def test_a_step_equals_golden(
    which: str, machine: TritonMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of as many rows as make a tile and two more, one token, a tree of five."""
    spec = SPECS[which]
    compared = Compared(machine, Shape(fill=1, fp4=Fp4(16, 8)))
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    session = PlanSession(spec, tmp_path, slots=32)
    tokens = tokens_of(spec.tiny, 16)
    session.forward(tokens[:10] if spec.fmt[0] == "q" else tokens[:2])
    session.forward(tokens[10:11])
    session.forward(tokens[11:], [-1, 0, 0, 1, -1])
    assert compared.steps == 3


@pytest.fixture
def counted(machine: TritonMachine, tmp_path: Path) -> tuple[Plan, Bufs, Sizes]:
    """A plan with arrays the machine can be given, and the sizes of a step of one row."""
    session = PlanSession(SPECS["q4_0, kv f16"], tmp_path, slots=16)
    plan = session.lowered.plan
    sizes = {v: {"m": 1, "head_rows": 1}.get(v.name, n) for v, n in session.sizes.items()}
    session.sizes = sizes
    arrays = {b.buf: np.zeros(session.shape(b.buf), b.buf.dtype.numpy) for b in plan.bufs}
    return plan, {b: machine.share(session.kept.get(b, a)) for b, a in arrays.items()}, sizes


def barriers(plan: Plan) -> int:
    """One between a phase and the next."""
    inside = [len(s.body) * s.extent if hasattr(s, "extent") else 1 for s in plan.body]
    return sum(inside) - 1


def test_counters_are_never_reset(
    machine: TritonMachine, counted: tuple[Plan, Bufs, Sizes]
) -> None:
    """Each step takes up the count where the one before left it."""
    plan, arrays, sizes = counted
    stepper = Stepper(machine, rendered(plan))
    for steps in (1, 2, 3):
        stepper.run(arrays, sizes)
        total = steps * barriers(plan)
        assert stepper.own["grid_barrier"].tolist() == [total, 0, total]


def test_a_worker_that_never_comes_is_noticed(
    machine: TritonMachine, counted: tuple[Plan, Bufs, Sizes]
) -> None:
    """The interpreter runs one worker after the other: the first waits in vain, and says so."""
    plan, arrays, sizes = counted
    text = rendered(plan)
    assert text.kernel.source.count(str(SPINS)) == 2
    impatient = text.kernel.source.replace(str(SPINS), "20")
    stepper = Stepper(machine, text, workers=2)
    args = dict(stepper.own) | {text.args[b]: a for b, a in arrays.items()}
    args |= {text.args[v]: sizes[v] for v in text.scalars}  # type: ignore[misc]
    machine.run(impatient, text.kernel.name, (2,), args)
    assert stepper.own["grid_barrier"][LATE] == 1


def test_texts_are_deterministic(tmp_path: Path) -> None:
    """Two renderings are equal byte by byte, and speak the model's words."""
    folders = [tmp_path / "a", tmp_path / "b"]
    texts = []
    for folder in folders:
        folder.mkdir()
        plan = PlanSession(SPECS["q4_0, kv f16"], folder, slots=16).lowered.plan
        texts.append(rendered(plan).kernel.source)
    assert texts[0] == texts[1]
    assert texts[0].startswith("# plan step for the interpreter: tiles to 64x8")
    for name in ("attn_q_k_v", "ffn_gate_up", "ffn_down", "for layer in range(0, 2):"):
        assert name in texts[0]


def test_every_phase_by_three_workers(machine: TritonMachine, tmp_path: Path) -> None:
    """Each phase alone needs no barrier between workers: they deal its units out, as golden's do.

    Each is run on what golden left after the phases before it.
    """
    session = PlanSession(SPECS["q4_1, kv i8"], tmp_path, slots=32)
    tokens = tokens_of(SPECS["q4_1, kv i8"].tiny, 8)
    session.forward(tokens[:3])
    plan = session.lowered.plan
    sizes = {
        v: {"m": 5, "head_rows": 5, "length": 3}.get(v.name, n) for v, n in session.sizes.items()
    }
    session.sizes = sizes
    arrays = {
        b.buf: np.zeros(session.shape(b.buf), b.buf.dtype.numpy) for b in plan.bufs
    } | session.kept
    for b in plan.by_role(Role.INPUT):
        arrays[b] = given(b.name, tokens[3:]).astype(np.int32)
    for step in plan.body:
        kernels = step.body if isinstance(step, Loop) else (step,)
        for kernel in kernels:
            assert isinstance(kernel, Kernel)
            scalars = {v: sizes.get(v, 0) for v in kernel.scalars}
            alone, before = single((kernel,)), {b: arrays[b] for b in kernel.bufs}
            after = stepped(machine, rendered(alone, THIRDS), before, scalars, workers=3)
            expected = golden(alone, before, scalars, workers=3)
            for b in kernel.bufs:
                assert same_bits(after[b], expected[b]), f"{kernel.name}: {b.name} differs"
            arrays |= expected


def given(name: str, tokens: list[int]) -> Array:
    """The inputs of a chain after three tokens."""
    depth, path = chain(len(tokens), 64)
    return {"tokens": np.asarray(tokens), "positions": 3 + depth, "depth": depth, "path": path}[
        name
    ]
