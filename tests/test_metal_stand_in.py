"""The stand-in for `metal_stdlib`: it runs what is right, and stops what a GPU would get wrong."""

from __future__ import annotations

import numpy as np
import pytest
from emulation.metal_stand_in import MetalStandIn, StandInError, parameters, stand_in
from emulation.require import require
from fragment_rig import Array

HEAD = """#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
"""
NUMBERS = """
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup_number [[simdgroup_index_in_threadgroup]],
    uint group_number [[threadgroup_position_in_grid]],
    uint group_count [[threadgroups_per_grid]]"""
MEET = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"
ORDERS = (0, 1, 5)
NO_MEANING = r"invocation \d+ does what C\+\+ gives no meaning"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> MetalStandIn:
    require("metal")
    return stand_in(tmp_path_factory.mktemp("metal"))


def kernel(body: str, *params: str) -> str:
    """The text of a kernel `k`, whose parameters end with its numbers."""
    given = ",\n    ".join([*params, NUMBERS.strip()])
    return f"{HEAD}kernel void k(\n    {given}) {{\n{body}\n}}\n"


FLOATS = ("device const float* x [[buffer(0)]]", "device float* y [[buffer(1)]]")


def turned(first: str = "", between: str = MEET, at: str = "63 - n") -> str:
    """y = x the other way round, by way of threadgroup memory."""
    body = f"threadgroup float all[64]; int n = int(thread_number); {first} all[n] = x[n];"
    return kernel(f"{body} {between} y[n] = all[{at}];", *FLOATS)


def run(
    machine: MetalStandIn, text: str, *buffers: Array, groups: int = 1, order: int = 0
) -> list[Array]:
    return machine.run(text, "k", buffers, groups=groups, simdgroups=2, order=order)


def floats(count: int = 64) -> Array:
    return np.random.default_rng(3).standard_normal(count).astype(np.float32)


# --------------------------------------------------------------------------- threads and barriers


@pytest.mark.parametrize("order", ORDERS)
def test_invocations_meet_at_a_barrier(machine: MetalStandIn, order: int) -> None:
    x = floats()
    given, y = run(machine, turned(), x, np.zeros_like(x), order=order)
    np.testing.assert_array_equal(y, x[::-1])
    np.testing.assert_array_equal(given, x)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("between", ["", "threadgroup_barrier(mem_flags::mem_threadgroup);"])
def test_a_missing_barrier_is_a_race(machine: MetalStandIn, between: str, order: int) -> None:
    """Whatever the order; and a barrier that does not order all memory counts as none."""
    x = floats()
    told = r"race on threadgroup memory .* with no barrier|nothing was written"
    with pytest.raises(StandInError, match=told):
        run(machine, turned(between=between), x, x.copy(), order=order)


def test_a_barrier_that_some_miss_is_divergence(machine: MetalStandIn) -> None:
    with pytest.raises(StandInError, match="divergence"):
        run(machine, kernel(f"if (thread_number < 40) {{ {MEET} }}", *FLOATS), floats(), floats())


def test_memory_of_a_threadgroup_starts_undefined(machine: MetalStandIn) -> None:
    """Though the one before it wrote there."""
    text = turned(first="if (group_number == 1) { y[n] = all[n]; return; }")
    with pytest.raises(StandInError, match="threadgroup memory is read at byte 0 where nothing"):
        run(machine, text, floats(), floats(), groups=2)


@pytest.mark.parametrize("at", ["n + 1", "n - 1"])
def test_an_access_outside_a_buffer_is_stopped(machine: MetalStandIn, at: str) -> None:
    with pytest.raises(StandInError, match="a write outside every buffer"):
        run(
            machine,
            kernel(f"int n = int(thread_number); y[{at}] = x[n];", *FLOATS),
            *[floats()] * 2,
        )


@pytest.mark.parametrize(("at", "wrong"), [("4 * n", False), ("n", True)])
def test_a_number_lies_at_a_multiple_of_its_size(
    machine: MetalStandIn, at: str, wrong: bool
) -> None:
    params = ("device const uchar* x [[buffer(0)]]", FLOATS[1])
    text = kernel(f"int n = int(thread_number); y[n] = *(device const float*)(x + {at});", *params)
    x = floats(80)
    if wrong:
        with pytest.raises(StandInError, match=NO_MEANING):
            run(machine, text, x.view(np.uint8), floats())
        return
    np.testing.assert_array_equal(run(machine, text, x.view(np.uint8), floats())[1], x[:64])


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("n << 24", False),
        ("(n - 9) << 24", True),
        ("(n + (1 << 24)) * 255", True),
        ("int(uint(n + (1 << 24)) * 255u)", False),
        ("1 << (n + 1)", True),
        ("n / (n - 40)", True),
        ("int(x[n] * 1e30f)", True),
    ],
)
def test_arithmetic_has_a_meaning(machine: MetalStandIn, value: str, wrong: bool) -> None:
    """An optimizer may take it that a product of two signed numbers does not overflow."""
    text = kernel(f"int n = int(thread_number); y[n] = float({value});", *FLOATS)
    if wrong:
        with pytest.raises(StandInError, match=NO_MEANING):
            run(machine, text, floats(), floats())
    else:
        run(machine, text, floats(), floats())


