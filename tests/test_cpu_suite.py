"""The CPU's suite on a tiny model: golden means golden, every schedule gives its bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from models import Tiny
from tune_rig import tiny_subject

from speccc.autotune import golden
from speccc.autotune.cpu_job import SUITE, CpuJob
from speccc.autotune.cpu_suite import CHECK, CpuSuite, suite
from speccc.autotune.facts import facts
from speccc.autotune.measure import Limits, Worker
from speccc.autotune.record import Outcome
from speccc.errors import InputError
from speccc.ir.plan import Array, Plan
from speccc.ir.tile import Buf
from speccc.targets.cpu.object_store import MemoryObjects
from speccc.tuning import Subject, job_of

TINY = Tiny(hidden=64, ffn=128, layers=2)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return tiny_subject(TINY, "q4_1")


@pytest.fixture(scope="module")
def job(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuJob]:
    with job_of(subject, tmp_path_factory.mktemp("weights")) as made:
        # What was built once is sent to the worker.
        yield replace(made, objects=MemoryObjects())


@pytest.fixture(scope="module")
def made(job: CpuJob) -> CpuSuite:
    return suite(job)


def test_the_default_is_golden_and_steady(made: CpuSuite) -> None:
    default = made.build(())
    assert made.golden(default, default.bits()) == ""
    assert default.bits() == default.bits()


def test_any_schedule_gives_the_golden_bits(made: CpuSuite) -> None:
    expected = made.build(()).bits()
    rng = Random(0)
    for _ in range(4):
        config = ()
        for kernel, own in made.space.kernels.items():
            config = made.space.replace(config, kernel, own.sample(rng))
        assert config
        assert made.build(config).bits() == expected, config


def test_what_the_space_does_not_have_is_refused(made: CpuSuite) -> None:
    with pytest.raises(InputError, match="no kernel"):
        made.build(facts({"nobody.rows": 4}))


def test_the_check_case_has_every_height_and_crosses_a_kv_tile() -> None:
    assert set(range(1, 9)) <= set(CHECK)
    assert sum(CHECK) > 32
    assert any(width > 8 for width in CHECK)


def test_only_what_changes_is_rendered_and_built_again(made: CpuSuite) -> None:
    made.build(())
    kernel = next(k for k, s in made.space.kernels.items() if "rows" in dict(s.params))
    before, objects = len(made.functions), len(made.objects.kept)  # type: ignore[attr-defined]
    made.build(facts({f"{kernel}.rows": 2}))
    assert len(made.functions) == before + 1
    # The kernel, and the step that calls it by its new name.
    assert len(made.objects.kept) == objects + 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["k_cache", "logits"])
def test_the_golden_model_notices_one_wrong_bit(
    made: CpuSuite, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small = golden.one_layer(made.job.plan)
    arrays = {"weights": made.weights, "vectors": made.vectors}
    code = made._code(small, made.job.arena, {})
    assert golden.differs(small, code, arrays) == ""
    target = {"logits": made.job.step.logits}.get(name, name)
    run = golden._run

    def run_wrongly(plan: Plan, code: golden.Code, given: Mapping[Buf, Array], sizes: Any) -> None:
        run(plan, code, given, sizes)
        (buf,) = (b for b in given if b.name == target)
        given[buf].reshape(-1).view(np.uint8)[0] ^= 1

    monkeypatch.setattr(golden, "_run", run_wrongly)
    assert target in golden.differs(small, code, arrays)


def test_a_tiny_model_is_tuned_in_a_worker(job: CpuJob) -> None:
    limits = Limits(start=120.0, build=60.0, check=60.0, time=60.0)
    with Worker(SUITE, job, limits=limits) as worker:
        found = worker.measure(facts({"ffn_gate_up.rows": 4}), seconds=0.0, deadline=float("inf"))
        odd = worker.measure(facts({"nobody.rows": 4}), seconds=0.0, deadline=float("inf"))
    assert found.outcome is Outcome.OK, found
    assert set(found.ms) == {1, 4, 8}
    assert odd.outcome is Outcome.INVALID


def test_a_payload_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CPU job"):
        suite(tmp_path)
