"""Packed functions are called through TVM's C interface: arguments, refusals, what is loaded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from speccc.errors import SpecccError
from speccc.runtime.aligned import aligned
from speccc.runtime.devices.tvm_function import TvmFunction
from speccc.targets.cpu.ceilings import READ_VECTORS, ceilings_library
from speccc.targets.cpu.isa import detect


@pytest.fixture(scope="module")
def read_loop() -> bytes:
    return ceilings_library(detect())["read"]


def test_arrays_are_bound_without_a_copy(read_loop: bytes) -> None:
    data, sums = aligned((READ_VECTORS * 16,), np.int32), aligned((READ_VECTORS * 16,), np.int32)
    call = TvmFunction(read_loop, "read", [data, sums])
    for value in (3, 5):
        data[:] = value
        call([1, 1])
        assert (sums == value).all()


def test_a_refused_call_says_why(read_loop: bytes) -> None:
    call = TvmFunction(read_loop, "read", [aligned((64,), np.int32)])
    with pytest.raises(SpecccError, match=r"the step failed: .*arguments"):
        call([])


@pytest.mark.parametrize(("library", "symbol"), [(b"no library", "read"), (None, "write")])
def test_what_does_not_load_is_one_line(
    read_loop: bytes, library: bytes | None, symbol: str
) -> None:
    with pytest.raises(SpecccError, match="the kernel library does not load") as caught:
        TvmFunction(library or read_loop, symbol, [])
    assert "\n" not in str(caught.value)


def test_a_program_that_embeds_the_runtime_loads_neither_compiler_nor_pytorch() -> None:
    program = "import sys, speccc.runtime.session, speccc.api; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"torch", "tvm", "tvm_ffi"} & set(done.stdout.split())
