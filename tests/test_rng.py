"""The counter-based generator: its definition, by known answers, and its distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speccc.runtime.rng import (
    GOLDEN,
    MASK,
    counters,
    gumbel,
    gumbel_of,
    mix,
    position_key,
    token_bits,
    vocab_counters,
)


def test_mix_is_splitmix64() -> None:
    """The first outputs of the reference SplitMix64 for seed 1234567."""
    found = [mix((1234567 + (i + 1) * GOLDEN) & MASK) for i in range(5)]
    assert found == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 - 1, 2**70 + 3])
@pytest.mark.parametrize("position", [0, 7, 100_000])
def test_vector_and_scalar_definitions_agree(seed: int, position: int) -> None:
    tokens = np.array([0, 1, 2, 49151, 151_935, 2**31], dtype=np.int64)
    key = position_key(seed, position)
    expected = [mix((key + (int(t) + 1) * GOLDEN) & MASK) for t in tokens]
    bits = token_bits(seed, position, counters(tokens))
    assert bits.tolist() == expected
    uniform = [((b >> 12) + 0.5) * 2.0**-52 for b in expected]
    noise = gumbel(seed, position, counters(tokens))
    # two logs of float64, each within an ulp or two
    assert noise == pytest.approx([-math.log(-math.log(u)) for u in uniform], rel=1e-14)


PINNED = [14489691131172573708, 3585304667459208718, 13417573117720169461]


def test_noise_is_pinned() -> None:
    """Known answers of ours: a change here changes every seeded text."""
    assert token_bits(42, 10, vocab_counters(3)).tolist() == PINNED


def test_seed_is_taken_modulo_2_64_and_all_three_numbers_matter() -> None:
    def bits(seed: int, position: int) -> list[int]:
        return [int(b) for b in token_bits(seed, position, vocab_counters(50))]

    assert bits(-1, 3) == bits(2**64 - 1, 3)
    assert len({*bits(0, 0), *bits(1, 0), *bits(0, 1), *bits(GOLDEN, 0)}) == 200


def test_subset_has_the_noise_of_the_whole() -> None:
    """Filters must not move the noise of the survivors, wherever SIMD lanes fall."""
    whole = gumbel(5, 9, vocab_counters(1000))
    for start, step in ((0, 1), (1, 1), (3, 7), (999, 1)):
        ids = np.arange(start, 1000, step, dtype=np.int64)
        assert np.array_equal(gumbel(5, 9, counters(ids)), whole[ids])


def test_extreme_bits_stay_finite() -> None:
    """-log(-log(u)) at u = 2**-53 and 1 - 2**-53; the second log(u) is -2**-53 to 16 digits."""
    noise = gumbel_of(np.array([0, 2**64 - 1], dtype=np.uint64))
    expected = [-math.log(53 * math.log(2)), 53 * math.log(2)]
    assert noise == pytest.approx(expected, rel=1e-14)


def test_uniform_by_token_by_position_and_by_seed() -> None:
    """Chi-square over 64 cells of the high bits; 99.99 % quantile of 63 degrees is 114.4."""
    samples = {
        "token": token_bits(1, 2, vocab_counters(64_000)),
        "position": np.concatenate([token_bits(1, p, vocab_counters(4)) for p in range(16_000)]),
        "seed": np.concatenate([token_bits(s, 2, vocab_counters(4)) for s in range(16_000)]),
    }
    for name, bits in samples.items():
        for shift in (58, 12):  # top bits, and the lowest used ones
            cells = np.bincount(((bits >> np.uint64(shift)) & np.uint64(63)).astype(int))
            expected = bits.shape[0] / 64
            assert float(((cells - expected) ** 2 / expected).sum()) < 114.4, (name, shift)


def test_neighbours_are_uncorrelated() -> None:
    """|r| of n independent pairs is within 5 / sqrt(n)."""
    n = 60_000
    a = gumbel(3, 4, vocab_counters(n))
    for b in (gumbel(3, 5, vocab_counters(n)), gumbel(4, 4, vocab_counters(n)), np.roll(a, 1)):
        assert abs(float(np.corrcoef(a, b)[0, 1])) < 5 / math.sqrt(n)


def test_gumbel_moments() -> None:
    """Mean 0.5772, variance pi^2 / 6; five standard errors of 200k draws."""
    n = 200_000
    noise = gumbel(8, 1, vocab_counters(n))
    assert float(noise.mean()) == pytest.approx(0.57722, abs=5 * math.sqrt(1.645 / n))
    # var of the sample variance: (kurtosis 5.4 - 1) * sigma^4 / n
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=5 * 1.645 * math.sqrt(4.4 / n))
