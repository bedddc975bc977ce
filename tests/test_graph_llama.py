"""The graph of a Llama-family model, interpreted, is the model: against Hugging Face in f32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graph_models import TinySession, config_of, stored, tiny_graph
from models import LINEAR_SCALING, LLAMA3_SCALING, Tiny, tiny_llama_hf

from speccc.errors import InputError
from speccc.ir.build_llama import build_llama, weight_types
from speccc.ir.types import F32

SHAPES = {
    "gqa": (Tiny(seed=1), "llama"),
    "untied": (Tiny(seed=2, tied=False, layers=3), "llama"),
    "linear": (Tiny(seed=3, rope_scaling=LINEAR_SCALING), "llama"),
    "llama3": (Tiny(seed=4, rope_scaling=LLAMA3_SCALING), "llama"),
    "one head a group": (Tiny(seed=5, kv_heads=4), "llama"),
    "wide heads": (Tiny(seed=6, head_dim=32), "llama"),
    "mistral": (Tiny(seed=7, tied=False), "mistral"),
}


def tokens_of(t: Tiny, count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(t.seed).integers(0, t.vocab, count)]


@pytest.mark.parametrize("which", SHAPES)
def test_logits_equal_transformers(which: str, tmp_path: Path) -> None:
    """Within 1e-4 of the largest logit: f32 rounding over a few hundred terms is below 1e-5."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tiny, kind = SHAPES[which]
    tokens = tokens_of(tiny, 24)
    graph, weights = tiny_graph(tiny, cache=F32)
    ours = TinySession(graph, weights, 24).forward(tokens)
    folder = tiny_llama_hf(tmp_path, model_type=kind, tiny=tiny)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("fmt", ["f32", "q4_1"])
def test_chunks_and_trees_see_what_a_chain_sees(fmt: str) -> None:
    """Rows of a tree give the logits of the chain on their path (f32 sums: 1e-5)."""
    tiny = Tiny(seed=8)
    graph, weights = tiny_graph(tiny, fmt)
    whole, parts = (TinySession(graph, weights, 32, "int8") for _ in range(2))
    prompt = tokens_of(tiny, 9)
    expected = whole.forward([*prompt, 5, 6, 7])
    rows = np.concatenate([parts.forward(prompt[:4]), parts.forward(prompt[4:])])
    assert np.allclose(rows, expected[:9], rtol=0, atol=1e-5 * np.abs(expected).max())
    tree = parts.forward([9, 5, 8, 6, 7], parents=[-1, -1, 1, 1, 3])
    assert np.allclose(tree[[1, 3, 4]], expected[9:], rtol=0, atol=1e-5 * np.abs(expected).max())
    assert not np.allclose(tree[2], expected[10], rtol=0, atol=1e-2)


def test_int8_activations_stay_near_the_decoded_weights() -> None:
    """Each activation is off by at most 1/254 of its block's maximum: well under 5 % of logits."""
    tiny = Tiny(seed=9)
    graph, weights = tiny_graph(tiny, "q8_0")
    tokens = tokens_of(tiny, 12)
    exact = TinySession(graph, weights, 12).forward(tokens)
    quantised = TinySession(graph, weights, 12, "int8").forward(tokens)
    error = np.abs(exact - quantised).max() / np.abs(exact).max()
    assert 0 < error < 0.05


def test_a_missing_tensor_is_named() -> None:
    types = weight_types(stored(Tiny()))
    del types["blk.1.ffn_up.weight"]
    with pytest.raises(InputError, match=r"blk\.1\.ffn_up\.weight: is missing"):
        build_llama(config_of(Tiny()), types)


def test_a_tensor_no_layer_uses_is_named() -> None:
    types = weight_types(stored(Tiny()))
    types["blk.0.surprise.weight"] = types["blk.0.ffn_up.weight"]
    with pytest.raises(InputError, match=r"blk\.0\.surprise\.weight: no layer"):
        build_llama(config_of(Tiny()), types)
