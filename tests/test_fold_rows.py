"""`FoldRows` and `LaneScan`: NumPy, lavapipe, Intel's CPU device and Metal's stand-in agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from emulation.metal_stand_in import MetalStandIn, StandInError, stand_in
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.sycl_kernel import launched as sycl_launched
from emulation.vulkan_root import VulkanHome, find_vulkan
from emulation.vulkan_worker import VulkanWorker
from fragment_rig import Array, dispatched
from hypothesis import given, settings
from hypothesis import strategies as st
from metal_rig import launched as metal_launched

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Apply, Fn, Load, Var
from speccc.ir.fragment import FoldRows, FragmentKernel, LaneScan, Workgroup, accesses
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_expr import fma
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.tile import Axis, Buf
from speccc.ir.types import F32, I32
from speccc.targets.clike.render import render_kernel
from speccc.targets.metal.msl import MSL
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import render_shader

MOST, TERMS, COLUMNS = 6, 7, 5


@dataclass(frozen=True)
class Sums:
    """y[u, i, j] = sum over q of dot4(x[u, i, q], w[u, q, j] + 3) for the first m of 6 rows i."""

    kernel: FragmentKernel
    m: Var
    x: Buf
    w: Buf
    y: Buf

    @property
    def statement(self) -> FoldRows:
        """What it does."""
        (found,) = self.kernel.body
        assert isinstance(found, FoldRows)
        return found

    def with_statement(self, s: FoldRows) -> FragmentKernel:
        """The kernel with another statement."""
        k = self.kernel
        return FragmentKernel(k.name, k.bufs, k.scalars, k.group, (s,))

    def arrays(self, m: int) -> dict[Buf, Array]:
        """Random words; y is 9 everywhere."""
        rng = np.random.default_rng(m)
        low, high = -(2**31), 2**31
        shapes = {self.x: (UNITS, MOST, TERMS), self.w: (UNITS, TERMS, COLUMNS)}
        words = {b: rng.integers(low, high, s).astype(np.int32) for b, s in shapes.items()}
        return {**words, self.y: np.full((UNITS, MOST, COLUMNS), 9, np.int32)}

    def want(self, m: int) -> Array:
        """y by plain NumPy."""
        bufs = self.arrays(m)
        x = bufs[self.x].view(np.int8).reshape(UNITS, MOST, TERMS, 4).astype(np.int32)
        w = (bufs[self.w] + 3).astype(np.int32).view(np.int8)
        w = w.reshape(UNITS, TERMS, COLUMNS, 4).astype(np.int32)
        y = bufs[self.y]
        y[:, :m] = np.einsum("uiqt,uqjt->uij", x, w)[:, :m]
        return y


UNITS = 4


def sums(split: int, group: Workgroup, rows: int | None = None) -> Sums:
    """With a number of rows for `m` in `rows` where that is known beforehand."""
    m = Var("m")
    x, w = Buf("x", (UNITS, MOST, TERMS), I32), Buf("w", (UNITS, TERMS, COLUMNS), I32)
    y = Buf("y", (UNITS, MOST, COLUMNS), I32)
    u, i, j, q, word, codes = (Var(n, *t) for n, *t in _VARS)
    held = ((word, Load(w, (u, q, j))), (codes, ex.add(word, 3)))
    value = Apply(Fn.DOT4, (Load(x, (u, i, q)), codes), I32)
    axes = (Axis(u, UNITS), Axis(j, COLUMNS))
    live = m if rows is None else rows
    s = FoldRows(y, (u, i, j), axes, Axis(i, live), MOST, q, 0, TERMS, split, held, value)
    return Sums(FragmentKernel("sums", (x, w, y), (m,), group, (s,)), m, x, w, y)


_VARS = (("u",), ("i",), ("j",), ("q",), ("word", I32), ("codes", I32))
SPLITS = {8: (1, 2, 8), 16: (1, 4), 32: (1, 2, 32)}
"""By size of a subgroup."""


# --------------------------------------------------------------------------------------- meaning


@given(st.integers(1, MOST), st.sampled_from([1, 2, 4, 8]), st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_the_golden_machine_sums_rows(m: int, split: int, subgroups: int) -> None:
    p = sums(split, Workgroup(8, subgroups))
    verify_fragment(p.kernel)
    bufs = p.arrays(m)
    run_fragment_kernel(p.kernel, bufs, {p.m: m})
    np.testing.assert_array_equal(bufs[p.y], p.want(m))


def test_more_rows_than_are_held_are_caught() -> None:
    p = sums(1, Workgroup(8, 1))
    short = p.with_statement(replace(p.statement, most=2))
    with pytest.raises(VerifyError, match="3 rows are summed where 2 are held"):
        run_fragment_kernel(short, p.arrays(3), {p.m: 3})
    fixed = sums(1, Workgroup(8, 1), rows=3)
    with pytest.raises(VerifyError, match="3 rows are summed where 2 are held"):
        verify_fragment(fixed.with_statement(replace(fixed.statement, most=2)))


@pytest.mark.parametrize("split", [0, 3, 16])
def test_only_whole_parts_of_a_subgroup_share_a_sum(split: int) -> None:
    with pytest.raises(VerifyError, match=f"{split} invocations of a subgroup of 8"):
        verify_fragment(sums(split, Workgroup(8, 2)).kernel)


def test_floats_have_an_order() -> None:
    p = sums(2, Workgroup(8, 1))
    y = Buf("y", p.y.shape, F32)
    value = ex.cast(p.statement.value, F32)
    kernel = p.with_statement(replace(p.statement, dst=y, value=value))
    with pytest.raises(VerifyError, match="rows of f32 are summed in no fixed order"):
        verify_fragment(replace_bufs(kernel, (p.x, p.w, y)))


def replace_bufs(kernel: FragmentKernel, bufs: tuple[Buf, ...]) -> FragmentKernel:
    return FragmentKernel(kernel.name, bufs, kernel.scalars, kernel.group, kernel.body)


def test_what_is_held_is_checked() -> None:
    p = sums(1, Workgroup(8, 1))
    s = p.statement
    (word, load), (codes, _) = s.held
    late = p.with_statement(replace(s, held=((codes, ex.add(word, 3)), (word, load))))
    with pytest.raises(VerifyError, match="variable word has no value"):
        verify_fragment(late)
    other = p.with_statement(replace(s, held=((word, ex.cast(load, F32)), s.held[1])))
    with pytest.raises(VerifyError, match="f32 is held in word of i32"):
        verify_fragment(other)


@dataclass(frozen=True)
class Product:
    """y[i, j] = chain of fma over k < m of a[i, k] * b[k, j], rows 0..6 dealt out to two parts."""

    kernel: FragmentKernel
    m: Var
    a: Buf
    b: Buf
    y: Buf

    def arrays(self) -> dict[Buf, Array]:
        """Normal floats; y is 9 everywhere."""
        rng = np.random.default_rng(2)
        given = {b: rng.standard_normal(b.shape).astype(np.float32) for b in (self.a, self.b)}  # type: ignore[arg-type]
        return {**given, self.y: np.full(self.y.shape, 9, np.float32)}  # type: ignore[arg-type]

    def want(self, m: int) -> Array:
        """y by the golden machine's own fused multiply-add."""
        bufs = self.arrays()
        y = np.zeros((7, COLUMNS), np.float32)
        for k in range(2, m):
            y = fma(bufs[self.a][:7, k : k + 1], bufs[self.b][None, k], y)
        bufs[self.y][:7] = y
        return bufs[self.y]


