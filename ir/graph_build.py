"""Short functions that make graph values, for builders, passes and tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from speccc.ir import ops, ops_state
from speccc.ir.graph import Value, apply, node
from speccc.ir.ops import Fn
from speccc.ir.types import DTYPES, F32, Dim, DType, TensorType


def param(name: str, shape: tuple[Dim, ...], dtype: DType = F32) -> Value:
    """A graph parameter."""
    return apply(ops.Input(name, TensorType(shape, dtype)), origin=name)


def weight(name: str, t: TensorType) -> Value:
    """A tensor of the model."""
    return apply(ops.Weight(name, t), origin=name)


def constant(x: npt.ArrayLike, dtype: DType = F32) -> Value:
    """A small tensor of f32 (or another NumPy-representable type)."""
    data = np.asarray(x, dtype.numpy)
    return apply(ops.Constant(TensorType(data.shape, DTYPES[dtype.name]), data.tobytes()))


def matmul(x: Value, *weights: Value, origin: str = "") -> tuple[Value, ...]:
    """x times each transposed weight."""
    n = node(ops.Matmul(), (x, *weights), origin=origin)
    return tuple(Value(n, i) for i in range(len(weights)))


def map_(fn: Fn, *xs: Value, origin: str = "") -> Value:
    """An elementwise function."""
    return apply(ops.Map(fn), *xs, origin=origin)


def add(a: Value, b: Value, origin: str = "") -> Value:
    """a + b."""
    return map_(Fn.ADD, a, b, origin=origin)


def mul(a: Value, b: Value, origin: str = "") -> Value:
    """a * b."""
    return map_(Fn.MUL, a, b, origin=origin)


def reshape(x: Value, *shape: Dim, origin: str = "") -> Value:
    """The same elements under another shape."""
    return apply(ops.Reshape(shape), x, origin=origin)


def transpose(x: Value, *perm: int, origin: str = "") -> Value:
    """Axes permuted."""
    return apply(ops.Transpose(perm), x, origin=origin)


def repeat(x: Value, axis: int, times: int, origin: str = "") -> Value:
    """Each element of an axis `times` in a row."""
    return apply(ops.Repeat(axis, times), x, origin=origin)


def cast(x: Value, dtype: DType, origin: str = "") -> Value:
    """x as `dtype`; x itself if it is that already."""
    return x if x.type.elem == dtype else apply(ops.Cast(dtype), x, origin=origin)


def cache_append(cache: Value, new: Value, length: Value, origin: str = "") -> Value:
    """The cache with new rows at `length`."""
    return apply(ops_state.CacheAppend(), cache, new, length, origin=origin)
