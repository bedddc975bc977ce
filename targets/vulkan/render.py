"""Fragment-level kernel -> one GLSL compute shader, and how to bind and call it."""

from __future__ import annotations

from collections.abc import Sequence

from speccc.ir.expr import Var
from speccc.ir.fragment import FragmentKernel
from speccc.targets.clike.render import KernelText, render_kernel
from speccc.targets.vulkan.glsl import glsl
from speccc.targets.vulkan.glsl_prelude import Fma

Shader = KernelText
"""Binding n of set 0 is `buffers[n]`; the push constants are the scalars, in order.

Scalars that are `sizes` of a plan are no push constants but lie in a uniform buffer at the next
binding, each at its number among the sizes, times four: a recorded launch can be run again with
other sizes.
"""


def render_shader(
    kernel: FragmentKernel, fma: Fma = Fma.DEVICE, sizes: Sequence[Var] = ()
) -> Shader:
    """The shader of a verified kernel; equal kernels give equal text."""
    return render_kernel(kernel, glsl(fma, tuple(sizes)))
