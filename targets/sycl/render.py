"""Fragment-level kernel -> one SYCL free function, and how to bind and call it."""

from __future__ import annotations

from dataclasses import replace

from speccc.ir.fragment import FragmentKernel
from speccc.targets.clike.render import KernelText, render_kernel
from speccc.targets.sycl.sycl import SYCL


def render_sycl(kernel: FragmentKernel, device: str | None = None) -> KernelText:
    """The text of a verified kernel; its arguments are pointers: the buffers, then the scalars.

    With the macro SPECCC_JOINT_MATRIX=1 its matrices are the device's, else any device's. `device`
    is named in the text's head.
    """
    return render_kernel(kernel, SYCL if device is None else replace(SYCL, title=f"SYCL, {device}"))
