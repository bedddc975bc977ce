"""`tl.dot` of floats in Triton's interpreter as a poor matrix engine.

Triton 3.9 takes the bits of a bf16 for an integer, and leaves the order of a sum to a library,
which may let it depend on the shape of a tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from engine_sum import engine_sum
from triton.runtime import interpreter

from speccc.ir.interp_expr import cast
from speccc.ir.matrix_engine import ENGINES
from speccc.ir.minifloat import MINIFLOATS
from speccc.ir.types import BF16, E4M3, F16, F32, DType

ENGINE = {tl.float16: F16, tl.bfloat16: BF16, tl.float8e4nv: E4M3}
_by_library = interpreter.InterpreterBuilder.create_dot


def create_dot(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    """A method of the interpreter's builder."""
    engine = ENGINE.get(a.dtype.scalar)
    if engine is None:
        return _by_library(builder, a, b, d, *options)
    left, right = (_floats(x.data, engine) for x in (a, b))
    total = engine_sum(left, right, d.data, ENGINES[engine].fraction)
    return interpreter.TensorHandle(total, d.dtype.scalar)


def _floats(data: Any, dtype: DType) -> Any:
    """The f32 values of what the interpreter holds."""
    if dtype in MINIFLOATS:
        return MINIFLOATS[dtype].decode(data.view(np.uint8))
    return cast(data.view(dtype.numpy), dtype, F32)