def product(group: Workgroup) -> Product:
    m, a, b = Var("m"), Buf("a", (8, 9), F32), Buf("b", (9, COLUMNS), F32)
    y = Buf("y", (8, COLUMNS), F32)
    r, p, j, k, e = Var("r"), Var("p"), Var("j"), Var("k"), Var("e", F32)
    i = ex.add(ex.mul(r, 2), p)
    s = FoldRows(
        y, (i, j), (Axis(p, 2), Axis(j, COLUMNS)), Axis(r, 4), 4, k, 2, m, 1,
        ((e, Load(b, (k, j))),), ex.mul(Load(a, (ex.minimum(i, 6), k)), e), ex.lt(i, 7),
    )  # fmt: skip
    return Product(FragmentKernel("product", (a, b, y), (m,), group, (s,)), m, a, b, y)


@pytest.mark.parametrize("m", [2, 3, 9])
def test_floats_are_added_in_order(metal: MetalStandIn, m: int) -> None:
    """From the third term on; the eighth row does not exist."""
    p = product(Workgroup(32, 1))
    verify_fragment(p.kernel)
    bufs = p.arrays()
    run_fragment_kernel(p.kernel, bufs, {p.m: m})
    np.testing.assert_array_equal(bufs[p.y], p.want(m))
    text = render_kernel(p.kernel, MSL)
    got = metal_launched(metal, text, p.arrays(), {p.m: m}, groups=1)[p.y]
    np.testing.assert_array_equal(got, p.want(m))


