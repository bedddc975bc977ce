"""The ROCm driver through AMD's own bindings: hip-python, over a HIP of the host's memory.

Needs `pip install 'hip-python<8'`, the last whose `hip` is compiled in it, and a C compiler; what
`tests/hip_fake.py` takes to be the bindings' way of calling is checked here.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cpu_rig import Spec
from gpu_fakes import Host, view
from models import Tiny
from sampling_rig import Sampled
from test_drivers import Rig

from speccc.ir.tile import Kernel
from speccc.runtime.devices.gpu_step import Code, DeviceError, Part, Start
from speccc.runtime.devices.rocm import RocmDriver

pytest.importorskip("hip.hip", reason="needs pip install 'hip-python<8'")
SPEC = Spec(Tiny(seed=8, hidden=32, heads=2, kv_heads=1, ffn=64, layers=1), "q4_1")
LAYOUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
LAUNCH = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_uint8)
)


class Reached(Host):
    """A device whose memory is the library's."""

    def inside(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Any memory."""
        return view(address, nbytes)


def kinds(kernel: Kernel) -> list[Any]:
    """The C types of a kernel's arguments, Triton's two hidden pointers among them."""
    pointer = [ctypes.c_void_p]
    return pointer * len(kernel.bufs) + [ctypes.c_int32] * len(kernel.scalars) + pointer * 2


def unpacked(kernel: Kernel, arguments: Any) -> list[Any]:
    """A kernel's arguments as its code finds them: one after the other, each aligned."""
    fields = [(f"a{n}", kind) for n, kind in enumerate(kinds(kernel))]
    record = type("Record", (ctypes.Structure,), {"_fields_": fields})
    given = record.from_address(ctypes.addressof(arguments.contents))
    return [getattr(given, name) for name, _ in fields]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """What the bindings find under the name of AMD's library, as it is loaded before."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    source = Path(__file__).parent / "emulation" / "hip" / "host.c"
    words = ("-shared", "-fPIC", "-Wl,-soname,libamdhip64.so", "-o", str(made), str(source))
    subprocess.run([compiler, *words], check=True)
    return ctypes.CDLL(str(made))


Begin = Callable[[dict[str, Kernel]], Host]


@pytest.fixture
def begin(library: ctypes.CDLL) -> Iterator[Begin]:
    """Says which kernels there are; when the test is over nothing may be left, or have failed."""
    kept: list[Any] = []
    failed: list[Exception] = []

    def begun(kernels: dict[str, Kernel]) -> Host:
        host = Reached(kernels)

        def layout(name: bytes, sizes: Any) -> int:
            types = kinds(kernels[name.decode()])
            for n, kind in enumerate(types):
                sizes[n] = ctypes.sizeof(kind)
            return len(types)

        def launch(name: bytes, groups: int, threads: int, arguments: Any) -> None:
            try:
                *values, first, second = unpacked(kernels[name.decode()], arguments)
                assert (first, second) == (None, None)
                count = len(kernels[name.decode()].bufs)
                host.launch(name.decode(), groups, threads, values[:count], values[count:])
            except Exception as error:  # a callback of C has nobody to raise it to
                failed.append(error)

        kept[:] = [LAYOUT(layout), LAUNCH(launch)]
        library.stand_in_begin(*kept)
        return host

    yield begun
    assert failed == []
    assert library.stand_in_alive() == 0


def test_sampled_text_is_the_cpus(begin: Begin, tmp_path: Path) -> None:
    """A whole model: steps are recorded once, and told what is new."""
    rig = Rig(SPEC, tmp_path)
    host = begin(rig.kernels)
    driver = RocmDriver()
    assert driver.name == "Stand-in"
    session = rig.session(driver)
    Sampled(session, SPEC).check()
    # There is nothing to merge so early in a text.
    assert {name for name, _, _ in host.launched} == set(rig.kernels) - {"attn_merge"}
    session.close()


def test_a_capture_that_fails_ends(begin: Begin, tmp_path: Path) -> None:
    """An error of a launch within it; then the stream is as before."""
    begin(Rig(SPEC, tmp_path).kernels)
    driver = RocmDriver()
    kernel = driver.load(Code(b"pick", "pick"))
    start = Start(kernel, 0, 64, [Part(driver.allocate(64))], [1], "i32", 1)
    with pytest.raises(DeviceError, match="error 98: refused"):
        driver.record([], [start], [])
    driver.finish()
    driver.close()
