"""T(m) where there is no device to measure: what a profile's figures allow, and that it is this.

A step reads the weights once, however many rows it has, and multiplies each row with all of them:

    T(m) = max(weight bytes / bandwidth, 2 * dots of a row * rows up to full tiles / rate)

That is the roofline (Williams, Waterman, Patterson, CACM 52:4, 2009): real steps take longer, but
the controller wants how T(m) rises with m, and corrects it by the rounds it sees.
"""

from __future__ import annotations

from collections.abc import Mapping

from speccc.targets.devices.profile import Profile
from speccc.verify_cost import WIDTHS

RATES = {"f16": ("f16",), "bf16": ("bf16",), "fp8": ("fp8", "f16")}
"""Of a class of activations, the operands that are multiplied, the first that a device has.
Others are multiplied as int8."""
HALVES = ("vulkan", "sycl", "metal")
"""Backends without fp8: its values are multiplied as halves."""
TILE = 8
"""Rows that a step multiplies at once: fewer take as long."""


def expected_ms(
    profile: Profile, traffic: Mapping[str, int], activations: str = "int8"
) -> dict[int, float]:
    """Milliseconds by width for a profile's product; empty without its bandwidth or rate.

    `traffic` has `weight_bytes` of a step and `dots_per_row`, multiply-adds.
    """
    product = profile.device
    if product is None or product.bandwidth is None:
        return {}
    kinds = RATES.get(activations, ("i8",))
    if activations == "fp8" and profile.backend in HALVES:
        kinds = ("f16",)
    rate = next((product.rates[k].value for k in kinds if k in product.rates), None)
    if rate is None:
        return {}
    reading = traffic["weight_bytes"] / (product.bandwidth.value * 1e9)
    row = 2 * traffic["dots_per_row"] / (rate * 1e12)
    return {m: 1000 * max(reading, row * -(-m // TILE) * TILE) for m in WIDTHS}


def expected_document(profile: Profile, ms: Mapping[int, float]) -> dict[str, object]:
    """Ready for the manifest, saying where the times come from; empty without any."""
    if not ms:
        return {}
    return {
        "expected_ms": {str(m): round(t, 6) for m, t in ms.items()},
        "source": f"not measured: what the figures of {profile.name} allow",
    }
