"""NVFP4 folders as ModelOpt and compressed-tensors publish them, against a decoder of our own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cpu_rig import unmeasured
from models import RawTensor, Tiny, save_raw, tiny_llama_hf, weights

from speccc.errors import InputError
from speccc.ir.frontends import open_model

TINY = Tiny(seed=11, hidden=64, heads=4, kv_heads=2, ffn=128, layers=2, tied=False)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WHAT = "model.layers.0.mlp.down_proj"
Floats = npt.NDArray[np.float64]
Tensors = dict[str, RawTensor]


def e4m3(byte: int) -> float:
    """OCP 8-bit Floating Point Specification 1.0, section 5: bias 7, no infinity."""
    exponent, mantissa = (byte >> 3) & 0xF, byte & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if byte & 0x80 else value


def published(style: str, tiny: Tiny) -> tuple[Tensors, dict[str, Floats]]:
    """A folder's tensors with every matrix but the embedding as NVFP4, and their exact values."""
    draw, tensors, values = np.random.default_rng(tiny.seed), {}, {}
    for name, x in weights(tiny).items():
        if x.ndim == 1 or "embed" in name:
            tensors[name] = ("F32", x.shape, x.tobytes())
            values[name] = x.astype(np.float64)
            continue
        n, k = x.shape
        pairs = draw.integers(0, 256, (n, k // 2), np.uint8)
        scales = draw.integers(0, 0x7F, (n, k // 16), np.uint8)
        factor = np.float32(draw.uniform(1e-5, 2e-4))
        stem = name.removesuffix(".weight")
        tensors[f"{stem}.weight_scale"] = ("F8_E4M3", scales.shape, scales.tobytes())
        if style == "modelopt":
            tensors[name] = ("U8", pairs.shape, pairs.tobytes())
            tensors[f"{stem}.weight_scale_2"] = ("F32", (), factor.tobytes())
            tensors[f"{stem}.input_scale"] = ("F32", (), np.float32(0.5).tobytes())
        else:
            divisor = np.float32(1) / factor
            factor = np.float32(1) / divisor
            tensors[f"{stem}.weight_packed"] = ("U8", pairs.shape, pairs.tobytes())
            tensors[f"{stem}.weight_global_scale"] = ("F32", (1,), divisor.tobytes())
            tensors[f"{stem}.input_global_scale"] = ("F32", (1,), np.float32(9).tobytes())
        out = np.empty((n, k))
        for r in range(n):
            for c in range(k):
                code = (int(pairs[r, c // 2]) >> (4 * (c % 2))) & 0xF
                size = -E2M1[code & 7] if code & 8 else E2M1[code & 7]
                out[r, c] = size * e4m3(int(scales[r, c // 16])) * float(factor)
        values[name] = out
    return tensors, values


def turned(x: Floats, heads: int) -> Floats:
    """Rows of q and k as GGUF has them: i and i + d/2 of a head side by side."""
    half = x.shape[0] // heads // 2
    rows = [
        h * 2 * half + i + part * half for h in range(heads) for i in range(half) for part in (0, 1)
    ]
    return x[rows]


def folder(tmp_path: Path, tensors: Tensors, method: str) -> Path:
    extra = {"quantization_config": {"quant_method": method}}
    out = tiny_llama_hf(tmp_path, tiny=TINY, extra=extra)
    save_raw(tensors, out / "model.safetensors")
    return out


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEADS = {"attn_q": TINY.heads, "attn_k": TINY.kv_heads}


@pytest.mark.parametrize("style", ["modelopt", "compressed-tensors"])
def test_every_element_is_what_was_published(style: str, tmp_path: Path) -> None:
    """Of e2m1 * scale, which is exact, times a factor: one rounding of 2^-24."""
    tensors, values = published(style, TINY)
    source = open_model(folder(tmp_path, tensors, style))
    assert source.notes == (
        "15 scales of activations are not used: activations are quantized as they come",
    )
    pairs = {"lm_head.weight": "output.weight"} | {
        f"model.layers.{layer}.{theirs}.weight": f"blk.{layer}.{ours}.weight"
        for layer in range(TINY.layers)
        for theirs, ours in NAMES.items()
    }
    for theirs, ours in pairs.items():
        weight, want = source.weights[ours], values[theirs]
        part = ours.split(".")[-2]
        if part in HEADS:
            want = turned(want, HEADS[part])
        assert weight.format.name == "nvfp4_rows"
        assert (np.abs(weight.decode() - want) <= 2.0**-24 * np.abs(want)).all(), ours


def test_a_published_folder_generates(tmp_path: Path) -> None:
    """The text of the same values stored as floats cannot be compared: it has other roundings."""
    model = unmeasured(folder(tmp_path, published("modelopt", TINY)[0], "modelopt"))
    assert model.manifest["formats"]["nvfp4_rows"] == 15
    plain = model.generate([1, 2, 3], max_tokens=8, drafter="none").tokens
    assert len(plain) == 8
    assert model.generate([1, 2, 3], max_tokens=8).tokens == plain


def test_scales_of_an_fp8_cache_are_left_out(tmp_path: Path) -> None:
    tensors, _ = published("modelopt", TINY)
    one = ("F32", (), np.float32(1).tobytes())
    for name in ("k_proj.k_scale", "v_proj.v_scale", "k_scale"):
        tensors[f"model.layers.0.self_attn.{name}"] = one
    notes = open_model(folder(tmp_path, tensors, "modelopt")).notes
    assert notes[-1] == "3 scales of the cache are not used: --kv chooses its format"


def test_what_is_missing_or_misshapen_is_refused(tmp_path: Path) -> None:
    tensors, _ = published("modelopt", TINY)
    path = folder(tmp_path, tensors, "modelopt")
    one = ("F32", (1,), np.ones(1, np.float32).tobytes())
    two = ("F32", (2,), np.ones(2, np.float32).tobytes())
    half = ("F16", (1,), np.ones(1, np.float16).tobytes())
    negative = ("F8_E4M3", (64, 8), b"\x38" * 511 + b"\xb8")
    nan = ("F8_E4M3", (64, 8), b"\x7f" * 512)
    wide = ("F8_E4M3", (64, 4), bytes(256))
    floats = ("F32", (64, 8), bytes(4 * 512))
    weight, scale, factor = f"{WHAT}.weight", f"{WHAT}.weight_scale", f"{WHAT}.weight_scale_2"
    needs = "blk.0.ffn_down.weight is U8.64, 64.: as NVFP4 it needs rows of a multiple of 32 bytes"
    cases: list[tuple[dict[str, RawTensor | None], str]] = [
        ({scale: None}, needs),
        ({factor: None}, needs),
        ({factor: two}, needs),
        ({factor: half}, needs),
        ({f"{WHAT}.weight_global_scale": one}, needs),
        ({scale: wide}, needs),
        ({scale: floats}, needs),
        ({scale: negative}, "ffn_down.weight_scale holds a negative scale"),
        ({scale: nan}, "blk.0.ffn_down.weight holds a NaN or infinite scale"),
        ({factor: ("F32", (1,), np.float32([np.inf]).tobytes())}, "holds a NaN or infinite"),
        (
            {weight: ("U8", (64, 8), bytes(512)), scale: ("F8_E4M3", (64, 1), bytes(64))},
            "needs rows",
        ),
        ({"model.norm.weight": ("U8", (64,), bytes(64))}, "output_norm.weight is U8"),
        ({"model.norm.weight_scale_2": one}, "which a Llama-family model does not use"),
        ({"model.layers.0.input_layernorm.weight_scale_2": one}, "scales no weight"),
        ({scale: ("U8", (64, 8), bytes(512))}, needs),
        ({f"{WHAT}.pre_quant_scale": one}, "which a Llama-family model does not use"),
    ]
    for changed, message in cases:
        kept = {name: t for name, t in {**tensors, **changed}.items() if t is not None}
        save_raw(kept, path / "model.safetensors")
        with pytest.raises(InputError, match=message):
            open_model(path)


def test_a_divisor_of_zero_is_refused(tmp_path: Path) -> None:
    tensors, _ = published("compressed-tensors", TINY)
    tensors[f"{WHAT}.weight_global_scale"] = ("F32", (1,), bytes(4))
    with pytest.raises(InputError, match=r"blk.0.ffn_down.weight holds a NaN or infinite"):
        open_model(folder(tmp_path, tensors, "compressed-tensors"))
