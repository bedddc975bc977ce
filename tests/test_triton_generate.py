"""A whole model generates by its one kernel a step, under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cpu_rig import Spec, model_file, same_bits
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from models import Tiny
from table_session import ScriptedDrafter, TableTokens
from test_numerics import PlanSession, tokens_of
from triton_driver import InterpretedModel
from triton_rig import golden_tokens

from speccc.emit import EmitOptions, read_model
from speccc.runtime.controller import FixedController
from speccc.runtime.devices.gpu_step import BARRIER, LATE, DeviceError
from speccc.runtime.generate import Generation, collect, generate
from speccc.targets.registry import target
from speccc.targets.triton import step
from speccc.targets.triton.target import TritonTarget

SPEC = Spec(Tiny(seed=8, hidden=32, heads=2, kv_heads=1, ffn=64, layers=2), "q4_1")
LETTERS = TableTokens([bytes([n % 256]) for n in range(300)])
COUNT = 6


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine(timeout_s=120) as running:
        yield running


@pytest.fixture(scope="module")
def model(machine: TritonMachine, tmp_path_factory: pytest.TempPathFactory) -> InterpretedModel:
    path = model_file(SPEC, tmp_path_factory.mktemp("model"))
    front = read_model(path, EmitOptions(kv=SPEC.kv), lambda *_: None)
    made = target("cuda:sm_90")
    assert isinstance(made, TritonTarget)
    # One worker: wide tiles are fewer to interpret.
    return InterpretedModel(front, replace(made, shape=replace(made.shape, fill=1)), machine)


def test_a_model_generates(model: InterpretedModel, tmp_path: Path) -> None:
    """The golden machine's tokens: without drafts, with a chain of them, with a tree."""
    prompt = tokens_of(SPEC.tiny, 4)
    want = golden_tokens(SPEC, tmp_path, prompt, COUNT)

    def generated(drafter: ScriptedDrafter | None) -> tuple[Generation, int]:
        session, driver = model.session()
        options = {"max_tokens": COUNT, "drafter": drafter, "controller": FixedController(4)}
        return collect(generate(session, LETTERS, prompt, **options)), driver.launched

    plain, launches = generated(None)
    assert plain.tokens == want
    for branches in (0, 1):
        drafter = ScriptedDrafter(want, lambda at: at == 2, SPEC.tiny.vocab, branches)
        done, fewer = generated(drafter)
        assert done.tokens == want
        assert done.stats.rounds < COUNT
        # One launch is one step.
        assert fewer < launches <= COUNT + 1


def test_a_step_whose_workers_did_not_meet_has_no_result(model: InterpretedModel) -> None:
    """The session sees the word that the kernel sets."""
    assert (BARRIER, LATE) == (step.BARRIER, step.LATE)
    session, driver = model.session()
    session.forward([1])
    barrier = next(a for (_, _, kind), a in driver.views.items() if kind == "*i64")
    barrier[LATE] = 1
    with pytest.raises(DeviceError, match="did not meet"):
        session.forward([2])


def test_rows_alone_and_together(model: InterpretedModel, tmp_path: Path) -> None:
    """Logits of a chain are those of its tokens one by one, and golden's."""
    tokens = tokens_of(SPEC.tiny, 4)
    together = model.session()[0].forward(tokens)
    alone, _ = model.session()
    rows = [alone.forward([t])[0] for t in tokens]
    assert all(same_bits(a, b) for a, b in zip(together, rows, strict=True))
    assert same_bits(together, PlanSession(SPEC, tmp_path).forward(tokens))
