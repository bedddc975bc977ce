"""The prior counts what the plan says: bytes of weights, rows, tiles."""

from __future__ import annotations

import pytest
from models import Tiny
from tune_rig import lowered_tiny

from speccc.autotune.facts import facts
from speccc.autotune.prior import (
    LEAST_SHARE,
    MACHINES,
    NOTHING,
    Work,
    kernel_work,
    seconds,
    step_prior,
    step_work,
)
from speccc.autotune.step_space import DEFAULT, step_space
from speccc.ir.plan import phases
from speccc.ir.schedule import Schedule
from speccc.targets.cpu.isa import ISAS

TINY = Tiny(hidden=64, ffn=128, layers=3)
FAST = MACHINES["avx512vnni"]


def test_all_weights_are_counted_once() -> None:
    lowered = lowered_tiny(TINY, "q4_1")
    works = step_work(lowered.plan)
    # The head is the embedding table: it is read whole once, and for single rows beside that.
    assert sum(w.bytes for w in works.values()) == lowered.weights.matrix_bytes
    # Every layer counts.
    gate_up = next(k for k in phases(lowered.plan.body) if k.name == "ffn_gate_up")
    assert works["ffn_gate_up"].bytes == TINY.layers * kernel_work(gate_up).bytes


def test_kernels_without_packed_blocks_are_unknown() -> None:
    plan = lowered_tiny(TINY, "f16").plan
    assert set(step_work(plan).values()) == {NOTHING}
    isa = ISAS["avx2"]
    prior = step_prior(plan, step_space(plan, isa), isa, (1, 8))
    assert prior.share("ffn_down") == LEAST_SHARE
    assert prior.ratio(facts({"ffn_down.deal": "turns"})) == 1.0


def test_one_row_does_not_care_how_many_rows_a_tile_has() -> None:
    work = Work(1e8, 1e5)
    times = {seconds(work, Schedule(rows=rows), 1, FAST) for rows in (1, 2, 4, 8)}
    assert len(times) == 1
    # Eight rows unpack the codes once in one tile, eight times in tiles of one.
    eight = [seconds(work, Schedule(rows=rows), 8, FAST) for rows in (8, 4, 2, 1)]
    assert eight == sorted(eight)
    assert eight[0] < eight[-1]


def test_time_rises_with_rows_and_bytes() -> None:
    at = [seconds(Work(1e8, 3e5), Schedule(), m, FAST) for m in range(1, 17)]
    assert at == sorted(at)
    assert seconds(Work(2e8, 3e5), Schedule(), 1, FAST) > at[0]


def test_few_registers_make_tall_tiles_dear() -> None:
    work = Work(1e6, 3e5)  # bound by products
    slow, tight = MACHINES["avx2"], MACHINES["avx512vnni"]

    def gain(machine: object) -> float:
        tall, short = (seconds(work, Schedule(rows=r), 8, machine) for r in (8, 4))  # type: ignore[arg-type]
        return short - tall

    assert gain(tight) > gain(slow)


def test_ratios_add_up_over_kernels_and_shares_to_one() -> None:
    lowered = lowered_tiny(TINY, "q4_1")
    isa = ISAS["avx512vnni"]
    space = step_space(lowered.plan, isa)
    prior = step_prior(lowered.plan, space, isa, (1, 4, 8))
    assert prior.ratio(DEFAULT) == 1.0
    one, two = facts({"ffn_down.rows": 1}), facts({"output.prefetch": 0})
    both = tuple(sorted((*one, *two)))
    expected = 1.0 + (prior.ratio(one) - 1.0) + (prior.ratio(two) - 1.0)
    assert prior.ratio(both) == pytest.approx(expected, rel=1e-12)
    assert prior.ratio(one) > 1.0
    heavy = [k for k, w in step_work(lowered.plan).items() if w.bytes]
    assert sum(prior.share(k) for k in heavy) == pytest.approx(1.0, abs=LEAST_SHARE * len(heavy))
