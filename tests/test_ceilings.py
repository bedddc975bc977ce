"""The loops that measure the machine do the work they are timed for."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_rig import HERE

from speccc.bench.ceilings import Ceilings, beside, measure_ceilings
from speccc.runtime.aligned import aligned
from speccc.runtime.devices.cpu import CpuStep
from speccc.targets.cpu.ceilings import (
    DOT_CODES,
    DOT_SUMS,
    READ_VECTORS,
    ceilings_library,
)
from speccc.targets.cpu.isa import Isa


@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
def test_every_byte_is_read_and_every_dot_done(isa: Isa) -> None:
    libraries = ceilings_library(isa)
    workers, trips = 3, 10
    data = aligned((workers * trips * READ_VECTORS * 16,), np.int32)
    rng = np.random.default_rng(5)
    data[:] = rng.integers(0, 1 << 31, data.size) & 0x0F0F0F0F
    sums = aligned((workers * READ_VECTORS * 16,), np.int32)
    read = CpuStep(np.frombuffer(libraries["read"], np.uint8), "read", [data, sums])
    read([trips], workers)
    shaped = data.reshape(workers, trips, READ_VECTORS * 16)
    assert (sums.reshape(workers, -1) == shaped.sum(axis=1, dtype=np.int32)).all()
    sums[:] = 0
    dots = CpuStep(np.frombuffer(libraries["dots"], np.uint8), "dots", [data, sums])
    dots([trips], workers)
    codes = data[: DOT_CODES * 16].view(np.uint8).astype(np.int32).reshape(DOT_CODES, 16, 4)
    seen = sum(codes[trip % DOT_CODES] for trip in range(trips))
    acts = data[:DOT_SUMS].view(np.int8).astype(np.int32).reshape(DOT_SUMS, 4)
    want = (seen[None] * acts[:, None, :]).sum(axis=2)
    for got in sums.reshape(workers, READ_VECTORS, 16):
        assert (got[:DOT_SUMS] == want).all()


def test_rates_beside_rounds() -> None:
    """The median of what memory gave, and the best; the best of the processor's own rate."""
    rates = ((5.0, 8.0), (9.0, 7.0), (6.0, 9.0))
    moments = [Ceilings(read, dots, 2, 64, read) for read, dots in rates]
    assert beside(moments) == Ceilings(6.0, 9.0, 2, 64, 9.0)


def test_rates_are_of_what_was_done() -> None:
    found = measure_ceilings(1, buffer_bytes=1 << 20)
    assert found.threads == 1
    assert 0 < found.buffer_bytes <= 1 << 20
    # A core does between a million and 10^13 of either a second.
    assert 1e6 < found.read_bytes_s < 1e13
    assert 1e6 < found.int8_dots_s < 1e13
