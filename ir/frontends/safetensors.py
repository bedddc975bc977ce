"""A Hugging Face folder (config.json, *.safetensors, tokenizer.json) -> ModelSource."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, UnsupportedError
from speccc.ir.formats import F32_
from speccc.ir.frontends.checks import check_config, check_weights
from speccc.ir.frontends.folder import inside
from speccc.ir.frontends.hf_config import Config, model_config, read_json, rope_divisors
from speccc.ir.frontends.hf_tokenizer import read_chat_template, read_tokenizer
from speccc.ir.frontends.safetensors_header import MAX_ENTRIES, Entry, read_file
from speccc.ir.frontends.scales import is_scale, with_scales
from speccc.ir.frontends.source import ROPE_FREQS, ModelConfig, ModelSource, Weight

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMITTED = "launch-plan.json"
"""A file of folders that hold kernels, as `runtime.devices.launch_plan` calls it."""
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn": "attn",  # only scales of the cache
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOPS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}
# A buffer that old checkpoints carry along; it follows from the configuration.
_DERIVED = ".self_attn.rotary_emb.inv_freq"


def open_safetensors(folder: Path) -> ModelSource:
    """Check and map a folder; InputError names the file, the field and the mend."""
    where = str(folder)
    files = _weight_files(folder)
    config_file = inside(folder, CONFIG)
    values = Config(read_json(config_file), str(config_file))
    config, notes = model_config(values, folder.resolve().name)
    check_config(config, values.where)
    tokenizer = read_tokenizer(folder, values, config.vocab_size)
    config = replace(config, bos_id=tokenizer.bos, eos_ids=tokenizer.eos_ids)
    check_config(config, values.where)
    entries = _gather(folder, files)
    weights, unused = _weights(entries, config, where)
    notes = (*notes, *unused)
    if config.tied_head and weights.pop("output.weight", None) is not None:
        notes = (*notes, "tie_word_embeddings is set: lm_head.weight is not used")
    divisors = rope_divisors(values, config.rope)
    if divisors is not None:
        raw = F32_.encode(divisors).reshape(-1)
        weights[ROPE_FREQS] = Weight(ROPE_FREQS, divisors.shape, F32_, raw)
    notes = (*notes, *check_weights(config, weights, where))
    template = read_chat_template(folder)
    covered = (config_file, *(folder / name for name in sorted(files)))
    return ModelSource(folder, config, weights, tokenizer, template, covered, notes)


def _weight_files(folder: Path) -> dict[str, set[str] | None]:
    """File name -> the tensors it must hold (None: whatever it holds)."""
    where = str(folder)
    if (folder / INDEX).exists():
        return _indexed(inside(folder, INDEX))
    if (folder / SINGLE).exists():
        return {inside(folder, SINGLE).name: None}
    pickles = sorted(
        p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".pkl")
    )
    if pickles:
        raise UnsupportedError(
            f"holds {pickles[0]}, a pickle, which can run code when loaded; "
            "convert the model to safetensors",
            where=where,
        )
    raise InputError(f"lacks {SINGLE} and {INDEX}{_instead(folder)}", where=where)


def _instead(folder: Path) -> str:
    """What may have been meant by a folder without such weights."""
    if (folder / EMITTED).exists():
        return "; it is what `speccc emit` wrote: name the model"
    files = sorted(p.name for p in folder.glob("*.gguf"))
    return f"; name a GGUF file in it, as {files[0]}" if files else ""


def _indexed(index: Path) -> dict[str, set[str] | None]:
    where = str(index)
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed or len(placed) > MAX_ENTRIES:
        raise InputError("weight_map is not an object of tensors and files", where=where)
    out: dict[str, set[str] | None] = {}
    for tensor, name in placed.items():
        if not isinstance(name, str) or not name.endswith(".safetensors"):
            raise InputError(
                f"weight_map places {tensor!r:.80} in {name!r:.80}, not a .safetensors file",
                where=where,
            )
        names = out.setdefault(inside(index.parent, name).name, set())
        if names is not None:
            names.add(tensor)
    return out


def _gather(folder: Path, files: dict[str, set[str] | None]) -> dict[str, Entry]:
    out: dict[str, Entry] = {}
    for name, wanted in files.items():
        path = folder / name
        entries = read_file(path)
        if wanted is not None and set(entries) != wanted:
            odd = sorted(set(entries) ^ wanted)[0]
            raise InputError(f"{INDEX} and the file disagree about {odd!r:.80}", where=str(path))
        twice = sorted(set(entries) & set(out))
        if twice:
            raise InputError(f"tensor {twice[0]:.80} is in another file too", where=str(path))
        out.update(entries)
    return out


def _gguf_name(name: str, where: str) -> str:
    if name in _TOPS:
        return _TOPS[name]
    head, _, rest = name.removeprefix("model.layers.").partition(".")
    stem, _, kind = rest.rpartition(".")
    part = _PARTS.get(stem)
    stored = kind in ("weight", "weight_packed") or is_scale(name)
    if stored and name == f"lm_head.{kind}":
        return f"output.{kind}"
    known = stored and name.startswith("model.layers.")
    if not known or part is None or not head.isascii() or not head.isdigit():
        raise UnsupportedError(
            f"holds tensor {name:.80}, which a Llama-family model does not use", where=where
        )
    return f"blk.{head}.{part}.{kind}"


def _weights(
    entries: dict[str, Entry], config: ModelConfig, where: str
) -> tuple[dict[str, Weight], tuple[str, ...]]:
    """Entries by GGUF name, rows of q and k in adjacent-pair RoPE order; and notes."""
    stored: dict[str, Weight] = {}
    for entry in entries.values():
        if entry.name.endswith(_DERIVED):
            continue
        name = _gguf_name(entry.name, where)
        if name in stored:
            raise InputError(f"holds tensor {entry.name:.80} under two names", where=where)
        stored[name] = Weight(name, entry.shape, entry.format, entry.raw)
    heads = {"attn_q.weight": config.n_heads, "attn_k.weight": config.n_kv_heads}
    out, notes = with_scales(stored, where)
    for name, w in out.items():
        n = heads.get(name.split(".", 2)[-1])
        if n is not None and w.shape[0] == n * config.head_dim:
            out[name] = replace(w, raw=_adjacent_pairs(w.raw, n, config.head_dim))
    return out, notes


def _adjacent_pairs(raw: npt.NDArray[np.uint8], heads: int, head_dim: int) -> npt.NDArray[np.uint8]:
    """Rows of each head reordered from (first half, second half) to adjacent pairs.

    Element i and i + d/2 of a head rotate together in Hugging Face's order; GGUF puts them at 2i
    and 2i + 1 (llama.cpp's converter does the same).
    """
    rows = raw.reshape(heads, 2, head_dim // 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)
