"""Fragment-level kernel -> one SYCL free function, and how to bind and call it."""

from __future__ import annotations

from speccc.ir.fragment import FragmentKernel
from speccc.targets.clike.render import KernelText, render_kernel
from speccc.targets.sycl.sycl import SYCL


def render_sycl(kernel: FragmentKernel) -> KernelText:
    """The text of a verified kernel; its arguments are the buffers' pointers, then the scalars.

    With the macro SPECCC_JOINT_MATRIX=1 its matrices are the device's, else any device's.
    """
    return render_kernel(kernel, SYCL)
