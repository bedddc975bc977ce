"""Any x86 processor as a SYCL device, through Intel's OpenCL driver for CPUs: no GPU is needed.

It has no matrix engine; the shape is that of the products which `targets/sycl/matrix.hpp` makes by
broadcasts of a sub-group.
"""

from __future__ import annotations

from speccc.targets.devices.profile import Arch, Device, Fact, Matrix

QUERY = "asked of intel-opencl-rt 2026.2.0: clGetDeviceInfo"
HEADER = "asked of matrix.hpp 1: the portable form"

ARCHS = (
    Arch(
        "sycl",
        "cpu",
        subgroup=Fact(16, QUERY),
        shared_bytes=Fact(262144, QUERY),
        matrix=Fact((Matrix("i8", "i8", "i32", 8, 16, 32, least_m=1),), HEADER),
        dot4=Fact(False, HEADER),
    ),
)

DEVICES: tuple[Device, ...] = ()
