"""Packed matrices: what goes in comes out, element by element, in every format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Var
from speccc.ir.formats import FORMATS
from speccc.ir.interp_tile import run_kernel
from speccc.ir.packed import BLOCK, PANEL, PackedMatrix
from speccc.ir.tile import Axis, Buf, Kernel, Map, Share
from speccc.ir.tile_verify import verify_kernel
from speccc.ir.types import F32, U8
from speccc.pack import pack_weights, rows_in_order
from speccc.passes.weight_layout import MatrixSlot, WeightLayout

FLOATS = ("f32", "f16", "bf16", "fp8")
BLOCKS = tuple(f.name for f in FORMATS.values() if f.quantized)
shapes = st.tuples(st.integers(1, 40), st.integers(1, 3))


def filled(fmt: str, rows: int, k: int, seed: int) -> tuple[PackedMatrix, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """A matrix, its raw bytes and its values: random bytes whose floats are finite."""
    rng = np.random.default_rng(seed)
    f = FORMATS[fmt]
    x = (rng.standard_normal((rows, k)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
    raw = f.encode(x).reshape(-1)
    return PackedMatrix(f, rows, k), raw, f.decode(raw, (rows, k))


def decoded_by_program(w: PackedMatrix, blob: np.ndarray, offset: int) -> np.ndarray:  # type: ignore[type-arg]
    """Every element through `PackedMatrix.element` in a tile program."""
    n = w.panels * PANEL
    packed, out = Buf("w", (len(blob),), U8), Buf("y", (n, w.k), F32)
    row, c = Var("row"), Var("c")
    value = w.element(packed, ex.lit(offset), row, c)
    body = (Share(row, n, (Map(out, (row, c), (Axis(c, w.k),), value),)),)
    kernel = Kernel("decode", (packed, out), (), body)
    verify_kernel(kernel)
    y = np.full((n, w.k), np.nan, np.float32)
    run_kernel(kernel, {packed: blob, out: y}, {})
    return y


@pytest.mark.parametrize("fmt", [*FLOATS, *BLOCKS])
@given(shapes, st.integers(0, 99), st.sampled_from([0, 64, 192]))
@settings(max_examples=25, deadline=None)
def test_elements_are_the_format_s_own(
    fmt: str, shape: tuple[int, int], seed: int, offset: int
) -> None:
    """Exactly for floats and without a minimum; with one, an fma rounds once where decode may
    round twice: half a unit in the last place of the product at most."""
    block = FORMATS[fmt].block
    rows, k = shape[0], shape[1] * (BLOCK if block == 1 else block) - (5 if fmt in FLOATS else 0)
    w, raw, values = filled(fmt, rows, k, seed)
    packed = w.pack(raw)
    assert packed.nbytes == w.nbytes
    blob = np.concatenate([np.full(offset, 0xA5, np.uint8), packed])
    got = decoded_by_program(w, blob, offset)
    if FORMATS[fmt].has_min:
        assert np.allclose(got[:rows], values, rtol=0, atol=2**-23 * np.abs(values).max())
    else:
        assert np.array_equal(got[:rows], values)
    assert not got[rows:].any()  # rows past the end count for nothing


@pytest.mark.parametrize("fmt", BLOCKS)
@given(shapes, st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_panels_unpack(fmt: str, shape: tuple[int, int], seed: int) -> None:
    rows, k = shape[0], shape[1] * FORMATS[fmt].block
    w, raw, _ = filled(fmt, rows, k, seed)
    codes, scale, minimum = FORMATS[fmt].codes(raw, (rows, k))
    panels = w.pack(raw).reshape(w.panels, w.panel_bytes)
    parts = [w.unpack_panel(panel) for panel in panels]
    assert np.array_equal(np.concatenate([p[0] for p in parts])[:rows].reshape(rows, k), codes)
    scales = np.concatenate([p[1] for p in parts])[:rows]
    assert np.array_equal(scales.reshape(rows, -1), scale)
    if minimum is None:
        assert all(p[2] is None for p in parts)
    else:
        minima = [p[2] for p in parts if p[2] is not None]
        assert np.array_equal(np.concatenate(minima)[:rows], minimum)


def test_the_layout_is_the_documented_one() -> None:
    """Byte 4 * lane + t of a quad is row `lane`, column t; nibbles pair quad c with c + 4."""
    w, raw, _ = filled("q4_1", 16, 32, 3)
    codes, scale, minimum = w.format.codes(raw, (16, 32))
    packed = w.pack(raw)
    for lane, c, t in [(0, 0, 0), (5, 2, 3), (15, 3, 1)]:
        byte = int(packed[64 * c + 4 * lane + t])
        assert byte & 15 == codes[lane, 4 * c + t]
        assert byte >> 4 == codes[lane, 4 * (c + 4) + t]
    halves = packed[256:].view(np.float16)
    assert minimum is not None
    assert np.array_equal(halves[:16], scale[:, 0])
    assert np.array_equal(halves[16:], minimum[:, 0])


@given(st.integers(1, 6), st.sampled_from([16, 32, 64]), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_evens_first(groups: int, group: int, seed: int) -> None:
    """RoPE pairs (2i, 2i + 1) of a group end up half a group apart."""
    from speccc.ir.frontends import Weight

    w, raw, values = filled("f32", groups * group, 8, seed)
    weight = Weight("q", (w.rows, w.k), w.format, raw)
    moved = rows_in_order(weight, group)
    got = moved.view(np.float32).reshape(groups, 2, group // 2, w.k)
    want = values.reshape(groups, group // 2, 2, w.k)
    assert np.array_equal(got, want.swapaxes(1, 2))


@pytest.mark.parametrize("fmt", BLOCKS)
@given(shapes, st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_pairs_are_the_codes(fmt: str, shape: tuple[int, int], seed: int) -> None:
    f, (rows, k) = FORMATS[fmt], (shape[0], shape[1] * FORMATS[fmt].block)
    raw = np.random.default_rng(seed).integers(0, 256, f.size((rows, k)), np.uint8)
    pairs = f.pairs(raw, (rows, k))
    if pairs is None:
        assert fmt in ("q8_0", "nvfp4", "nvfp4_rows")
        return
    halves = f.codes(raw, (rows, k))[0].reshape(rows, -1, 2, BLOCK // 2)
    assert np.array_equal(
        pairs.reshape(rows, -1, BLOCK // 2), halves[:, :, 0] | halves[:, :, 1] << 4
    )


@pytest.mark.parametrize("fmt", [*FLOATS, *BLOCKS])
@pytest.mark.parametrize("group", [None, 8, 48])
@pytest.mark.parametrize("run", [1, 4000, 1 << 19])
def test_runs_of_panels_are_the_matrix(
    fmt: str, group: int | None, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed a run at a time, a weight is what it is in one piece, and nothing beside it moves."""
    from speccc.ir.frontends import Weight

    monkeypatch.setattr("speccc.pack.RUN", run)
    w, raw, _ = filled(fmt, 144 if group else 137, 64, 5)
    offset = 192
    slots = [MatrixSlot("w", w, offset, group), MatrixSlot("w", w, offset + w.nbytes, None)]
    layout = WeightLayout(matrices=slots, matrix_bytes=offset + 2 * w.nbytes)
    weight = Weight("w", (w.rows, w.k), w.format, raw)
    done = []
    blob, _ = pack_weights(layout, {"w": weight}, lambda n, of: done.append((n, of)))
    whole = [w.pack(rows_in_order(weight, group)), w.pack(raw)]
    assert np.array_equal(blob, np.concatenate([np.zeros(offset, np.uint8), *whole]))
    assert done == [(n + 1, len(done)) for n in range(len(done))]


def test_a_zero_has_no_sign() -> None:
    """Both codes of zero become the first: what turns codes to signed bytes relies on it."""
    f = FORMATS["mxfp4"]
    raw = np.full(f.size((16, 32)), 0x88, np.uint8)
    raw.reshape(16, 17)[:, 0] = 127
    assert not PackedMatrix(f, 16, 32).pack(raw)[: 16 * 16].any()


def test_reads_past_the_blob_are_seen() -> None:
    w, raw, _ = filled("q8_0", 16, 32, 0)
    with pytest.raises(VerifyError, match="outside"):
        decoded_by_program(w, w.pack(raw), 64)
