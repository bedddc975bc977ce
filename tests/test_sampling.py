"""Filters against a plain re-telling of llama.cpp's, and draws against softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError, SpecccError
from speccc.runtime.protocols import Logits
from speccc.runtime.sampling import SamplingParams, log_prob, picker, survivors

CHI_9999 = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5}
"""99.99 % quantiles of chi-square by degrees of freedom."""


def row_of(*values: float) -> Logits:
    return np.array(values, dtype=np.float32)


def slow_survivors(row: Logits, params: SamplingParams) -> list[int]:
    """llama.cpp's samplers one after another on a sorted candidate list."""
    left = sorted(((float(v), -i) for i, v in enumerate(row)), reverse=True)
    if params.top_k > 0:
        left = left[: params.top_k]
    if params.top_p < 1.0:
        weights = [math.exp(v - left[0][0]) for v, _ in left]
        total, mass = math.fsum(weights), 0.0
        for count, weight in enumerate(weights, start=1):
            mass += weight
            if mass >= params.top_p * total:
                left = left[:count]
                break
    if params.min_p > 0.0:
        left = [(v, i) for v, i in left if v >= left[0][0] + math.log(params.min_p)]
    return sorted(-i for _, i in left)


def chi_square(counts: list[int], probabilities: list[float]) -> float:
    total = sum(counts)
    return sum(
        (count - total * p) ** 2 / (total * p)
        for count, p in zip(counts, probabilities, strict=True)
    )


def softmax(values: list[float]) -> list[float]:
    weights = [math.exp(v) for v in values]
    return [w / sum(weights) for w in weights]


@given(
    # few halves make ties common; their sums of exponentials never land on a tested p
    st.lists(st.integers(-9, 9) | st.integers(-60, 60), min_size=1, max_size=60),
    st.integers(-1, 70),
    st.sampled_from([0.0, 0.11, 0.37, 0.63, 0.93, 0.999, 1.0]),
    st.sampled_from([0.0, 0.013, 0.29, 0.71, 1.0]),
)
def test_filters_equal_the_slow_telling(
    halves: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(1.0, top_k, top_p, min_p)
    row = row_of(*(h / 2 for h in halves))
    found = survivors(row, params)
    expected = slow_survivors(row, params)
    assert (list(range(len(halves))) if found is None else found.tolist()) == expected


def test_of_equals_at_the_edge_the_first_stay() -> None:
    row = row_of(0.0, 2.0, 0.0, 1.0, 0.0, 1.0, 1.0)
    for params in (SamplingParams(1.0, top_k=3), SamplingParams(1.0, top_p=0.65)):
        ids = survivors(row, params)  # weights 7.4, 2.7 x 3, 1 x 3 of 18.5: .40 .55 .69
        assert ids is not None
        assert ids.tolist() == [1, 3, 5]


@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("top_k", [1, 3, 40, 300, 4999])
def test_top_k_on_a_wide_row(scale: float, top_k: int) -> None:
    row = np.random.default_rng(3).normal(0.0, scale, 5000).astype(np.float32)
    params = SamplingParams(1.0, top_k)
    found = survivors(row, params)
    assert found is not None
    assert found.tolist() == slow_survivors(row, params)


@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.9999])
def test_top_p_on_a_wide_row(scale: float, top_p: float) -> None:
    """Flat and peaked rows take different ways to the same nucleus."""
    row = np.random.default_rng(7).normal(0.0, scale, 5000).astype(np.float32)
    params = SamplingParams(1.0, top_p=top_p)
    found = survivors(row, params)
    assert found is not None
    assert found.tolist() == slow_survivors(row, params)


def test_top_p_sees_logits_before_temperature() -> None:
    """llama.cpp's order: at T = 4 the tail would pass 0.9, but the filter ran before."""
    row = row_of(4.0, 1.0, 0.0)
    params = SamplingParams(4.0, top_p=0.9)  # p = .94 .05 .02 at T = 1
    assert survivors(row, params) is not None
    assert {picker(params)(row, at) for at in range(200)} == {0}


def test_order_top_p_works_on_what_top_k_left() -> None:
    row = row_of(2.0, 1.9, 1.8, 1.7)
    # of all four .29 .26 .24 .21; of the first two .525 .475
    assert survivors(row, SamplingParams(1.0, top_k=2, top_p=0.5)) == pytest.approx([0])
    assert survivors(row, SamplingParams(1.0, top_p=0.5)) == pytest.approx([0, 1])


