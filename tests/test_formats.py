"""Number formats: bit-exact against gguf-py on random bytes and random data."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from speccc.errors import UnsupportedError
from speccc.ir import formats
from speccc.ir.expr import Var
from speccc.ir.format_expr import Bin, Const, Field, Lane, Read, Table
from speccc.ir.formats import FORMATS, Format, affine, by_gguf_type
from speccc.ir.interp_expr import evaluate as expr_value
from speccc.ir.minifloat import MINIFLOATS, Minifloat
from speccc.ir.minifloat_expr import minifloat_value
from speccc.ir.types import E4M3, E8M0_HALF, F16, I32, U8, UE4M3_HALF

IN_GGUF = {name: f for name, f in FORMATS.items() if f.gguf_type is not None}
TYPES = {name: gguf.GGMLQuantizationType[name.upper()] for name in IN_GGUF}
QUANTIZED = [f for f in FORMATS.values() if f.quantized]
shapes = st.tuples(st.integers(1, 5), st.integers(1, 4))
seeds = st.integers(0, 2**32 - 1)


def random_bytes(fmt: Format, shape: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, fmt.size(shape), dtype=np.uint8)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.mark.parametrize("name", IN_GGUF)
@given(shape=shapes, seed=seeds)
@settings(max_examples=60, deadline=None)
def test_decode_equals_gguf_on_random_bytes(name: str, shape: tuple[int, int], seed: int) -> None:
    fmt = FORMATS[name]
    shape = (shape[0], shape[1] * fmt.block)
    raw = random_bytes(fmt, shape, seed)
    with np.errstate(all="ignore"):
        want = quants.dequantize(raw.reshape(shape[0], -1), TYPES[name])
    got = fmt.decode(raw, shape)
    # NaN payloads may differ by the order of operands; every other bit is equal. gguf-py gives
    # scales that are NaN in one byte a value, where we keep the NaN to refuse it.
    assert got.shape == shape
    nan = np.isnan(got)
    assert (nan == np.isnan(want)).all() or fmt.scale_type in MINIFLOATS
    keep = ~nan
    np.testing.assert_array_equal(bits(got[keep]), bits(want[keep]))


@pytest.mark.parametrize("name", [n for n in IN_GGUF if n != "nvfp4"])
@given(shape=shapes, seed=seeds, exponent=st.integers(-12, 3), flat=st.booleans())
@settings(max_examples=60, deadline=None)
def test_encode_equals_gguf(
    name: str, shape: tuple[int, int], seed: int, exponent: int, flat: bool
) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((shape[0], shape[1] * 32)).astype(np.float32) * np.float32(
        2.0**exponent
    )
    x[0, :32] = 0 if flat else x[0, :32]
    want = quants.quantize(x, TYPES[name])
    np.testing.assert_array_equal(fmt.encode(x).reshape(-1), bits(want).reshape(-1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0"])
def test_blocks_whose_scale_is_stored_as_zero(name: str) -> None:
    """As gguf-py where 1/d is a float; where it is not gguf-py's codes are undefined, ours of 0."""
    ramp = np.linspace(-1, 0.9, 32, dtype=np.float32)
    exponents = np.arange(-149, -100)
    x = ramp * np.float32(2.0) ** exponents[:, None].astype(np.float32)
    raw = FORMATS[name].encode(x)
    with np.errstate(all="ignore"):
        want = quants.quantize(x, TYPES[name])
    defined = exponents > -119  # d is at least 2^(e - 7)
    np.testing.assert_array_equal(raw[defined], bits(want)[defined])
    assert not FORMATS[name].decode(raw.reshape(-1), x.shape)[exponents < -130].any()
    zero = FORMATS[name].encode(np.zeros((1, 32), np.float32))
    codes = slice(4 if FORMATS[name].has_min else 2, None)
    np.testing.assert_array_equal(raw[exponents < -130, codes][:1], zero[:, codes])


def test_mxfp4_decodes_every_scale_as_gguf() -> None:
    raw = np.zeros((255, 17), np.uint8)
    raw[:, 0] = np.arange(255)
    raw[:, 1:] = np.arange(16) * 17
    with np.errstate(over="ignore"):
        want = quants.dequantize(raw, TYPES["mxfp4"])
    np.testing.assert_array_equal(bits(FORMATS["mxfp4"].decode(raw, (255, 32))), bits(want))


