"""Dots of floats on the matrix engines of SYCL, Metal and Vulkan, as their emulations have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import metal_rig
import numpy as np
import pytest
from emulation.metal_stand_in import stand_in
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.sycl_kernel import launched
from emulation.vulkan_root import find_vulkan
from emulation.vulkan_worker import VulkanWorker
from engine_rig import Product, check, fails, product, swapped_steps
from fragment_rig import Array, dispatched
from golden_text import check_golden

from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.formats import FORMATS
from speccc.ir.fragment import FragmentKernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.packed import PackedMatrix
from speccc.ir.plan import Plan
from speccc.ir.tile import LANES, Axis, Buf, Kernel, Map, RowTiles, Share, Stmt
from speccc.ir.types import F32, U8
from speccc.passes.tile_matmul import Operand, accumulate, prepare_rows
from speccc.targets.clike.render import KernelText
from speccc.targets.glsl_build import compile_glsl
from speccc.targets.registry import target, target_names
from speccc.targets.report import kernel_facts
from speccc.targets.sycl.render import render_sycl
from speccc.targets.sycl_build import Form, compile_sycl, find_sycl_compiler
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import render_shader

K, N, M = 100, 20, 11
MULTIPLY_ADD = "OpCooperativeMatrixMulAddKHR"
Bufs = dict[Buf, Array]
Launch = Callable[[KernelText, Bufs, dict], dict]
Render = Callable[[FragmentKernel], KernelText]
TARGETS = {"sycl": "sycl:bmg", "metal": "metal:m4", "vulkan": "vulkan:lavapipe"}
RENDER: dict[str, Render] = {
    "sycl": render_sycl,
    "metal": metal_rig.rendered,
    "vulkan": lambda kernel: render_shader(kernel, Fma.PAIRS),
}
TITLES = {"sycl": "SYCL", "metal": "Metal", "vulkan": "Vulkan"}
ENDINGS = {"sycl": "cpp", "metal": "metal", "vulkan": "comp"}
PAIRS = [(b, f) for b in TARGETS for f in ("f16", "bf16", "fp8") if (b, f) != ("vulkan", "bf16")]
"""Vulkan's matrices of bf16 are an extension of their own."""


@pytest.fixture(scope="module")
def sycl() -> Iterator[Launch]:
    require("sycl")
    with SyclCpu() as device:
        yield lambda text, bufs, sizes: launched(device, text, bufs, sizes)


