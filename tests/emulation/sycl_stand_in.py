"""Runs SYCL texts on this CPU, as the stand-in of Metal does MSL: races and all else it watches.

Unlike Intel's CPU device it has a matrix engine, so that the form of a text for GPUs runs too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from emulation.metal_stand_in import MetalStandIn, Param, StandInError, find_compiler
from speccc.targets.sycl.sycl import KERNEL_PREFIX
from speccc.targets.sycl_build import Form

HERE = Path(__file__).parent / "sycl"
INCLUDE = re.compile(r"#include <sycl/[\w/]+\.hpp>")
LOCAL = re.compile(r"syclexp::work_group_static<(\w+)\[(\w+)\]> (\w+);")
# The runner knows by their section what arrays the invocations of a work-group share.
SHARED = r'static __attribute__((section("threadgroup"))) \1 \3[\2];'


@dataclass
class SyclStandIn(MetalStandIn):
    """Compiles texts in one form and runs them; `lanes` is the sub-group of all of them."""

    form: Form = Form.JOINT

    def bound(self, text: str, entry: str, count: int) -> list[Param]:
        """The buffers; the last is the sizes', where the kernel has any."""
        params = parameters(text, entry)
        if len(params) != count:
            raise StandInError(f"{entry}: takes {len(params)} buffers, was given {count}")
        return params

    def source(self, text: str, entry: str) -> str:
        """Headers are the stand-in's, arrays in local memory those of one work-group at a time."""
        head = f'#define SPECCC_JOINT_MATRIX {self.form.value}\n#include "stand_in.hpp"\n'
        return head + LOCAL.sub(SHARED, INCLUDE.sub("", text)) + _call(text, entry)


def sycl_stand_in(folder: Path, lanes: int, form: Form = Form.JOINT) -> SyclStandIn:
    """A stand-in that builds in `folder`. StandInError without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise StandInError("no C++ compiler")
    return SyclStandIn(compiler, folder, lanes, HERE, form=form)


def parameters(text: str, entry: str) -> list[Param]:
    """A kernel's pointers, in order."""
    name = entry.removeprefix(KERNEL_PREFIX)
    found = re.search(rf"\nvoid {re.escape(name)}\(([^)]*)\) {{", text)
    if not found:
        raise StandInError(f"no kernel {name}")
    split = (p.rpartition(" ") for p in found[1].split(", "))
    return [Param(kind, name, "buffer", n) for n, (kind, _, name) in enumerate(split)]


def _call(text: str, entry: str) -> str:
    """The function the runner calls."""
    words = (f"({p.kind})buffers[{p.number}]" for p in parameters(text, entry))
    return f"""
extern "C" void stand_in_kernel(void* const* buffers, unsigned, unsigned, unsigned group,
                                unsigned groups) {{
    sycl::group_number = group, sycl::group_count = groups;
    {entry.removeprefix(KERNEL_PREFIX)}({", ".join(words)});
}}
"""
