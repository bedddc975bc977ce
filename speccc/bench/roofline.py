"""What a step must read and multiply at least, and how near its time comes to the best possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from speccc.bench.ceilings import Ceilings
from speccc.errors import InputError


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a step reads: bytes of weights, of KV a token of context, and multiply-adds a row."""

    weight_bytes: int
    kv_bytes_per_token: float
    dots_per_row: int

    def read_bytes(self, m: int, depth: int) -> float:
        """Bytes of weights and KV that a step of m rows behind `depth` tokens reads."""
        return self.weight_bytes + self.kv_bytes_per_token * (depth + m)


def read_traffic(manifest: Mapping[str, Any], where: str) -> Traffic:
    """From an artifact's manifest; InputError when it was compiled before these were kept."""
    try:
        reads = manifest["traffic"]
        return Traffic(
            weight_bytes=int(reads["weight_bytes"]),
            kv_bytes_per_token=float(manifest["kv"]["bytes_per_token"]),
            dots_per_row=int(reads["dots_per_row"]),
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "manifest.json: traffic is missing: compile the model again", where=where
        ) from None


@dataclass(frozen=True, slots=True)
class Roofline:
    """The ceilings, what a step reads, and the least milliseconds of each width by either one.

    `bandwidth_percent` is the share of the measured read bandwidth that each width reaches.
    """

    ceilings: Ceilings
    traffic: Traffic
    depth: int
    bandwidth_ms: dict[int, float]
    compute_ms: dict[int, float]
    bandwidth_percent: dict[int, float]

    def document(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


def roofline(
    ceilings: Ceilings, traffic: Traffic, verify_ms: Mapping[int, float], depth: int
) -> Roofline:
    """Floors for the widths that were measured; `verify_ms` in milliseconds."""
    floor = {m: 1000 * traffic.read_bytes(m, depth) / ceilings.read_bytes_s for m in verify_ms}
    compute = {m: 1000 * m * traffic.dots_per_row / ceilings.int8_dots_s for m in verify_ms}
    percent = {m: 100 * floor[m] / taken for m, taken in verify_ms.items()}
    return Roofline(ceilings, traffic, depth, floor, compute, percent)
