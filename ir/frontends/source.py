"""A model as read from its file, whatever the file's kind: configuration, weights, tokenizer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from speccc.ir.formats import Format
from speccc.ir.tokenizer_spec import TokenizerSpec

ROPE_FREQS = "rope_freqs.weight"
PIECE = 1 << 25
"""Bytes hashed at a time: a thread beside others has to wait for the interpreter after each."""
EMBEDDING = "token_embd.weight"
HEAD = "output.weight"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding over adjacent pairs (2i, 2i+1) of the first `dim` elements of a head.

    `scaling` is "none" or "linear" (positions divided by `factor`). Any other kind that can be
    written as one divisor per frequency (llama3) arrives as the weight `rope_freqs.weight`.
    """

    theta: float
    dim: int
    scaling: str = "none"
    factor: float = 1.0

    def frequencies(
        self, divisors: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float64]:
        """Radians a position turns each pair: f64 [dim/2], theta^(-2i/dim) / factor / divisor."""
        base = self.theta ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        scaled = base / self.factor
        return scaled if divisors is None else scaled / divisors.astype(np.float64)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-family decoder; sizes in elements, `norm_eps` of every RMSNorm."""

    architecture: str
    name: str
    vocab_size: int
    hidden: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    rope: RopeConfig
    context_length: int
    tied_head: bool
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored tensor: row-major [n, k] (or [n] for norms), blocks along the last axis.

    `raw` is u8 [format.size(shape)], a read-only view of the mapped file where that is possible.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    raw: npt.NDArray[np.uint8]

    def decode(self) -> npt.NDArray[np.float32]:
        """Exact f32 values in `shape`."""
        return self.format.decode(self.raw, self.shape)


@dataclass(frozen=True)
class ModelSource:
    """A checked model file: every weight has the shape its configuration implies.

    Weights go by their GGUF names. `files` are what `fingerprint` covers; `notes` are oddities a
    user should hear of, one line each.
    """

    path: Path
    config: ModelConfig
    weights: dict[str, Weight]
    tokenizer: TokenizerSpec
    chat_template: str | None
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """SHA-256 in hex over the names and contents of the model's files."""
        total, piece = hashlib.sha256(), np.empty(PIECE, np.uint8).data
        for file in self.files:
            total.update(file.name.encode() + b"\0")
            with file.open("rb", buffering=0) as stream:
                while count := stream.readinto(piece):
                    total.update(piece[:count])
        return total.hexdigest()


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The weights a configuration implies, by GGUF name; the head only when it is not tied."""
    hidden, ffn = config.hidden, config.ffn
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, q),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    out: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for i in range(config.n_layers):
        out.update({f"blk.{i}.{part}.weight": shape for part, shape in layer.items()})
    out["output_norm.weight"] = (hidden,)
    if not config.tied_head:
        out[HEAD] = (config.vocab_size, hidden)
    return out