@given(seed=seeds, exponent=st.integers(-8, 8))
@settings(max_examples=60, deadline=None)
def test_nvfp4_encodes_to_the_nearest(seed: int, exponent: int) -> None:
    """No other scale byte is nearer to max / 6, and no other code to the value over the scale."""
    fmt = FORMATS["nvfp4"]
    x = np.random.default_rng(seed).standard_normal((3, 64)).astype(np.float32)
    x = (x * np.float32(2.0**exponent)).clip(-2688, 2688)
    raw = fmt.encode(x)
    every = 2 * MINIFLOATS[UE4M3_HALF].decode(np.arange(127, dtype=np.uint8)).astype(np.float64)
    target = np.abs(x.reshape(3, 4, 16)).max(axis=2) / np.float32(6)
    off = np.abs(every - target[..., None])
    assert (np.take_along_axis(off, raw[:, :4, None].astype(int), 2)[..., 0] == off.min(2)).all()
    codes, scale, _ = fmt.codes(raw, x.shape)
    values = x.reshape(3, 4, 16, 1) / np.where(scale > 0, scale, 1).reshape(3, 4, 1, 1)
    levels = np.asarray(fmt.levels)
    away = np.abs(values - levels)
    chosen = np.abs(values[..., 0] - fmt.integers(codes).reshape(3, 4, 16))
    flat = (scale == 0).reshape(3, 4, 1)
    # The encoder multiplies by the rounded inverse: two roundings of values up to 15.
    assert (flat | (chosen <= away.min(3) + 16 * 2.0**-23)).all()


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_bf16_encodes_every_bit_pattern_as_gguf(seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    x[:4] = (0x7F800001, 0xFFFFFFFF, 0x7F800000, 0x7F7FFFFF)
    values = x.view(np.float32).reshape(2, 32)
    np.testing.assert_array_equal(
        formats.BF16_.encode(values), quants.quantize(values, TYPES["bf16"])
    )


@pytest.mark.parametrize("fmt", QUANTIZED, ids=str)
@given(shape=shapes, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_codes_rebuild_the_decoded_values(fmt: Format, shape: tuple[int, int], seed: int) -> None:
    shape = (shape[0], shape[1] * fmt.block)
    raw = fmt.encode(np.random.default_rng(seed).standard_normal(shape))
    assert fmt.integers(np.arange(1 << fmt.code_bits, dtype=np.uint8)).dtype == np.int32
    codes, scale, minimum = fmt.codes(raw, shape)
    assert codes.dtype == np.uint8
    assert codes.shape == shape
    assert int(codes.max()) < 1 << fmt.code_bits
    assert scale.shape == (shape[0], shape[1] // fmt.group)
    assert (minimum is not None) == fmt.has_min
    value = fmt.integers(codes).astype(np.float32) * scale.repeat(fmt.group, 1)
    if minimum is not None:
        value = value + minimum.repeat(fmt.group, 1)
    factors = fmt.row_factors(raw, shape)
    assert (factors is not None) == fmt.row_scale
    if factors is not None:
        assert (factors != 1).any()
        value = value * factors[:, None]
    np.testing.assert_array_equal(bits(value), bits(fmt.decode(raw, shape)))


@pytest.mark.parametrize("fmt", QUANTIZED, ids=str)
def test_encode_refuses_what_it_cannot_hold(fmt: Format) -> None:
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        x = np.zeros((1, 64), np.float32)
        x[0, 5] = bad
        if bad == 3e38 and fmt.scale_type == E8M0_HALF:
            continue
        with pytest.raises(ValueError, match=f"{fmt}: a block holds NaN"):
            fmt.encode(x)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
@given(shape=shapes, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_a_bound_is_no_less_than_any_element(
    fmt: Format, shape: tuple[int, int], seed: int
) -> None:
    """On random bytes; and the magnitude itself where elements are stored one by one."""
    shape = (shape[0], shape[1] * fmt.block)
    raw = np.random.default_rng(seed).integers(0, 256, fmt.size(shape), np.uint8)
    with np.errstate(all="ignore"):
        largest = float(np.abs(fmt.decode(raw, shape)).max())
        bound = fmt.bound(raw, shape)
    if np.isfinite(largest) and np.isfinite(bound):
        # A quantised element is rounded twice, and its row's factor rounds it once more.
        assert largest * (1 - 3 * 2**-24) <= bound
        assert bound == largest or not fmt.plain
    else:
        assert np.isnan(bound) or bound > float(np.finfo(np.float32).max) or not np.isfinite(bound)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_a_bound_shows_a_single_bad_scale(fmt: Format) -> None:
    shape = (3, 64)
    raw = fmt.encode(np.ones(shape, np.float32))
    assert 1 <= fmt.bound(raw, shape) < 3
    first = fmt.fields[0]
    exponent = {"f32": [0, 0, 0x80, 0x7F], "f16": [0, 0x7C], "bf16": [0x80, 0x7F]}
    exponent |= {"e8m0_half": [0xFF], "ue4m3_half": [0x30, 0x7F, 0x30, 0x30], "e4m3": [0xFF]}
    at = fmt.nbytes + fmt.tail
    raw.reshape(-1)[at : at + first.nbytes] = exponent[first.dtype.name]
    assert not np.isfinite(fmt.bound(raw, shape))


@pytest.mark.parametrize("name", ["fp8", "nvfp4_rows"])
def test_factors_of_rows(name: str) -> None:
    """A row times 2^n is the same row with its factor times 2^n; a factor must be finite."""
    fmt, x = FORMATS[name], np.random.default_rng(5).standard_normal((3, 128)).astype(np.float32)
    scaled = x * np.float32(2.0) ** np.array([[0], [-9], [30]], np.float32)
    one, two = fmt.encode(x), fmt.encode(scaled)
    np.testing.assert_array_equal(one[:, :-4], two[:, :-4])
    assert (fmt.row_factors(two, x.shape) / fmt.row_factors(one, x.shape)).tolist() == [
        1, 2.0**-9, 2.0**30
    ]  # fmt: skip
    # e4m3 keeps 3 bits behind the first and e2m1 one; the largest of a row is kept to rounding.
    off = np.abs(fmt.decode(two, x.shape) - scaled) / np.abs(scaled).max(axis=1, keepdims=True)
    assert 0 < off.max() <= {"fp8": 2**-4, "nvfp4_rows": 1 / 6 + 2**-4}[name]
    two[1, -1] = 0x7F
    two[1, -2] = 0x80
    assert not np.isfinite(fmt.bound(two, x.shape))
    assert not fmt.decode(fmt.encode(np.zeros((2, 64))), (2, 64)).any()


@pytest.mark.parametrize("name", ["fp8", "nvfp4_rows"])
@pytest.mark.parametrize("k", [64, 4096])
def test_rows_whose_sums_of_products_overflow_are_refused(name: str, k: int) -> None:
    most = np.float32(np.finfo(np.float32).max / 65504 / k)
    x = np.full((1, k), 0.999 * most, np.float32)
    rounded = FORMATS[name].decode(FORMATS[name].encode(x).reshape(-1), x.shape)
    with np.errstate(over="raise"):
        assert np.isfinite(np.float32(65504) * np.cumsum(rounded, dtype=np.float32)).all()
    x[0, -1] *= np.float32(-1.002)
    with pytest.raises(ValueError, match=f"{name}: a block holds NaN, infinity or an element bey"):
        FORMATS[name].encode(x)


def test_mxfp4_refuses_what_it_rounds_to_infinity() -> None:
    """The f32 logarithm of the largest floats is 128."""
    fmt, x = FORMATS["mxfp4"], np.zeros((1, 32), np.float32)
    x[0, 3] = 3.4e38
    assert fmt.decode(fmt.encode(x).reshape(-1), x.shape).max() == 6 * 2.0**125
    x[0, 3] = np.finfo(np.float32).max
    with pytest.raises(ValueError, match="mxfp4: a block holds an element that it rounds to inf"):
        fmt.encode(x)


def test_fp8_rounds_to_nearest_even() -> None:
    """Against torch's own conversion, on every f16 in range."""
    torch = pytest.importorskip("torch")
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    x = every[np.abs(every) <= 448]
    want = torch.tensor(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(MINIFLOATS[E4M3].nearest(x), want)
    back = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).float()
    ours = MINIFLOATS[E4M3].decode(np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(ours, back.numpy())


@pytest.mark.parametrize("small", MINIFLOATS.values(), ids=lambda f: str(f.dtype))
def test_minifloats_as_expressions(small: Minifloat) -> None:
    """What devices compute is the table's value, for every byte that is no NaN."""
    code = Var("code", I32)
    codes = np.arange(256 if small.signed else small.nan, dtype=np.int32)
    codes = codes[(codes & small.nan) != small.nan]
    value = expr_value(minifloat_value(small, code), {code: codes}, lambda load, index: index[0])
    np.testing.assert_array_equal(bits(value), bits(small.decode(codes.astype(np.uint8))))
    if not small.signed:
        assert (small.codes(value) == codes).all()
        with pytest.raises(ValueError, match="is no"):
            small.codes(value * np.float32(1.0625))


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        formats.Q4_0.size((2, 33))
    with pytest.raises(ValueError, match="takes 36 bytes, not 35"):
        formats.Q4_0.decode(np.zeros(35, np.uint8), (2, 32))
    with pytest.raises(ValueError, match="no codes"):
        formats.F32_.codes(np.zeros(4, np.uint8), (1, 1))


def test_fields_tile_the_block() -> None:
    for fmt in FORMATS.values():
        at = 0
        for field in fmt.fields:
            assert field.byte == at
            at += field.nbytes
        assert at == fmt.nbytes


def test_gguf_types() -> None:
    for name, fmt in IN_GGUF.items():
        assert by_gguf_type(int(TYPES[name])) is fmt
        assert gguf.GGML_QUANT_SIZES[TYPES[name]] == (fmt.block, fmt.nbytes)
    with pytest.raises(UnsupportedError, match="tensor type 12 is not supported"):
        by_gguf_type(12)


def test_a_new_format_is_one_row() -> None:
    """IQ4_NL (a table of values, no linear code) as a row, against gguf-py."""
    nibble = Bin(
        "and",
        Bin(
            "shr",
            Read("qs", Bin("mod", Lane(), Const(16))),
            Bin("mul", Bin("div", Lane(), Const(16)), Const(4)),
        ),
        Const(15),
    )
    levels = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    row = affine(
        "iq4_nl",
        (Field("d", 0, F16), Field("qs", 2, U8, 16)),
        code=Table(tuple(v + 128 for v in levels), nibble),
        bits=8,
        zero_point=128,
        scale=Read("d"),
    )
    raw = np.random.default_rng(1).integers(0, 256, row.size((4, 96)), dtype=np.uint8)
    raw.reshape(-1, 18)[:, 1] &= 0x3F  # finite scales
    want = quants.dequantize(raw.reshape(4, -1), gguf.GGMLQuantizationType.IQ4_NL)
    np.testing.assert_array_equal(bits(row.decode(raw, (4, 96))), bits(want))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_large_tensors_go_in_parts(fmt: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((7, 192)).astype(np.float32)
    raw = fmt.encode(x)
    whole = fmt.decode(raw, x.shape)
    codes = fmt.codes(raw, x.shape) if fmt.quantized else None
    monkeypatch.setattr(formats, "_CHUNK", 64)
    np.testing.assert_array_equal(fmt.decode(raw, x.shape), whole)
    if codes is not None:
        np.testing.assert_array_equal(fmt.codes(raw, x.shape)[0], codes[0])
    raw.reshape(-1)[-fmt.nbytes :] = 255
    assert not np.isfinite(fmt.bound(raw, x.shape))


def test_formats_are_found_by_name_and_told_apart_by_everything() -> None:
    other = replace(formats.Q4_0, zero_point=7)
    assert hash(other) == hash(formats.Q4_0) == hash("q4_0")
    assert other != formats.Q4_0
    assert {formats.Q4_0: 1}.get(replace(formats.Q4_0)) == 1
    assert {formats.Q4_0: 1}.get(other) is None
