"""A rendered SYCL kernel on the CPU device: compiled once, run over arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from built_once import shared

from emulation.sycl_cpu import SyclCpu
from speccc.ir.expr import Var
from speccc.ir.fragment import FragmentKernel
from speccc.ir.plan import size_of
from speccc.ir.tile import Buf
from speccc.targets.clike.render import KernelText
from speccc.targets.sycl.render import render_sycl
from speccc.targets.sycl_build import Form, compile_sycl, find_sycl_compiler

Array = npt.NDArray[Any]


@cache
def built(text: str, name: str, form: Form = Form.PORTABLE) -> bytes:
    """The SPIR-V of a text; built once in all processes of a run."""
    compiler = find_sycl_compiler()
    assert compiler is not None
    key = hashlib.sha256(repr((compiler, form, name, text)).encode()).hexdigest()
    made = shared().get(key)
    if made is None:
        made = compile_sycl(text, compiler, form, name=name)
        shared().put(key, made)
    return made


def launched(
    device: SyclCpu,
    kernel: FragmentKernel | KernelText,
    bufs: Mapping[Buf, Array],
    scalars: Mapping[Var, int],
    groups: int = 2,
) -> dict[Buf, Array]:
    """The buffers after one launch; SCRATCH starts out as garbage."""
    text = kernel if isinstance(kernel, KernelText) else render_sycl(kernel)
    given: dict[Buf, Array] = {}
    for buf in text.buffers:
        shape = (groups, *(size_of(d, scalars) for d in buf.shape))
        garbage = np.full(shape, 0x55, np.uint8).astype(buf.dtype.numpy)
        given[buf] = bufs.get(buf, garbage)
    names = {buf: f"{n} {buf.name}" for n, buf in enumerate(text.buffers)}
    for buf, array in given.items():
        device.put(names[buf], array)
    device.run(
        built(text.text, text.name),
        text.entry,
        list(names.values()),
        [scalars[v] for v in text.scalars],
        groups=groups,
        local=text.group.invocations,
    )
    return {buf: device.get(names[buf], array) for buf, array in given.items()}
