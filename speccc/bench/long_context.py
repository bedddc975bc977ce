"""T(1) and T(8) at several lengths of context, and how much of the growth KV bytes explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from speccc.bench.measure import Asked, Report, Settings, quartiles, verify_samples

WIDTHS = (1, 8)


@dataclass(frozen=True, slots=True)
class AtContext:
    """One engine's passes behind `context` tokens, in milliseconds by width."""

    context: int
    verify_ms: dict[int, float]
    verify_quartiles_ms: dict[int, tuple[float, float]]


def context_room(lengths: Sequence[int]) -> int:
    """The context an engine needs for these lengths, in tokens."""
    return -(-(max(lengths) + max(WIDTHS)) // 64) * 64


def measure_contexts(
    engines: Sequence[Asked],
    tokens: Sequence[int],
    lengths: Sequence[int],
    settings: Settings,
    report: Report,
) -> list[list[AtContext]]:
    """For each engine the lengths in rising order; alternating rounds as in `measure`.

    A text shorter than a context is repeated: what is read does not depend on what it says.
    """
    most = max(lengths) + max(WIDTHS)
    text = (list(tokens) * (most // len(tokens) + 1))[:most]
    out: list[list[AtContext]] = [[] for _ in engines]
    for length in sorted(set(lengths)):
        at = replace(settings, widths=WIDTHS, depth=length)
        samples = verify_samples(engines, text, at, report, f"context {length}")
        for kept, taken in zip(out, samples, strict=True):
            kept.append(
                AtContext(
                    length,
                    {width: median(times) for width, times in taken.items()},
                    {width: quartiles(times) for width, times in taken.items()},
                )
            )
    return out


def explained_ms(length: int, base: int, kv_bytes_per_token: float, bandwidth: float) -> float:
    """Milliseconds that reading the KV of the tokens past `base` takes at `bandwidth` bytes/s."""
    return 1000 * (length - base) * kv_bytes_per_token / bandwidth
