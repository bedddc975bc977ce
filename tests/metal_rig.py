"""What the tests of Metal share: kernels at fragment level for it, and one launch of a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from emulation.metal_stand_in import MetalStandIn
from fragment_rig import Array

from speccc.ir.expr import Var
from speccc.ir.fragment import FragmentKernel, MmaShape
from speccc.ir.plan import size_of
from speccc.ir.tile import Buf, Kernel
from speccc.ir.types import F16, F32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.targets.clike.render import KernelText, render_kernel
from speccc.targets.metal.msl import MSL

HALVES = MmaShape(F16, F16, F32, 8, 8, 8)
SIMDGROUP = 32


def lowered(kernel: Kernel, simdgroups: int = 2) -> FragmentKernel:
    """The kernel at fragment level, for simdgroup matrices of halves."""
    return DotToFragment(HALVES, SIMDGROUP, simdgroups).run(kernel)


def without_matrices(kernel: Kernel, simdgroups: int = 2) -> FragmentKernel:
    """The kernel at fragment level, its quantized dots by the threads."""
    return DotToFragment(None, SIMDGROUP, simdgroups).run(kernel)


def rendered(kernel: FragmentKernel) -> KernelText:
    """Its MSL."""
    return render_kernel(kernel, MSL)


def launched(
    stand_in: MetalStandIn,
    text: KernelText,
    bufs: Mapping[Buf, Array],
    scalars: Mapping[Var, int],
    *,
    groups: int = 2,
    order: int = 0,
    files: Mapping[str, Path] | None = None,
) -> dict[Buf, Array]:
    """The buffers after one launch; SCRATCH is undefined before it. `files` hold some, by name."""
    given, undefined = [], []
    held = {n: files[b.name] for n, b in enumerate(text.buffers) if files and b.name in files}
    for n, buf in enumerate(text.buffers):
        if buf not in bufs:
            undefined.append(n)
        shape = (groups, *(size_of(d, scalars) for d in buf.shape))
        given.append(bufs[buf] if buf in bufs else np.zeros(shape, buf.dtype.numpy))
    if text.scalars:
        given.append(np.array([scalars[v] for v in text.scalars], np.int32))
    out = stand_in.run(
        text.text,
        text.entry,
        given,
        groups=groups,
        simdgroups=text.group.subgroups,
        undefined=undefined,
        order=order,
        files=held,
    )
    return dict(zip(text.buffers, out[: len(text.buffers)], strict=True))
