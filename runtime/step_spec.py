"""The `step` part of a manifest -> `StepSpec`, every field checked."""

from __future__ import annotations

import math
from typing import Any

from speccc.errors import InputError
from speccc.ir.types import DTYPES
from speccc.runtime.artifact_file import Entries
from speccc.runtime.session import BufSpec, RopeSpec, StepSpec

MOST = 1 << 40
NAMES = ("m", "length", "slots", "tiles", "weight_bytes", "vector_elements", "layer")


def read_step(entries: Entries) -> StepSpec:
    """How to call the artifact's step; InputError names the field that is wrong."""
    where = str(entries.path)
    step = entries.manifest.get("step")
    if not isinstance(step, dict):
        raise InputError("manifest.json: step is missing: compile the model again", where=where)
    try:
        return StepSpec(
            symbol=_name(step["symbol"]),
            bufs=tuple(_buf(b) for b in step["bufs"]),
            arena=_count(step["arena"]),
            scratch={_one_of(k, DTYPES): _count(v) for k, v in step["scratch"].items()},
            sizes=tuple(_one_of(s, NAMES) for s in step["sizes"]),
            logits=_one_of(step["logits"], [b["name"] for b in step["bufs"]]),
            vocab=_count(step["vocab"]),
            max_rows=_count(step["max_rows"]),
            ropes=tuple(_rope(r) for r in step["ropes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError(
            f"manifest.json: step is damaged ({e}): compile the model again", where=where
        ) from e


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        raise ValueError(f"{value!r} is no name")
    return value


def _one_of(value: Any, allowed: Any) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is not known")
    return str(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        raise ValueError(f"{value!r} is no count")
    return value


def _buf(b: Any) -> BufSpec:
    shape = tuple(_count(d) if isinstance(d, int) else _one_of(d, NAMES) for d in b["shape"])
    return BufSpec(_name(b["name"]), _one_of(b["dtype"], DTYPES), shape)


def _rope(r: Any) -> RopeSpec:
    frequencies = tuple(float(f) for f in r["frequencies"])
    if not all(math.isfinite(f) for f in frequencies):
        raise ValueError("a frequency is not finite")
    return RopeSpec(_name(r["name"]), frequencies)