def test_threadgroups_may_not_meet(machine: MetalStandIn) -> None:
    text = kernel("int n = int(thread_number); y[n] = x[n];", *FLOATS)
    with pytest.raises(StandInError, match="race on y at byte 0: threadgroups 0 and 1 meet"):
        run(machine, text, floats(), floats(), groups=2)
    apart = text.replace("int n = int(", "int n = 64 * int(group_number) + int(")
    x = floats(128)
    _, y = run(machine, apart, x, np.zeros_like(x), groups=2)
    np.testing.assert_array_equal(y, x)


def test_scratch_may_not_be_read_before_it_is_written(machine: MetalStandIn) -> None:
    text = kernel("int n = int(thread_number); y[n] = x[n];", *FLOATS)
    with pytest.raises(StandInError, match="x is read at byte 0 where nothing was written"):
        machine.run(text, "k", [floats()] * 2, groups=1, simdgroups=2, undefined=[0])


# ----------------------------------------------------------------------------- simdgroup matrices


MATRICES = (
    "device const half* a [[buffer(0)]]",
    "device const half* b [[buffer(1)]]",
    "device float* c [[buffer(2)]]",
)
PRODUCT = """
    simdgroup_matrix<half, 8, 8> fa, fb;
    simdgroup_matrix<float, 8, 8> fc = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    if (simdgroup_number == 1) return;
    simdgroup_load(fa, a, 8, ulong2(0, 0), LEFT);
    simdgroup_load(fb, b, 8, ulong2(0, 0), RIGHT);
    simdgroup_multiply_accumulate(fc, fa, fb, fc);
    simdgroup_store(fc, c, 8, ulong2(0, 0), OUT);
"""


def halves(seed: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, (8, 8)).astype(np.float16)


def multiplied(machine: MetalStandIn, *layout: bool, order: int = 0) -> tuple[Array, Array, Array]:
    body = PRODUCT
    for name, turn in zip(("LEFT", "RIGHT", "OUT"), layout, strict=True):
        body = body.replace(name, str(turn).lower())
    a, b, c = halves(1), halves(2), np.zeros((8, 8), np.float32)
    _, _, c = run(machine, kernel(body, *MATRICES), a, b, c, order=order)
    return a.astype(np.float32), b.astype(np.float32), c


@pytest.mark.parametrize("order", ORDERS)
def test_matrices_multiply(machine: MetalStandIn, order: int) -> None:
    a, b, c = multiplied(machine, False, False, False, order=order)
    np.testing.assert_array_equal(c, a @ b + 1)


def test_each_layout_is_another_product(machine: MetalStandIn) -> None:
    for left in (False, True):
        for right in (False, True):
            a, b, c = multiplied(machine, left, right, True)
            want = (a.T if left else a) @ (b.T if right else b) + 1
            np.testing.assert_array_equal(c, want.T)
            assert np.mean(want != a @ b + 1) > 0.9 or not (left or right)


def test_sums_round_to_the_accumulator(machine: MetalStandIn) -> None:
    """A half accumulator loses what a float one holds: the reason not to use it."""
    body = PRODUCT.replace("<float", "<half").replace("1.0f", "half(1)")
    for name in ("LEFT", "RIGHT", "OUT"):
        body = body.replace(name, "false")
    text = kernel(body, *MATRICES[:2], "device half* c [[buffer(2)]]")
    a, b = halves(1), halves(2)
    _, _, c = run(machine, text, a, b, np.zeros((8, 8), np.float16))
    exact = a.astype(np.float64) @ b.astype(np.float64) + 1
    assert np.mean(c.astype(np.float64) != exact) > 0.5
    # A partial sum is below 2^17, where halves lie 2^7 apart or are no more: eight roundings.
    kept = np.abs(exact) < 30000
    assert np.abs(c.astype(np.float64) - exact)[kept & np.isfinite(c)].max() < 8 * 2**7


@pytest.mark.parametrize(
    "change", [("simdgroup_load(fa, a,", "if (thread_number < 9) simdgroup_load(fa, a,"),
               ("simdgroup_load(fa, a,", "simdgroup_load(fa, a + 8 * (thread_number / 16),")],
    ids=["some lanes", "another place"],
)  # fmt: skip
def test_lanes_must_do_the_same(machine: MetalStandIn, change: tuple[str, str]) -> None:
    body = PRODUCT.replace(*change)
    for name in ("LEFT", "RIGHT", "OUT"):
        body = body.replace(name, "false")
    c = np.zeros((8, 8), np.float32)
    with pytest.raises(StandInError, match="divergence"):
        run(machine, kernel(body, *MATRICES), halves(1), halves(2), c)


