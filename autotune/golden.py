"""A compiled step against the NumPy machine, on a case small enough to interpret: the plan with one
layer, a few rows, and a few units of the last kernel that reads weights.

What a kernel does does not depend on the layer or on the number of units, so this runs all code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from speccc.ir import expr as ex
from speccc.ir.expr import Var
from speccc.ir.interp_tile import run_kernel
from speccc.ir.plan import Loop, Plan, Role, Step, phases, size_of
from speccc.ir.tile import Buf, Kernel, ScaledDot, Share, Stmt, walk
from speccc.runtime.aligned import aligned
from speccc.runtime.devices.cpu import CpuStep
from speccc.runtime.rows import chain
from speccc.runtime.session import sizes_of
from speccc.targets.cpu.built import Signature

Array = npt.NDArray[Any]
ROWS = 3
UNITS = 4
UNTOUCHED = 0x5A
"""Every byte of an output before anything is written."""


class Code(Protocol):
    """What a target made of a plan."""

    @property
    def signature(self) -> Signature:
        """How to call it."""

    @property
    def library(self) -> bytes:
        """A shared library."""


def one_layer(plan: Plan) -> Plan:
    """The plan with every loop run once."""
    return replace(plan, body=_once(plan.body))


def _once(body: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(
        replace(s, extent=1, body=_once(s.body)) if isinstance(s, Loop) else s for s in body
    )


def differs(plan: Plan, built: Code, weights: Mapping[str, Array]) -> str:
    """The first buffer of a `one_layer` plan in which code and machine differ; nothing if none.

    `weights` are the packed arrays by buffer name; RoPE tables are random numbers.
    """
    sizes = _sizes(plan, weights)
    given = _arrays(plan, sizes, weights)
    results = {b.buf for b in plan.bufs if b.role in (Role.STATE, Role.OUTPUT)}
    ours = {b: a.copy() if b in results else a for b, a in given.items()}
    _interpret(plan, ours, sizes)
    _run(plan, built, given, sizes)
    for b in plan.bufs:
        if b.buf not in results:
            continue
        mine, code = (_raw(side[b.buf]) for side in (ours, given))
        written = (mine != UNTOUCHED).any(axis=1) if b.role is Role.OUTPUT else slice(None)
        if not np.array_equal(mine[written], code[written]):
            return f"{b.buf.name} of the compiled step is not what the NumPy machine computes"
    return ""


def _raw(a: Array) -> npt.NDArray[np.uint8]:
    """The bytes of an array, one row an element."""
    return a.reshape(-1, 1).view(np.uint8)


def _sizes(plan: Plan, weights: Mapping[str, Array]) -> dict[Var, int]:
    known = {
        "m": ROWS,
        "length": 0,
        **sizes_of(tiles=1),
        "weight_bytes": weights["weights"].size,
        "vector_elements": weights["vectors"].size,
        "head_first": 0,
        "head_rows": ROWS,
        "head_logits": 1,
        "head_top": 0,
    }
    return {v: known[v.name] for v in plan.sizes}


def _arrays(plan: Plan, sizes: Mapping[Var, int], weights: Mapping[str, Array]) -> dict[Buf, Array]:
    rng = np.random.default_rng(0)
    out: dict[Buf, Array] = {}
    for b in plan.bufs:
        shape = tuple(size_of(d, sizes) for d in b.buf.shape)
        if b.buf.name in weights:
            out[b.buf] = weights[b.buf.name]
            continue
        a = out[b.buf] = aligned(shape, b.buf.dtype.numpy)
        if b.role is Role.INPUT:
            a[...] = _input(b.buf.name, shape)
        elif b.role is Role.WEIGHTS:
            a[...] = rng.uniform(-1, 1, shape)
        elif b.role is Role.OUTPUT:
            _raw(a)[...] = UNTOUCHED
    return out


def _input(name: str, shape: tuple[int, ...]) -> Array:
    depth, path = chain(ROWS, shape[-1])
    known: dict[str, Array] = {
        "tokens": np.arange(1, ROWS + 1),
        "positions": depth,
        "depth": depth,
        "path": path,
    }
    return known[name]


def _interpret(plan: Plan, arrays: Mapping[Buf, Array], sizes: Mapping[Var, int]) -> None:
    kernels = list(phases(plan.body))
    weighty = [
        n for n, k in enumerate(kernels) if any(isinstance(s, ScaledDot) for s in walk(k.body))
    ]
    last = max(weighty, default=len(kernels) - 1)
    env = {**sizes, **dict.fromkeys(_loop_variables(plan.body), 0)}
    for n, kernel in enumerate(kernels[: last + 1]):
        short = kernel if n < last else _shortened(kernel)
        bufs = {b: arrays[b] for b in kernel.bufs}
        run_kernel(short, bufs, {v: env[v] for v in kernel.scalars})


def _loop_variables(body: tuple[Step, ...]) -> list[Var]:
    return [v for s in body if isinstance(s, Loop) for v in (s.var, *_loop_variables(s.body))]


def _shortened(kernel: Kernel) -> Kernel:
    """The kernel with the first units of each share only."""

    def cut(s: Stmt) -> Stmt:
        if not isinstance(s, Share):
            return s
        return replace(s, extent=ex.minimum(ex.lit(s.extent), UNITS))

    return replace(kernel, body=tuple(cut(s) for s in kernel.body))


def _run(plan: Plan, built: Code, arrays: Mapping[Buf, Array], sizes: Mapping[Var, int]) -> None:
    signature = built.signature
    external = [arrays[b.buf] for b in plan.bufs if b.role is not Role.ACTIVATION]
    kinds = {"f32": np.float32, "i8": np.int8, "i32": np.int32}
    given = [*external, aligned((signature.arena,), np.float32)]
    given += [aligned((n,), kinds[name]) for name, n in signature.scratch.items()]
    library = np.frombuffer(built.library, np.uint8)
    by_name = {v.name: n for v, n in sizes.items()}
    CpuStep(library, plan.name, given)([by_name[n] for n in signature.sizes], 1)
