"""Which way a quantized product goes: what the rule says for each profile, and why."""

from __future__ import annotations

import re

import pytest
from cpu_rig import Spec, model_file
from models import Tiny

from speccc.emit import EmitOptions, Front, read_model
from speccc.ir.types import F16, F32, I8, I32
from speccc.passes.dot_to_fragment import LANE_ROWS
from speccc.targets.clike.schedule import few_rows, lane_cost, matrix_cost
from speccc.targets.devices import PROFILES, profile
from speccc.targets.devices.profile import Fact
from speccc.targets.registry import target
from speccc.targets.traffic import requested_bytes

FRAGMENT = [n for n, p in PROFILES.items() if p.backend in ("vulkan", "sycl", "metal")]
SPEC = Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160, layers=1), "q4_1")
YES, NO = Fact(True, "a test"), Fact(False, "a test")


@pytest.mark.parametrize("name", FRAGMENT)
def test_the_rule_takes_the_cheaper_way(name: str) -> None:
    """A tile of as many rows as it says costs less by packed dots, one of more does not."""
    found = profile(name)
    shapes = (*found.matrix(I8, I8, I32), *found.matrix(F16, F16, F32))
    for shape in shapes:
        for dot4 in (YES, NO, None):
            few, fast = few_rows(shape, dot4), dot4 is YES
            costs = [(lane_cost(m, dot4=fast), matrix_cost(shape, m)) for m in range(1, 9)]
            assert all(lane <= matrix for lane, matrix in costs[:few])
            assert all(lane > matrix for lane, matrix in costs[few:])
    assert few_rows(None, NO) == LANE_ROWS


def test_a_dot_instruction_makes_the_difference() -> None:
    """With one, packed dots serve a whole verification; by hand they pay for a few rows."""
    (shape, *_) = profile("vulkan:ada").matrix(I8, I8, I32)
    assert few_rows(shape, YES) == 8
    assert few_rows(shape, NO) == 4
    lowerings = {n: target(n).lowering for n in FRAGMENT}  # type: ignore[attr-defined]
    few = {n: low.few for n, low in lowerings.items()}
    assert few["vulkan:rtx4090"] == few["vulkan:rdna3"] == few["vulkan:xe2"] == 8
    assert few["sycl:bmg"] == few["sycl:pvc"] == 8
    assert few["metal:m4"] == few["sycl:cpu"] == few["vulkan:lavapipe"] == 4


def test_subgroups_read_side_by_side() -> None:
    """16 columns of 4 bytes: a subgroup of 32 has two invocations for each, one of 8 or 16 one."""
    shares = {n: target(n).lowering.lanes_share for n in FRAGMENT}  # type: ignore[attr-defined]
    for name, share in shares.items():
        size = profile(name).arch.subgroup
        assert share == (size is not None and size.value > 16), name
    assert not shares["vulkan:any"]  # its subgroups have a size, but nobody says which


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    return read_model(
        model_file(SPEC, tmp_path_factory.mktemp("model")), EmitOptions(), lambda *_: None
    )


def state_bytes(front: Front, name: str, m: int, context: int = 64) -> tuple[int, int]:
    """Bytes of the cache that a step reads and writes: by the target's tiles, and at least."""
    made = target(name).render(front.plan, front.arena, front.bounds)
    known = {"m": m, "length": context, "slots": 96, "tiles": 6, "head_first": 0, "head_rows": m}
    sizes = {v: known.get(v.name, 0) for v in front.plan.sizes}
    asked = requested_bytes(front.plan, sizes, made.height)["state"]
    kv = front.lowered.kv
    # Scores of whole tiles of 16 slots are computed, and values of every slot; then m are written.
    slots = -(-(context + m) // 16) * 16
    each = kv.layers * kv.heads * kv.size * kv.dtype.nbytes
    return asked, each * (slots + context + m + 2 * m)


@pytest.mark.parametrize("name", ["vulkan:ada", "vulkan:lavapipe", "sycl:bmg", "metal:m4"])
@pytest.mark.parametrize("m", [1, 4, 8, 16])
def test_the_cache_is_read_once(front: Front, name: str, m: int) -> None:
    """Two heads a KV head: 16 tokens are 32 rows, one tile."""
    asked, least = state_bytes(front, name, m)
    assert asked == least


def test_more_rows_read_it_again(front: Front) -> None:
    asked, least = state_bytes(front, "vulkan:ada", 17)
    assert asked > 1.5 * least


def test_a_text_says_which_ways_it_has(front: Front) -> None:
    """Both, with the rows at which one takes over from the other."""
    sources = target("vulkan:ada").render(front.plan, front.arena, front.bounds).sources
    (text,) = (s.text for s in sources if s.name == "ffn_down")
    assert re.search(r"for \(int few = 0; few < min\(div_ir\(8, ", text)
    assert "coopMatMulAdd(" in text
    assert "dotPacked4x8EXT(" in text
    assert "subgroupShuffleXor(" in text