TILE = """
    threadgroup float tile[64];
    simdgroup_matrix<float, 8, 8> f = make_filled_simdgroup_matrix<float, 8, 8>(2.0f);
    int n = int(thread_number);
    WRITE
    BARRIER
    READ
"""
WRITES = {
    "lanes": "tile[n] = x[n];",
    "one lane": "if (n == 31) for (int k = 0; k < 64; ++k) tile[k] = x[k];",
    "simdgroup": "if (n < 32) simdgroup_store(f, tile, 8, ulong2(0, 0), false);",
}
READS = {
    "lanes": "y[n] = tile[n];",
    "simdgroup": "if (n < 32) simdgroup_load(f, tile, 8, ulong2(0, 0), false);",
}


PAIRS = [(w, r) for w in WRITES for r in READS if "simdgroup" in (w, r)]


@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_a_fragment_needs_a_barrier_too(machine: MetalStandIn, write: str, read: str) -> None:
    """Which lane holds which element is unknown, so even one simdgroup alone needs one."""
    body = TILE.replace("WRITE", WRITES[write]).replace("READ", READS[read])
    run(machine, kernel(body.replace("BARRIER", MEET), *FLOATS), floats(), floats())
    with pytest.raises(StandInError, match=r"race on threadgroup memory|nothing was written"):
        run(machine, kernel(body.replace("BARRIER", ""), *FLOATS), floats(), floats())


# -------------------------------------------------------------------------------------- functions


def test_functions_are_those_of_metal(machine: MetalStandIn) -> None:
    body = """
    int n = int(thread_number); float v = x[n];
    y[8 * n] = rint(v); y[8 * n + 1] = precise::sqrt(abs(v)); y[8 * n + 2] = fma(v, v, -v * v);
    y[8 * n + 3] = min(v, 0.5f); y[8 * n + 4] = max(v, 0.5f); y[8 * n + 5] = float(half(v));
    y[8 * n + 6] = as_type<float>(as_type<uint>(v) ^ 0x80000000u);
    float nan = v / 0.0f * 0.0f;
    y[8 * n + 7] = max(nan, min(v, nan)) + min(nan, max(v, nan));
    """
    x = floats() * 4
    x[:6] = 0.5, 1.5, 2.5, -0.5, -1.5, 0
    _, y = run(machine, kernel(body, *FLOATS), x, np.zeros((64, 8), np.float32))
    wide = x.astype(np.float64)
    rest = (wide * wide - (x * x).astype(np.float64)).astype(np.float32)
    want = (np.rint(x), np.sqrt(np.abs(x)), rest, np.minimum(x, np.float32(0.5)))
    want += (np.maximum(x, np.float32(0.5)), x.astype(np.float16).astype(np.float32), -x, 2 * x)
    for n, column in enumerate(want):
        np.testing.assert_array_equal(y[:, n], column)
    assert np.count_nonzero(rest) > 50


# -------------------------------------------------------------------------------------- interface


def test_attributes_say_what_a_parameter_takes(machine: MetalStandIn) -> None:
    swapped = turned().replace("buffer(0)", "?").replace("buffer(1)", "buffer(0)")
    swapped = swapped.replace("?", "buffer(1)")
    x = floats()
    y, _ = run(machine, swapped, np.zeros_like(x), x)
    np.testing.assert_array_equal(y, x[::-1])
    assert [p.number for p in parameters(swapped, "k")] == [1, 0, None, None, None, None]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("buffer(1)", "buffer(2)", "takes buffers"),
        (" [[buffer(1)]]", "", "without an attribute: device float"),
        ("threadgroups_per_grid", "thread_position_in_grid", "not known here"),
        ("void k(", "void other(", "no kernel k"),
        ("all[n] = x[n]", "all[n] = z[n]", "(not declared|undeclared)"),
    ],
)
def test_a_wrong_text_is_refused(machine: MetalStandIn, old: str, new: str, told: str) -> None:
    text = turned().replace(old, new)
    assert text != turned()
    with pytest.raises(StandInError, match=told):
        run(machine, text, floats(), floats())


def test_another_width_of_simdgroup_is_refused(machine: MetalStandIn) -> None:
    text = kernel("simdgroup_matrix<float, 4, 4> f; (void)f;", *FLOATS)
    with pytest.raises(StandInError, match="a simdgroup matrix is 8x8"):
        run(machine, text, floats(), floats())
