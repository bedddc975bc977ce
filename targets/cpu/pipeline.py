"""The TVM passes our TensorIR needs: it is flat, vectorised and free of blocks already.

TVM's default pipeline also simplifies and repartitions loops. Here divisions truncate and
intrinsics are LLVM's own, so nothing is left to legalise: LLVM receives what the renderer wrote.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.tirx import compilation_pipeline

NAME = "speccc_cpu"


def _pipeline() -> tuple[tvm.transform.Pass, object, object]:
    passes = [
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    return (
        tvm.ir.transform.Sequential(passes),
        _finalize,
        compilation_pipeline.finalize_device_passes,
    )


def _finalize() -> tvm.transform.Pass:
    return tvm.ir.transform.Sequential([])


def register() -> str:
    """Makes the pipeline known to TVM and returns its name."""
    compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
    return NAME
