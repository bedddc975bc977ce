"""The facts of a manifest beside the step, checked: what the model is and what it was built for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speccc.errors import InputError
from speccc.runtime.rows import Splits
from speccc.runtime.session import StepSpec
from speccc.runtime.step_spec import LAUNCHED, MOST

DRAFTERS = ("ngram", "none")
TARGETS = ("cpu", *LAUNCHED)
"""Backends of the targets that this version runs."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What loading a model needs to know. `verify_ms` is T(m) by width, empty if not measured.

    `splits` has the widths of the passes for rows that are not best run as one.
    """

    context_length: int
    context: int
    drafter: str
    target: str
    isa: str
    machine: str
    verify_ms: Mapping[int, float]
    splits: Splits

    @property
    def backend(self) -> str:
        """The target's backend, one of `TARGETS` if this version runs it."""
        return self.target.partition(":")[0]


def read_facts(manifest: Mapping[str, Any], spec: StepSpec, vocab: int, where: str) -> Facts:
    """Checks the manifest against the step and the tokenizer; InputError names the field."""
    try:
        model = _object(manifest, "model")
        kv = _object(manifest, "kv")
        length = _count(model, "context_length", MOST)
        facts = Facts(
            context_length=length,
            context=_count(manifest, "context", length),
            drafter=_text(manifest, "drafter", DRAFTERS),
            target=_text(manifest, "target"),
            isa=_text(manifest, "isa"),
            machine=_text(manifest, "machine"),
            verify_ms=_times(manifest.get("verify_ms", {})),
            splits=_splits(manifest.get("verify_cost", {}), spec.max_rows),
        )
        cache = next(b for b in spec.bufs if b.name == "k_cache")
        _same("model.vocab_size", model.get("vocab_size"), spec.vocab)
        _same("the tokenizer's vocabulary", vocab, spec.vocab)
        geometry = (model.get("n_layers"), model.get("n_kv_heads"), model.get("head_dim"))
        _same("model's KV geometry", geometry, (cache.shape[0], cache.shape[1], cache.shape[3]))
        _same("kv.type", kv.get("type"), cache.dtype)
        _numbers(manifest.get("memory_plan", {}))
    except ValueError as e:
        raise InputError(f"manifest.json: {e}: compile the model again", where=where) from e
    return facts


def _object(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = manifest.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is missing")
    return value


def _count(record: Mapping[str, Any], name: str, most: int) -> int:
    value = record.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a number from 1 to {most}")
    return value


def _text(manifest: Mapping[str, Any], name: str, allowed: tuple[str, ...] = ()) -> str:
    value = manifest.get(name)
    if not isinstance(value, str) or not value.isprintable() or (allowed and value not in allowed):
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    return value


def _same(what: str, found: object, expected: object) -> None:
    if found != expected or isinstance(found, bool):
        raise ValueError(f"{what} is {str(found)[:40]!r} where the step has {expected!r}")


def _numbers(plan: Any) -> None:
    if not isinstance(plan, dict) or not all(_is_number(v) and v >= 0 for v in plan.values()):
        raise ValueError("memory_plan is damaged")


def _times(table: Any) -> dict[int, float]:
    if not isinstance(table, dict) or not all(
        w.isascii() and w.isdigit() and len(w) < 5 and _is_number(ms) and ms > 0
        for w, ms in table.items()
    ):
        raise ValueError("verify_ms is damaged")
    times = {int(w): float(ms) for w, ms in table.items()}
    if times and (len(times) != len(table) or min(times) != 1):
        raise ValueError("verify_ms has no width of 1, or one twice")
    return times


def _splits(cost: Any, limit: int) -> dict[int, tuple[int, ...]]:
    table = cost.get("splits", {}) if isinstance(cost, dict) else None
    if not isinstance(table, dict):
        raise ValueError("verify_cost is damaged")
    out: dict[int, tuple[int, ...]] = {}
    for rows, widths in table.items():
        fits = rows.isascii() and rows.isdigit() and 1 <= len(rows) < 5 and isinstance(widths, list)
        if not fits or not all(type(w) is int and 1 <= w <= limit for w in widths):
            raise ValueError("verify_cost.splits is damaged")
        if not sum(widths[:-1]) < int(rows) <= sum(widths):
            raise ValueError(f"verify_cost.splits does not fit {rows} rows")
        out[int(rows)] = tuple(widths)
    return out


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e18 and math.isfinite(value)
