"""The compilers and emulators that later tests stand on: they build, run, and refuse."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from emulation import require as requirement
from emulation.require import require
from emulation.triton_interpret import Array, InterpretError, Scalar, interpret
from emulation.vulkan_root import VulkanHome, find_vulkan
from emulation.vulkan_worker import MatrixShape, VulkanWorker, WorkerError

from speccc import vulkan_home
from speccc.errors import UnsupportedError
from speccc.targets.build_error import BuildError
from speccc.targets.glsl_build import (
    OLDEST_GLSLANG,
    compile_glsl,
    disassemble_spirv,
    glslang_version,
    validate_spirv,
)
from speccc.targets.triton_build import Built, TritonKernel, build_cuda, build_rocm

EMULATION = Path(__file__).with_name("emulation")
GLSL_MATMUL = (EMULATION / "glsl/matmul_s8.comp").read_text()
TRITON_MATMUL = (EMULATION / "triton/matmul_s8.py").read_text()
M, N, K = 16, 64, 128

Int8 = npt.NDArray[np.int8]


def operands() -> tuple[Int8, Int8, npt.NDArray[np.int32]]:
    """a [m, k], b [n, k] over all of s8, and the exact product."""
    rng = np.random.default_rng(7)
    a = rng.integers(-128, 128, (M, K), dtype=np.int8)
    b = rng.integers(-128, 128, (N, K), dtype=np.int8)
    return a, b, a.astype(np.int32) @ b.astype(np.int32).T


# ---------------------------------------------------------------------------------------- vulkan


@pytest.fixture(scope="module")
def home() -> VulkanHome:
    require("vulkan")
    found = find_vulkan()
    assert found is not None
    return found


@pytest.fixture
def worker(home: VulkanHome) -> Iterator[VulkanWorker]:
    with VulkanWorker(home) as running:
        yield running


def run_matmul(home: VulkanHome, worker: VulkanWorker, layout: int) -> npt.NDArray[np.generic]:
    a, b, _ = operands()
    out = worker.run(
        compile_glsl(GLSL_MATMUL, home.tools),
        [a, b, np.zeros((M, N), np.int32)],
        (N // 8, M // 8, 1),
        push=struct.pack("<II", N, K),
        constants={0: worker.query().min_subgroup, 1: layout},
        subgroup=worker.query().min_subgroup,
    )
    np.testing.assert_array_equal(out[0], a)
    np.testing.assert_array_equal(out[1], b)
    return out[2]


def test_glslang_is_new_enough(home: VulkanHome) -> None:
    assert glslang_version(home.tools) >= OLDEST_GLSLANG


def test_device_multiplies_s8_in_8x8x8(worker: VulkanWorker) -> None:
    info = worker.query()
    assert MatrixShape(8, 8, 8, "s8", "s8", "s32", "s32", False) in info.shapes
    assert MatrixShape(8, 8, 8, "f16", "f16", "f32", "f32", False) in info.shapes


def test_cooperative_matrix_product_is_exact(home: VulkanHome, worker: VulkanWorker) -> None:
    np.testing.assert_array_equal(run_matmul(home, worker, layout=1), operands()[2])


def test_wrong_fragment_layout_is_seen(home: VulkanHome, worker: VulkanWorker) -> None:
    wrong = np.count_nonzero(run_matmul(home, worker, layout=0) != operands()[2])
    assert wrong > M * N // 2


def test_spirv_has_the_matrix_instruction(home: VulkanHome) -> None:
    text = disassemble_spirv(compile_glsl(GLSL_MATMUL, home.tools), home.tools)
    assert "OpCooperativeMatrixMulAddKHR" in text


def test_refused_glsl_names_and_shows_the_line(home: VulkanHome) -> None:
    with pytest.raises(BuildError, match=r"(?s)bad: .*:3: 'y' .*3 \| int x = y;"):
        compile_glsl("#version 450\nvoid main() {\n  int x = y;\n}\n", home.tools, name="bad")


def test_broken_spirv_is_refused(home: VulkanHome) -> None:
    spirv = compile_glsl(GLSL_MATMUL, home.tools)
    with pytest.raises(BuildError):
        validate_spirv(spirv[:-8], home.tools)


def test_a_hang_is_killed(home: VulkanHome) -> None:
    text = """#version 450
    layout(local_size_x = 1) in;
    layout(set = 0, binding = 0) buffer A { volatile uint a[]; };
    void main() { while (a[0] == 0u) { a[1] += 1u; } }
    """
    spirv = compile_glsl(text, home.tools)
    with VulkanWorker(home) as worker:
        assert worker.run(spirv, [np.ones(2, np.uint32)])[0][1] == 1  # it ends
        worker._timeout_s = 2.0
        with pytest.raises(WorkerError, match="no answer in 2 s"):
            worker.run(spirv, [np.zeros(2, np.uint32)])
        with pytest.raises(WorkerError):
            worker.query()


def test_a_bad_request_is_reported(home: VulkanHome, worker: VulkanWorker) -> None:
    spirv = compile_glsl(GLSL_MATMUL, home.tools)
    with pytest.raises(WorkerError, match="33 buffers, 32 at most"):
        worker.run(spirv, [np.zeros(1, np.int8)] * 33)


# ---------------------------------------------------------------------------------------- triton


def triton_matmul(bm: int, bn: int) -> TritonKernel:
    signature = {"a": "*i8", "b": "*i8", "c": "*i32", "n": "i32", "k": "i32"}
    tile = {"BM": bm, "BN": bn, "BK": 64}
    aligned = frozenset(signature)
    return TritonKernel(TRITON_MATMUL, "matmul_s8", signature, tile, aligned)


@pytest.mark.parametrize(
    ("arch", "rows", "instruction"),
    [
        (80, 16, r"mma\.sync\.aligned\.m16n8k32\S*\.s8\.s8"),
        (90, 64, r"wgmma\.mma_async\S*\.s8\.s8"),
        (100, 64, r"tcgen05\.mma\S*kind::i8"),
        (120, 16, r"mma\.sync\.aligned\.m16n8k32\S*\.s8\.s8"),
    ],
)
def test_cuda_builds_use_matrix_instructions(arch: int, rows: int, instruction: str) -> None:
    require("triton")
    built = build_cuda(triton_matmul(rows, 64), arch)
    assert re.search(instruction, built.text)
    assert f".target sm_{arch}" in built.text
    assert built.binary.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("gfx", "instruction"),
    [
        ("gfx906", "v_dot4_i32_i8"),
        ("gfx942", "v_mfma_i32_16x16x32_i8"),
        ("gfx1100", "v_wmma_i32_16x16x16_iu8"),
        ("gfx1201", "v_wmma_i32_16x16x16_iu8"),
    ],
)
def test_rocm_builds_use_matrix_instructions(gfx: str, instruction: str) -> None:
    require("triton")
    built = build_rocm(triton_matmul(16, 64), gfx)
    assert re.search(rf"\b{instruction}\b", built.text)
    assert f'-unknown-{gfx}"' in built.text
    assert built.binary.startswith(b"\x7fELF")


FUSABLE = """
import triton
import triton.language as tl