def scan() -> tuple[FragmentKernel, Buf, Buf]:
    """y[i] = 1, then x[n, i] - 3/4 y[i] for each n: no fold, as each step needs the one before."""
    x, y, i, n = Buf("x", (9, 20), F32), Buf("y", (20,), F32), Var("i"), Var("n")
    total = Var("sum", F32)
    value = ex.fma(total, ex.lit(-0.75, F32), Load(x, (n, i)))
    body = (LaneScan(y, (i,), (Axis(i, 20),), n, 0, 9, total, ex.lit(1.0, F32), value),)
    return FragmentKernel("scan", (x, y), (), Workgroup(8, 1), body), x, y


def test_a_scan_goes_in_order() -> None:
    """Exactly: quarters, whose sums an f32 holds."""
    kernel, x, y = scan()
    verify_fragment(kernel)
    given = np.random.default_rng(1).integers(-64, 64, (9, 20)).astype(np.float32)
    bufs = {x: given, y: np.zeros(20, np.float32)}
    run_fragment_kernel(kernel, bufs, {})
    want = np.ones(20)
    for row in given.astype(np.float64):
        want = want * -0.75 + row
    np.testing.assert_array_equal(bufs[y], want.astype(np.float32))
    mistyped = replace(kernel.body[0], total=Var("sum", I32))  # type: ignore[type-var]
    with pytest.raises(VerifyError, match="f32 begins a scan of i32"):
        verify_fragment(FragmentKernel("scan", (x, y), (), Workgroup(8, 1), (mistyped,)))  # type: ignore[arg-type]


def test_who_touches_what() -> None:
    """A scan's element is its invocation's, as a map's; a sum's may be several invocations'."""
    kernel, x, y = scan()
    assert {(a.buf, a.write, a.lanes) for a in accesses(kernel.body[0])} == {
        (y, True, (1,)),
        (x, False, None),
    }
    p = sums(2, Workgroup(8, 1))
    assert {(a.buf, a.write, a.lanes) for a in accesses(p.statement)} == {
        (p.y, True, None),
        (p.x, False, None),
        (p.w, False, None),
    }


# --------------------------------------------------------------------------------------- devices


@pytest.fixture(scope="module")
def lavapipe() -> Iterator[tuple[VulkanHome, VulkanWorker]]:
    require("vulkan")
    found = find_vulkan()
    assert found is not None
    with VulkanWorker(found) as running:
        yield found, running


@pytest.fixture(scope="module")
def intel() -> Iterator[SyclCpu]:
    require("sycl")
    with SyclCpu() as running:
        yield running


@pytest.fixture(scope="module")
def metal(tmp_path_factory: pytest.TempPathFactory) -> MetalStandIn:
    require("metal")
    return stand_in(tmp_path_factory.mktemp("metal"))


def check(p: Sums, m: int, got: Array) -> None:
    np.testing.assert_array_equal(got, p.want(m))


