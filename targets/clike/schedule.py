"""Which way a tile of a quantized product goes: matrix instructions, or packed dots of invocations.

Both give the same bits, so only their cost decides. It is counted in operations of one invocation
for a panel of 16 columns and a block of 32 of k, as the generated texts have them: a matrix wants
its operands unpacked into shared memory, however few rows there are; packed dots read weights
where they lie, and pay for each row.
"""

from __future__ import annotations

from collections.abc import Iterable

from speccc.ir.fragment import MmaShape
from speccc.ir.packed import BLOCK, PANEL
from speccc.ir.types import BF16, F16, F32, DType
from speccc.passes.dot_to_fragment import LANE_ROWS
from speccc.passes.float_dot_to_fragment import choose
from speccc.passes.scaled_dot_to_fragment import Staging
from speccc.targets.devices.profile import Fact, Profile

UNPACK = 6
"""Place, load, shift, mask, convert and store one code of a weight."""
STAGE = 4
"""Place, load, convert and store one code of a row."""
SCALE = 4
"""Load the dot, its scales' product, convert and add: one row and column."""
WORDS = PANEL * BLOCK // 8
"""Words of weights, eight codes of 4 bits in each."""
WORD = 4
"""Place and load a word, and take its nibbles apart."""
DOT4, DOT4_BY_HAND = 1, 8
"""One dot of four bytes: an instruction; or four products and sums."""
ENGINE_TYPES = (F16, BF16)
"""Floats that matrix instructions are looked for."""
MATRIX_MACS = 8
"""Products a matrix engine adds up in the time an invocation takes for one operation: the least of
the table's (RDNA3: 256 a clock and SIMD of 32 lanes)."""


def lane_cost(rows: int, *, dot4: bool) -> int:
    """Operations of packed dots for a tile of `rows`."""
    dot = DOT4 if dot4 else DOT4_BY_HAND
    staged = BLOCK // 4 * 2 * STAGE
    return WORDS * WORD + rows * (2 * WORDS * dot + staged + PANEL * (1 + SCALE))


def matrix_cost(shape: MmaShape, rows: int) -> int:
    """Operations of matrix instructions for a tile of `rows`."""
    tiles = Staging.of(shape)
    times = -(-rows // tiles.tokens)
    multiply = tiles.tokens * tiles.columns * BLOCK // MATRIX_MACS
    each = tiles.tokens * BLOCK * STAGE + multiply + tiles.tokens * tiles.columns
    return tiles.columns * BLOCK * UNPACK + times * each + rows * PANEL * SCALE


def engine_shapes(profile: Profile, types: Iterable[DType] = ENGINE_TYPES) -> tuple[MmaShape, ...]:
    """The matrix instruction of a profile for each type of floats that it has one for."""
    found = (choose(profile.matrix(t, t, F32)) for t in types)
    return tuple(s for s in found if s is not None)


def few_rows(shape: MmaShape | None, dot4: Fact[bool] | None) -> int:
    """The most rows of a tile that packed dots serve at least as well; all with no shape.

    `dot4` is a profile's: where it is silent, no instruction is counted on.
    """
    if shape is None:
        return LANE_ROWS
    fast = dot4 is not None and dot4.value
    rows = range(1, LANE_ROWS + 1)
    cheap = (m for m in rows if lane_cost(m, dot4=fast) <= matrix_cost(shape, m))
    return max(cheap, default=0)