@triton.jit
def axpy(x, y, z):
    tl.store(z, tl.load(x) * tl.load(y) + tl.load(z))
"""


def test_no_multiply_add_is_contracted() -> None:
    require("triton")
    kernel = TritonKernel(FUSABLE, "axpy", {"x": "*fp32", "y": "*fp32", "z": "*fp32"})
    assert not re.search(r"\bfma\.", build_cuda(kernel, 80).text)
    assert not re.search(r"\bv_(pk_)?(fma|mac|mad|fmac)", build_rocm(kernel, "gfx942").text)


def test_interpreted_product_is_exact() -> None:
    require("triton")
    a, b, expected = operands()
    args: dict[str, Array | Scalar] = {"a": a, "b": b, "c": np.zeros((M, N), np.int32)}
    args |= {"n": N, "k": K, "BM": 16, "BN": 32, "BK": 64}
    out = interpret(TRITON_MATMUL, "matmul_s8", (N // 32, M // 16), args)
    np.testing.assert_array_equal(out["c"], expected)
    part = interpret(TRITON_MATMUL, "matmul_s8", (1, M // 16), args)
    np.testing.assert_array_equal(part["c"][:, :32], expected[:, :32])
    assert not part["c"][:, 32:].any()


def test_an_interpreted_hang_is_killed() -> None:
    require("triton")
    source = "import triton\n@triton.jit\ndef spin(x):\n    while True:\n        pass\n"
    with pytest.raises(InterpretError, match="no result in"):
        interpret(source, "spin", (1,), {"x": np.zeros(1, np.float32)}, timeout_s=4.0)


def test_an_interpreted_error_is_reported() -> None:
    require("triton")
    with pytest.raises(InterpretError, match="absent"):
        interpret(TRITON_MATMUL, "absent", (1,), {})


def test_refused_triton_names_the_kernel() -> None:
    require("triton")
    with pytest.raises(BuildError, match=r"absent: not a @triton\.jit function"):
        build_cuda(TritonKernel(TRITON_MATMUL, "absent", {}), 80)
    with pytest.raises(BuildError, match="matmul_s8 for 80"):
        build_cuda(triton_matmul(24, 64), 80)  # Triton wants powers of two
    with pytest.raises(BuildError, match="SyntaxError"):
        build_rocm(TritonKernel("def", "f", {}), "gfx942")


@pytest.mark.parametrize("build", [lambda k: build_cuda(k, 70), lambda k: build_rocm(k, "gfx1")])
def test_unknown_chips_are_refused(build: Callable[[TritonKernel], Built]) -> None:
    with pytest.raises(UnsupportedError, match="must be one of"):
        build(triton_matmul(16, 64))


# ------------------------------------------------------------------------------------------ needs


def test_an_absent_toolchain_fails_in_ci_and_skips_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(requirement.NEEDS, "vulkan", (lambda: False, "the thing: install it"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI must have the thing: install it"):
        require("vulkan")
    monkeypatch.setitem(requirement.NEEDS, "xe", (lambda: False, "another: get it"))
    with pytest.raises(pytest.skip.Exception, match="needs another: get it"):
        require("xe")  # this one may be absent even there
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="needs the thing: install it"):
        require("vulkan")


def test_a_compiler_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(words: Sequence[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(words, 60)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(UnsupportedError, match=r"slow\.c: no answer in 60 s from \S+"):
        vulkan_home.VulkanHome().build(Path("slow.c"))