@pytest.mark.parametrize("split", SPLITS[8])
def test_on_vulkan(lavapipe: tuple[VulkanHome, VulkanWorker], split: int) -> None:
    p = sums(split, Workgroup(8, 2))
    shader = render_shader(p.kernel, Fma.PAIRS)
    assert ("subgroupShuffleXor(" in shader.text) == (split > 1)
    for m in (1, 3, MOST):
        check(p, m, dispatched(*lavapipe, shader, p.arrays(m), {p.m: m}, groups=1)[p.y])


@pytest.mark.parametrize("split", SPLITS[16])
def test_on_sycl(intel: SyclCpu, split: int) -> None:
    p = sums(split, Workgroup(16, 2))
    for m in (1, 3, MOST):
        check(p, m, sycl_launched(intel, p.kernel, p.arrays(m), {p.m: m}, groups=1)[p.y])


@pytest.mark.parametrize("order", [0, 5])
@pytest.mark.parametrize("split", SPLITS[32])
def test_on_metal(metal: MetalStandIn, split: int, order: int) -> None:
    p = sums(split, Workgroup(32, 2))
    text = render_kernel(p.kernel, MSL)
    for m in (1, 3, MOST):
        bufs = p.arrays(m)
        check(p, m, metal_launched(metal, text, bufs, {p.m: m}, groups=1, order=order)[p.y])


@pytest.mark.parametrize("m", [1, 2, 5, MOST])
def test_a_known_number_of_rows_has_one_body(metal: MetalStandIn, m: int) -> None:
    p = sums(2, Workgroup(32, 1), rows=m)
    text = render_kernel(p.kernel, MSL)
    assert "else" not in text.text
    assert text.text.count("simd_shuffle_xor(") == m
    check(p, m, metal_launched(metal, text, p.arrays(m), {p.m: m}, groups=1)[p.y])


# ------------------------------------------------------------------------------ negative controls


def test_a_lane_that_stays_away_is_divergence(metal: MetalStandIn) -> None:
    """Metal says nothing of what the others would get."""
    p = sums(2, Workgroup(32, 2))
    text = render_kernel(p.kernel, MSL)
    broken = text.text.replace("sum_0 = sum_0 + simd_", "if (e < 19) sum_0 = sum_0 + simd_")
    assert broken != text.text
    with pytest.raises(StandInError, match="divergence"):
        metal_launched(metal, replace(text, text=broken), p.arrays(1), {p.m: 1}, groups=1)


@pytest.mark.parametrize("other", ["ushort(8)", "ushort(thread_number % 2 ? 16 : 8)"])
def test_the_wrong_partner_gives_another_sum(metal: MetalStandIn, other: str) -> None:
    """And partners that lanes do not agree on are no operation of the simdgroup."""
    p = sums(2, Workgroup(32, 2))
    text = render_kernel(p.kernel, MSL)
    broken = replace(text, text=text.text.replace("ushort(16)", other))
    if "thread" in other:
        with pytest.raises(StandInError, match="divergence"):
            metal_launched(metal, broken, p.arrays(1), {p.m: 1}, groups=1)
        return
    got = metal_launched(metal, broken, p.arrays(1), {p.m: 1}, groups=1)[p.y]
    assert np.mean(got[:, 0] != p.want(1)[:, 0]) > 0.9


def test_without_the_last_step_sums_are_not_whole(
    lavapipe: tuple[VulkanHome, VulkanWorker],
) -> None:
    p = sums(8, Workgroup(8, 1))
    shader = render_shader(p.kernel, Fma.PAIRS)
    lines = [n for n in shader.text.splitlines() if "subgroupShuffleXor(sum_0, 4u)" not in n]
    broken = replace(shader, text="\n".join(lines) + "\n")
    got = dispatched(*lavapipe, broken, p.arrays(1), {p.m: 1}, groups=1)[p.y]
    assert np.mean(got[:, 0] != p.want(1)[:, 0]) > 0.9
