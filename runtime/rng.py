"""Counter-based random numbers: (seed, position, token) -> bits, with no state to roll back.

Definition, all arithmetic modulo 2**64:

    G         = 0x9E3779B97F4A7C15
    mix(z)    = z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB;
                z ^ (z >> 31)                                   (SplitMix64, Steele et al. 2014)
    key       = mix(mix(seed + G) + (position + 1) * G)
    bits(t)   = mix(key + (t + 1) * G)
    uniform   = ((bits >> 12) + 0.5) * 2**-52                   (exact in float64, never 0 or 1)
    gumbel    = -log(-log(uniform))

`bits` is the token-th output of a SplitMix64 generator whose state is `key`, and `key` comes from
the position-th output of one whose state is the mixed seed. Because a token's noise depends on
nothing but the three numbers, a text is the same however its tokens were batched.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
_MUL1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S12 = (np.uint64(n) for n in (30, 27, 31, 12))

Bits = npt.NDArray[np.uint64]


def mix(z: int) -> int:
    """The SplitMix64 finalizer of one 64-bit number."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def position_key(seed: int, position: int) -> int:
    """The key of one position's stream; any Python int is a seed, taken modulo 2**64."""
    return mix((mix((seed + GOLDEN) & MASK) + (position + 1) * GOLDEN) & MASK)


def counters(tokens: npt.NDArray[np.int64]) -> Bits:
    """(token + 1) * G for each token."""
    found: Bits = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    return found


@lru_cache(maxsize=4)
def vocab_counters(vocab: int) -> Bits:
    """`counters` of every token of a vocabulary: kept, as it is the same for every row."""
    table = counters(np.arange(vocab, dtype=np.int64))
    table.flags.writeable = False
    return table


def token_bits(seed: int, position: int, counter: Bits) -> Bits:
    """64 random bits for each of the given counters."""
    z: Bits = counter + np.uint64(position_key(seed, position))
    shifted = z >> _S30
    z ^= shifted
    z *= _MUL1
    np.right_shift(z, _S27, out=shifted)
    z ^= shifted
    z *= _MUL2
    np.right_shift(z, _S31, out=shifted)
    z ^= shifted
    return z


def gumbel(seed: int, position: int, counter: Bits) -> npt.NDArray[np.float64]:
    """A standard Gumbel number for each counter, between -3.6 and 36.8."""
    return gumbel_of(token_bits(seed, position, counter))


def gumbel_of(bits: Bits) -> npt.NDArray[np.float64]:
    """The Gumbel number that each 64-bit number stands for; finite for all of them."""
    high = bits >> _S12
    noise: npt.NDArray[np.float64] = high.astype(np.float64)
    noise += 0.5
    noise *= 2.0**-52
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return noise
