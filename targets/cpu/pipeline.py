"""The TVM passes our TensorIR needs: it is flat, vectorised and free of blocks already.

TVM's default pipeline also simplifies and repartitions loops. Here divisions truncate and
intrinsics are LLVM's own, so nothing is left to legalise: LLVM receives what the renderer wrote.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.tirx import compilation_pipeline

VERSION = 1
"""Raised when the same text is built into other code."""
PACKED = "speccc_cpu_packed"
PLAIN = "speccc_cpu_plain"


def _packed() -> tuple[tvm.transform.Pass, object, object]:
    passes = [
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    return (
        tvm.ir.transform.Sequential(passes),
        _nothing,
        compilation_pipeline.finalize_device_passes,
    )


def _plain() -> tuple[tvm.transform.Pass, object, object]:
    return _nothing(), _nothing, compilation_pipeline.finalize_device_passes


def _nothing() -> tvm.transform.Pass:
    return tvm.ir.transform.Sequential([])


def register(*, packed: bool) -> str:
    """Makes the pipeline known to TVM and returns its name: packed calls, or plain C ones."""
    name, passes = (PACKED, _packed) if packed else (PLAIN, _plain)
    compilation_pipeline.register_tir_pipeline(name, passes)
    return name
