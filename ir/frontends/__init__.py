"""Model files in, `ModelSource` out: GGUF and Hugging Face safetensors directories."""

from __future__ import annotations

from speccc.ir.frontends.open import open_model
from speccc.ir.frontends.source import (
    EMBEDDING,
    HEAD,
    ROPE_FREQS,
    ModelConfig,
    ModelSource,
    RopeConfig,
    Weight,
    expected_shapes,
)

__all__ = [
    "EMBEDDING",
    "HEAD",
    "ROPE_FREQS",
    "ModelConfig",
    "ModelSource",
    "RopeConfig",
    "Weight",
    "expected_shapes",
    "open_model",
]
