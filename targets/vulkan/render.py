"""Fragment-level kernel -> one GLSL compute shader, and how to bind and call it."""

from __future__ import annotations

from speccc.ir.fragment import FragmentKernel
from speccc.targets.clike.render import KernelText, render_kernel
from speccc.targets.vulkan.glsl import glsl
from speccc.targets.vulkan.glsl_prelude import Fma

Shader = KernelText
"""Binding n of set 0 is `buffers[n]`; the push constants are the scalars."""

_DIALECTS = {fma: glsl(fma) for fma in Fma}


def render_shader(kernel: FragmentKernel, fma: Fma = Fma.DEVICE) -> Shader:
    """The shader of a verified kernel; equal kernels give equal text."""
    return render_kernel(kernel, _DIALECTS[fma])
