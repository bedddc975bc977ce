"""What is fetched before a barrier is what the worker reads first after it."""

from __future__ import annotations

import numpy as np
import pytest
from models import Tiny
from tune_rig import lowered_tiny

from speccc.ir.expr import Load, LoadBytes, variables
from speccc.ir.interp_expr import evaluate
from speccc.ir.plan import Loop, phases
from speccc.ir.tile import Kernel
from speccc.passes.lower_graph import Lowered
from speccc.targets.cpu.fetch_ahead import Stream, streams


def _no_read(e: Load | LoadBytes) -> np.ndarray:
    raise AssertionError(f"an address must not depend on what memory holds: {e}")


def _byte(stream: Stream, layer: int, unit: int) -> int:
    values = {v: np.asarray(layer) for v in variables(stream.at)}
    values[stream.unit] = np.asarray(unit)
    return int(evaluate(stream.at, values, _no_read))


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    return lowered_tiny(Tiny(), "q4_1")


def _kernel(lowered: Lowered, name: str) -> Kernel:
    return next(k for k in phases(lowered.plan.body) if k.name == name)


@pytest.mark.parametrize(
    ("kernel", "weights"),
    [
        ("attn_q_k_v", ("attn_q",)),
        ("attn_output", ("attn_output",)),
        ("ffn_gate_up", ("ffn_gate", "ffn_up")),
        ("ffn_down", ("ffn_down",)),
    ],
)
@pytest.mark.parametrize("unit", [0, 1])
def test_streams_begin_at_the_units_of_each_layer(
    lowered: Lowered, kernel: str, weights: tuple[str, ...], unit: int
) -> None:
    found = streams(_kernel(lowered, kernel))
    slots = {m.name: m for m in lowered.weights.matrices}
    assert len(found) == len(weights)
    for layer in (0, 1):
        for stream, name in zip(found, weights, strict=True):
            slot = slots[f"blk.{layer}.{name}.weight"]
            # Rows that RoPE turns come a group of panels a unit.
            panels = (slot.group or 16) // 16
            first = slot.offset + unit * panels * slot.matrix.panel_bytes
            assert _byte(stream, layer, unit) == first


def test_phases_without_packed_weights_have_no_stream(lowered: Lowered) -> None:
    (loop,) = (s for s in lowered.plan.body if isinstance(s, Loop))
    attention = [k for k in phases(loop.body) if not any(b.name == "weights" for b in k.bufs)]
    assert len(attention) >= 2
    assert all(streams(k) == () for k in attention)