def test_barred_tokens_are_never_drawn() -> None:
    row = row_of(-math.inf, 0.0, -math.inf, -1.0)
    for params in (SamplingParams(2.0), SamplingParams(2.0, top_k=3), SamplingParams(2.0, 0, 0.99)):
        drawn = {picker(params)(row, at) for at in range(500)}
        assert drawn == {1, 3}
    ids = survivors(row, SamplingParams(2.0, top_k=3))
    assert ids is not None
    assert ids.tolist() == [1, 3]


def test_greedy_takes_the_lowest_of_equals() -> None:
    row = row_of(1.0, 3.0, 3.0, 2.0)
    assert picker(SamplingParams())(row, 0) == 1
    assert picker(SamplingParams(temperature=1e-9, seed=5))(row, 0) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error(bad: float, temperature: float) -> None:
    with pytest.raises(SpecccError, match="sampling: the logits hold"):
        picker(SamplingParams(temperature))(row_of(0.0, bad, 1.0), 0)
    with pytest.raises(SpecccError, match="-inf"):
        picker(SamplingParams(temperature))(row_of(-math.inf, -math.inf), 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1.0), ("temperature", math.nan), ("temperature", math.inf),
     ("top_p", 1.5), ("top_p", -0.1), ("min_p", 2.0), ("min_p", math.nan)],
)  # fmt: skip
def test_values_out_of_range_name_the_field(field: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{field}: must"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_softmax_over_positions(temperature: float) -> None:
    """20k positions of one seed; chi-square below its 99.99 % quantile."""
    values = [2.0, 1.5, 1.0, 0.5]
    row, pick = row_of(*values), picker(SamplingParams(temperature, seed=11))
    counts = np.bincount([pick(row, at) for at in range(20_000)], minlength=4).tolist()
    expected = softmax([v / temperature for v in values])
    assert chi_square(counts, expected) < CHI_9999[3]


def test_draws_follow_softmax_over_seeds() -> None:
    values = [2.0, 1.5, 1.0, 0.5]
    row = row_of(*values)
    drawn = [picker(SamplingParams(1.0, seed=seed))(row, 77) for seed in range(20_000)]
    assert chi_square(np.bincount(drawn, minlength=4).tolist(), softmax(values)) < CHI_9999[3]


@pytest.mark.parametrize(
    ("params", "left"),
    [
        (SamplingParams(0.7, top_k=2), [0, 1]),
        (SamplingParams(0.7, top_p=0.6), [0, 1]),  # .46 .28 .17 .10: the second crosses
        (SamplingParams(0.7, min_p=0.3), [0, 1, 2]),  # exp(-1) = .37, exp(-1.5) = .22
    ],
    ids=["top-k", "top-p", "min-p"],
)
def test_filtered_draws_are_renormalised(params: SamplingParams, left: list[int]) -> None:
    """B06: a filtered token never comes, the others keep their proportions."""
    values = [2.0, 1.5, 1.0, 0.5]
    row, pick = row_of(*values), picker(params)
    counts = np.bincount([pick(row, at) for at in range(20_000)], minlength=4)
    assert counts[[i for i in range(4) if i not in left]].sum() == 0
    expected = softmax([values[i] / params.temperature for i in left])
    assert chi_square(counts[left].tolist(), expected) < CHI_9999[len(left) - 1]


def test_filters_do_not_move_the_noise() -> None:
    """If the unfiltered winner survives the filter, it wins again."""
    rng = np.random.default_rng(0)
    same = 0
    for at in range(300):
        row = rng.normal(0.0, 3.0, 400).astype(np.float32)
        token = picker(SamplingParams(0.8, seed=3))(row, at)
        ids = survivors(row, SamplingParams(0.8, top_k=20))
        assert ids is not None
        if token in ids:
            same += 1
            assert picker(SamplingParams(0.8, top_k=20, seed=3))(row, at) == token
    assert same > 100


def test_pick_does_not_depend_on_where_the_row_lies() -> None:
    """A row of a batch, a strided view and a copy give one token."""
    block = np.random.default_rng(1).normal(0.0, 3.0, (3, 1001)).astype(np.float32)
    for params in (SamplingParams(), SamplingParams(0.9, seed=1), SamplingParams(0.9, 9, 0.8)):
        pick = picker(params)
        wide = np.zeros((1001, 3), dtype=np.float32)
        wide[:] = block.T
        for i in range(3):
            assert pick(block[i], 5) == pick(block[i].copy(), 5) == pick(wide[:, i], 5)


def test_log_prob() -> None:
    row = row_of(2.0, 1.5, 1.0, 0.5)
    expected = [math.log(p) for p in softmax([2.0, 1.5, 1.0, 0.5])]
    assert [log_prob(row, i) for i in range(4)] == pytest.approx(expected, rel=1e-12)
