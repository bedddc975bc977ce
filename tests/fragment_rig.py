"""What the tests of fragment-level kernels share: lowering the proof program and running it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from emulation.vulkan_root import VulkanHome
from emulation.vulkan_worker import VulkanWorker
from proof_program import Proof, inputs

from speccc.ir.expr import Var
from speccc.ir.fragment import Barrier, FragmentKernel, MmaShape, Subgroups
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.plan import size_of
from speccc.ir.tile import Buf, For, Kernel, RowTiles, Share, Stmt
from speccc.ir.types import I8, I32
from speccc.passes.dot_to_fragment import DotToFragment
from speccc.targets.glsl_build import compile_glsl
from speccc.targets.vulkan.render import Shader

Array = npt.NDArray[Any]
SUBGROUP = 8


def s8(m: int, n: int, k: int) -> MmaShape:
    """An i8 x i8 -> i32 instruction."""
    return MmaShape(I8, I8, I32, m, n, k)


def lowered(kernel: Kernel, shape: MmaShape | None = None, subgroups: int = 2) -> FragmentKernel:
    """The kernel at fragment level, for 8x8x8 unless told."""
    return DotToFragment(shape or s8(8, 8, 8), SUBGROUP, subgroups).run(kernel)


def golden(p: Proof, m: int) -> Array:
    """y by the block-level interpreter."""
    bufs = inputs(p, m)
    run_kernel(p.kernel, bufs, {p.m: m})
    return bufs[p.y]


def interpreted(p: Proof, kernel: FragmentKernel, m: int, groups: int = 1) -> Array:
    """y by the fragment-level interpreter."""
    bufs = inputs(p, m)
    run_fragment_kernel(kernel, bufs, {p.m: m}, groups=groups)
    return bufs[p.y]


def dispatched(
    home: VulkanHome,
    worker: VulkanWorker,
    shader: Shader,
    bufs: Mapping[Buf, Array],
    scalars: Mapping[Var, int],
    groups: int,
) -> dict[Buf, Array]:
    """The buffers after one dispatch of `groups` workgroups; SCRATCH starts out as garbage."""
    given = []
    for buf in shader.buffers:
        shape = (groups, *(size_of(d, scalars) for d in buf.shape))
        garbage = np.full(shape, 0x55, np.uint8).astype(buf.dtype.numpy)
        given.append(bufs.get(buf, garbage))
    out = worker.run(
        compile_glsl(shader.text, home.tools, name=shader.name),
        given,
        (groups, 1, 1),
        push=b"".join(struct.pack("<i", scalars[v]) for v in shader.scalars),
        subgroup=shader.subgroup,
    )
    return dict(zip(shader.buffers, out, strict=True))


def rewritten(body: tuple[Stmt, ...], rule: Callable[[Stmt], Stmt | None]) -> tuple[Stmt, ...]:
    """The statements with each replaced by `rule`'s answer; None takes it out."""
    out: list[Stmt] = []
    for s in body:
        kept = rule(s)
        if isinstance(kept, RowTiles):
            variants = tuple((width, rewritten(b, rule)) for width, b in kept.variants)
            kept = replace(kept, variants=variants)
        elif isinstance(kept, (For, Share, Subgroups)):
            kept = replace(kept, body=rewritten(kept.body, rule))
        out += [] if kept is None else [kept]
    return tuple(out)


def without_barrier(kernel: FragmentKernel, number: int) -> FragmentKernel:
    """The kernel less its barrier `number`, in order of the text."""
    seen = iter(range(1 << 30))

    def rule(s: Stmt) -> Stmt | None:
        return None if isinstance(s, Barrier) and next(seen) == number else s

    return with_body(kernel, rewritten(kernel.body, rule))


def with_body(kernel: FragmentKernel, body: tuple[Stmt, ...]) -> FragmentKernel:
    """The kernel with other statements."""
    return FragmentKernel(kernel.name, kernel.bufs, kernel.scalars, kernel.group, body)