@pytest.fixture(scope="module")
def metal(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    require("metal")
    machine = stand_in(tmp_path_factory.mktemp("metal"))
    return lambda text, bufs, sizes: metal_rig.launched(machine, text, bufs, sizes)


@pytest.fixture(scope="module")
def vulkan() -> Iterator[Launch]:
    require("vulkan")
    home = find_vulkan()
    assert home is not None
    with VulkanWorker(home) as worker:
        yield lambda text, bufs, sizes: dispatched(home, worker, text, bufs, sizes, groups=2)


def lowered(backend: str, p: Product) -> FragmentKernel:
    return target(TARGETS[backend]).lowering.run(p.kernel)


def runner(
    backend: str, p: Product, kernel: FragmentKernel, request: pytest.FixtureRequest
) -> Callable[[Bufs], Array]:
    launch: Launch = request.getfixturevalue(backend)
    text = RENDER[backend](kernel)
    return lambda bufs: launch(text, bufs, {p.m: len(bufs[p.x])})[p.y]


@pytest.mark.parametrize(("backend", "fmt"), PAIRS)
def test_a_product_is_near_golden_and_its_rows_alike(
    backend: str, fmt: str, request: pytest.FixtureRequest
) -> None:
    """A tail of k, and rows that fill no fragment; any number of rows gives a row's bits."""
    p = product(fmt, N, K)
    check(p, runner(backend, p, lowered(backend, p), request), M)


@pytest.mark.parametrize("backend", TARGETS)
def test_a_step_of_k_read_elsewhere_fails_the_bound(
    backend: str, request: pytest.FixtureRequest
) -> None:
    p = product("f16", N, 64)
    fails(p, runner(backend, p, swapped_steps(lowered(backend, p)), request))


def two_products() -> tuple[Kernel, Var, tuple[Buf, ...], tuple[PackedMatrix, ...]]:
    """y [m, 64] = x times q8_0 weights, then times f16 ones; x, both blobs, y."""
    m, unit, row, k = Var("m"), Var("unit"), Var("row"), 96
    ws = tuple(PackedMatrix(FORMATS[f], N, k) for f in ("q8_0", "f16"))
    x, y = Buf("x", (m, k), F32), Buf("y", (m, 4 * LANES), F32)
    blobs = tuple(Buf(f"w_{w.format.name}", (w.nbytes,), U8) for w in ws)
    rows, body = prepare_rows(lambda r, c: Load(x, (r, c)), None, m, k, ws, activations="f16")

    def tile(width: int) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for n, (w, blob) in enumerate(zip(ws, blobs, strict=True)):
            acc, computed = accumulate(
                f"acc_{n}", width, rows, Operand(w, blob, ex.lit(0)), row, unit
            )
            i, j = Var("i"), Var("j")
            at = (ex.add(row, i), ex.add(ex.mul(ex.add(unit, 2 * n), LANES), j))
            axes = (Axis(i, width), Axis(j, LANES))
            out += [*computed, Map(y, at, axes, Load(acc, (i, j)))]
        return tuple(out)

    tiles = RowTiles(row, m, tuple((width, tile(width)) for width in (8, 4, 2, 1)))
    bufs = (x, *blobs, y)
    return Kernel("two", bufs, (m,), (*body, Share(unit, 2, (tiles,)))), m, bufs, ws


@pytest.mark.parametrize("backend", TARGETS)
def test_one_kernel_has_instructions_for_bytes_and_for_halves(
    backend: str, request: pytest.FixtureRequest
) -> None:
    """The integers' half has golden's bits, the floats' half others near them."""
    kernel, m, (x, *blobs, y), ws = two_products()
    rng = np.random.default_rng(1)
    arrays = {x: rng.standard_normal((M, 96)).astype(np.float32), y: np.zeros((M, 64), np.float32)}
    for w, blob in zip(ws, blobs, strict=True):
        values = rng.standard_normal((N, 96)).astype(np.float32)
        arrays[blob] = w.pack(w.format.encode(values).reshape(-1))
    lowering = target(TARGETS[backend]).lowering
    text = RENDER[backend](lowering.run(kernel))
    shapes = sorted({str(lowering.shape), str(lowering.floats[0])})
    assert text.text.startswith(
        f"// two for {TITLES[backend]}, {', '.join(shapes)}", text.text.index("// two")
    )
    launch: Launch = request.getfixturevalue(backend)
    got = launch(text, {b: a.copy() for b, a in arrays.items()}, {m: M})[y]
    run_kernel(kernel, arrays, {m: M})
    np.testing.assert_array_equal(got[:, :32], arrays[y][:, :32])
    off = np.abs(got - arrays[y])[:, 32:]
    assert 0 < off.max() < 1e-4 * np.abs(arrays[y]).max()


@pytest.mark.parametrize("backend", TARGETS)
def test_golden_texts(backend: str, request: pytest.FixtureRequest) -> None:
    """Of halves, which all have."""
    text = RENDER[backend](lowered(backend, product("f16", N, K))).text
    check_golden(f"{backend}/product_f16.{ENDINGS[backend]}", text, request)


@pytest.mark.parametrize("fmt", ["f16", "bf16", "fp8"])
def test_sycl_asks_for_the_engine(fmt: str) -> None:
    require("sycl")
    compiler = find_sycl_compiler()
    assert compiler is not None
    text = render_sycl(lowered("sycl", product(fmt, N, K)))
    spirv = compile_sycl(text.text, compiler, Form.JOINT, name=text.name)
    assert kernel_facts({"spv": spirv}).instructions == {MULTIPLY_ADD: 1}


@pytest.mark.parametrize("fmt", ["f16", "f32"])
def test_a_vulkan_device_is_asked_for_what_a_plan_multiplies(fmt: str) -> None:
    """Matrices of halves only where a kernel has some."""
    kernel = product(fmt, N, K).kernel
    plan = Plan("step", kernel.scalars, (), (kernel,))
    needs = target("vulkan:lavapipe")._needs(plan)
    assert (needs.matrix, needs.halves) == ((8, 8, 8), (8, 8, 8) if fmt == "f16" else None)


@pytest.mark.parametrize("name", [n for n in target_names() if n.startswith("vulkan:")])
@pytest.mark.parametrize("fmt", ["f16", "fp8"])
def test_every_vulkan_profile_builds(name: str, fmt: str) -> None:
    """With its instruction of halves if it has one; spirv-val has nothing to say."""
    require("vulkan")
    home = find_vulkan()
    assert home is not None
    lowering = target(name).lowering
    text = render_shader(lowering.run(product(fmt, N, K).kernel))
    found = kernel_facts({"spv": compile_glsl(text.text, home.tools, name=text.name)}).instructions
    assert found == ({MULTIPLY_ADD: 1} if lowering.floats else {})
