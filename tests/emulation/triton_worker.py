"""The process behind `TritonMachine`: requests as lines of JSON in, "ok" or a traceback a line out.

Arrays are files that both processes map, so a kernel's writes are seen without copying.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton_engine import create_dot

from speccc.scratch import Scratch
from speccc.targets.triton_build import load_triton_module


@cache
def _tensor(path: str, dtype: str, count: int, at: int) -> torch.Tensor:
    return torch.from_numpy(np.memmap(path, dtype=dtype, mode="r+", shape=(count,), offset=at))


@cache
def _module(source: str, folder: Path) -> ModuleType:
    return load_triton_module(source, folder)


@cache
def _kernel(path: str, name: str, folder: Path) -> Any:
    """The last function of a text. What stands before it is made once for all texts that share it:
    Triton's rewriting of functions took as long as running them."""
    called, mark, own = Path(path).read_text(encoding="utf-8").rpartition("@triton.jit\n")
    before = _module(called, folder)
    imports = "import triton\nimport triton.language as tl\n\n\n"
    module = load_triton_module(f"{imports}{mark}{own}", folder)
    vars(module).update({n: v for n, v in vars(before).items() if not n.startswith("__")})
    return getattr(module, name)


def _run(kernel: Any, grid: tuple[int, ...], program: int | None, args: dict[str, Any]) -> None:
    """All programs of the grid, or the one of a line of them.

    A launch of Triton's would, at its end, copy each array onto itself, and so undo what another
    process stored meanwhile: a single program is called as `GridExecutor` calls it, without that.
    """
    if program is None:
        kernel[grid](**args)
        return
    function = kernel.rewrite()
    patched = interpreter._patch_lang(function)
    try:
        interpreter.interpreter_builder.set_grid_dim(*grid, 1, 1)
        interpreter.interpreter_builder.set_grid_idx(program, 0, 0)
        function(**{name: interpreter._implicit_cvt(a) for name, a in args.items()})
    finally:
        patched.restore()


class _Patient(interpreter.InterpreterBuilder):
    """A program that looks at a word again and again leaves the CPU to those it waits for."""

    create_dot = create_dot

    def create_atomic_load(self, *args: Any) -> Any:
        # Looking costs the interpreter as much as some work does: seldom is often enough.
        time.sleep(3e-3)
        return super().create_atomic_load(*args)


def _patch_once(fn: Any) -> Any:
    """Triton patches its modules anew for each function that a kernel calls, to the same effect."""
    seen = [m for m in fn.__globals__.values() if m is tl or m is tl.core]
    if any(tl.core.is_builtin(m.load) for m in seen):
        return _patch_lang(fn)
    return interpreter._LangPatchScope()


def _scales(handle: Any, compute: Any) -> Any:
    """Scales of `dot_scaled` as f32. Triton 3.9 takes each for a power of two, ue4m3 too."""
    if handle.dtype != tl.float8e4nv:
        return _powers(handle, compute)
    return torch.from_numpy(handle.data).view(torch.float8_e4m3fn).to(torch.float32).numpy()


def _block_type(self: tl.block_type, element_ty: tl.dtype, shape: Sequence[Any]) -> None:
    """A tile's type. Triton would check its shape and print its name each time that it is made."""
    sizes = tuple([s.value if isinstance(s, tl.constexpr) else s for s in shape])
    known = _TYPES.get((element_ty.name, sizes))
    if known is None:
        _new_block_type(self, element_ty, list(sizes))
        known = _TYPES[element_ty.name, sizes] = dict(vars(self))
    vars(self).update(known)


def _value(self: tl.tensor, handle: Any, type: tl.dtype) -> None:
    """A value; the shape of a type is worked out once."""
    known = _SHAPES.get(type.name)
    if known is None:
        _new_tensor(self, handle, type)
        _SHAPES[type.name] = (self.shape, self.numel)
        return
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = known


_SHAPES: dict[str, tuple[Any, Any]] = {}
_new_tensor = tl.tensor.__init__
_TYPES: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
_new_block_type = tl.block_type.__init__
_patch_lang = interpreter._patch_lang
_powers = interpreter._dot_scaled_scale_to_f32


def main() -> None:
    """Answers until the input ends."""
    interpreter.interpreter_builder.__class__ = _Patient
    interpreter._dot_scaled_scale_to_f32 = _scales
    interpreter._patch_lang = _patch_once
    tl.block_type.__init__, tl.tensor.__init__ = _block_type, _value
    # The check of each sum for overflow ends in an assert that is off without `debug`: all in vain.
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    with Scratch() as folder:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                kernel = _kernel(request["source"], request["kernel"], folder)
                tensors = {k: _tensor(*v) for k, v in request["arrays"].items()}
                args, grid = {**tensors, **request["scalars"]}, tuple(request["grid"])
                with np.errstate(all="ignore"):
                    _run(kernel, grid, request["program"], args)
                answer = "ok"
            except Exception:
                answer = traceback.format_exc()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
