"""Triton source text -> device code, ahead of time and without a GPU.

Triton reads a kernel's source from its file, so the text is written to a folder of its own and
imported from there. A process started with TRITON_INTERPRET=1 cannot build.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from speccc.errors import UnsupportedError
from speccc.scratch import Scratch
from speccc.targets.build_error import BuildError
from speccc.targets.triton_calls import uniform_calls

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget

CUDA_ARCHS = (80, 86, 89, 90, 100, 103, 120)
# Lanes of a wave: 64 on GCN and CDNA, 32 on RDNA.
ROCM_WAVES = {"gfx906": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1151": 32, "gfx1201": 32}
CALLS = "phases' arguments in scalar registers"
"""Names what `uniform_calls` does, for keys of what is built."""

Scalar = int | float | bool


@dataclass(frozen=True)
class TritonKernel:
    """One kernel of a module's text.

    `signature` gives each run-time argument's Triton type in order ("*i8", "i32", "fp32");
    `constexprs` the values of the rest; `aligned` names pointers that are multiples of 16 bytes
    and integers that are multiples of 16, which is what lets loads become wide. `registers` is how
    many a CUDA thread may use: left to itself, ptxas spills some to keep more warps resident.
    """

    source: str
    name: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Scalar] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()
    warps: int = 4
    stages: int = 2
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """The compiler's outputs: `text` is PTX or AMDGCN assembly, `binary` a cubin or hsaco."""

    text: str
    binary: bytes
    shared_bytes: int


def build_cuda(kernel: TritonKernel, arch: int) -> Built:
    """PTX and cubin for compute capability `arch` (80 is 8.0)."""
    if arch not in CUDA_ARCHS:
        raise UnsupportedError(f"must be one of {CUDA_ARCHS}, not {arch}", where="cuda arch")
    return _build(kernel, "cuda", arch, 32, ("ptx", "cubin"))


def build_rocm(kernel: TritonKernel, gfx: str) -> Built:
    """Assembly and hsaco for one AMD chip, such as "gfx942"."""
    if gfx not in ROCM_WAVES:
        known = ", ".join(ROCM_WAVES)
        raise UnsupportedError(f"must be one of {known}, not {gfx}", where="rocm arch")
    return _build(kernel, "hip", gfx, ROCM_WAVES[gfx], ("amdgcn", "hsaco"))


def _uniform_calls(*build: Any) -> tuple[str, str] | None:
    """Triton's hook on its stages: the last of AMD's sees calls as `uniform_calls` makes them."""
    if not build:
        return CALLS, CALLS  # for the key of Triton's cache, and for its hash
    stages = build[1]
    assemble = stages["amdgcn"]
    stages["amdgcn"] = lambda ir, facts: assemble(uniform_calls(ir), facts)
    return None


def load_triton_module(source: str, folder: Path) -> ModuleType:
    """Import `source` from a file in `folder`. BuildError when the text is no module."""
    name = "speccc_triton_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BuildError("cannot be imported", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BuildError(f"{type(error).__name__}: {error}", where=name) from error
    return module


def _build(
    kernel: TritonKernel, backend: str, arch: int | str, lanes: int, outputs: tuple[str, str]
) -> Built:
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError:
        raise UnsupportedError(
            "not installed: pip install 'speccc[cuda]' (Linux)", where="triton"
        ) from None
    with Scratch() as folder:
        return _compile(kernel, GPUTarget(backend, arch, lanes), folder, outputs)


def _compile(
    kernel: TritonKernel, target: GPUTarget, folder: Path, outputs: tuple[str, str]
) -> Built:
    import triton
    from triton.compiler import ASTSource

    module = load_triton_module(kernel.source, folder)
    function = getattr(module, kernel.name, None)
    if not isinstance(function, triton.JITFunction):
        raise BuildError("not a @triton.jit function of the text", where=kernel.name)
    signature = {n: kernel.signature.get(n, "constexpr") for n in function.arg_names}
    attrs = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(function.arg_names)
        if name in kernel.aligned
    }
    source = ASTSource(function, signature, dict(kernel.constexprs), attrs)
    options: dict[str, object] = {
        "num_warps": kernel.warps,
        "num_stages": kernel.stages,
        # A contracted multiply-add rounds once: the bits would depend on what the compiler fused.
        "enable_fp_fusion": False,
    }
    if kernel.registers is not None and target.backend == "cuda":
        options["maxnreg"] = kernel.registers
    try:
        with triton.knobs.compilation.scope(), triton.knobs.runtime.scope():
            # Line numbers would bring the folder's name into the code: no two builds would agree.
            triton.knobs.compilation.disable_line_info = True
            if target.backend == "hip":
                triton.knobs.runtime.add_stages_inspection_hook = _uniform_calls
            done = triton.compile(source, target=target, options=options)
    except Exception as error:
        where = f"{kernel.name} for {target.arch}"
        raise BuildError(f"{type(error).__name__}: {error}", where=where) from error
    text, binary = (done.asm[name] for name in outputs)
    return Built(text, binary, done.metadata.shared)
