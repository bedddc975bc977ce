"""Row tiles of Triton texts: as high as a step's rows, so that weights and cache are read once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attention_rig import Heads, lowered
from cpu_rig import Spec, golden, model_file, same_bits
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from hypothesis import given
from hypothesis import strategies as st
from models import Tiny
from test_numerics import PlanSession, tokens_of
from triton_rig import rendered, stepped

from speccc.emit import EmitOptions, Front, _sizes, _traffic, read_model
from speccc.ir.expr import Var, lit, mul
from speccc.ir.plan import Role, phases
from speccc.ir.tile import RowTiles, walk
from speccc.runtime.rows import chain
from speccc.targets.registry import target
from speccc.targets.traffic import requested_bytes
from speccc.targets.triton.engine import by_engine
from speccc.targets.triton.heights import TALLEST, TOKENS, height, heights
from speccc.targets.triton.schedule import Shape

# Three query heads a KV head, as SmolLM2 has them: 12 folded rows at m = 4, 24 at m = 8.
SPEC = Spec(Tiny(seed=8, hidden=96, heads=6, kv_heads=2, ffn=64, layers=2), "q4_1")
SMALL = Spec(Tiny(seed=7, hidden=32, heads=2, kv_heads=1, ffn=64, layers=1), "q4_0")
M = Var("m")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    path = model_file(SPEC, tmp_path_factory.mktemp("model"))
    return read_model(path, EmitOptions(), lambda *_: None)


def tiles(front: Front) -> list[RowTiles]:
    return [s for k in phases(front.plan.body) for s in walk(k.body) if isinstance(s, RowTiles)]


@given(
    m=st.integers(1, 4 * TOKENS),
    per=st.sampled_from([1, 2, 3, 4, 7, 8]),
    few=st.sampled_from([8, 16]),
)
def test_one_tile_holds_a_step(front: Front, m: int, per: int, few: int) -> None:
    """Up to 16 tokens; a tile is never twice as high as it must be, if it is higher than few."""
    for s in tiles(front):
        folded = RowTiles(s.var, mul(M, per) if per > 1 else M, s.variants)
        made = height(folded, Shape(tokens=few), m * per)
        assert made in heights(folded, Shape(tokens=few))
        assert made <= max(few, TALLEST)
        if m <= TOKENS:
            assert m * per <= made
        assert made == few or made < 2 * m * per


@pytest.mark.parametrize("name", ["cuda:sm_90", "rocm:gfx1100"])
def test_a_step_reads_once(name: str, front: Front) -> None:
    """The report's bytes: the cache and the weights once; by the CPU's widths several times."""
    made = target(name).render(front.plan, front.arena, front.bounds)
    one, two = (_traffic(front, made, m)["asked"]["weights"] for m in (1, 2))
    for m in (1, 4, 8, TOKENS):
        traffic = _traffic(front, made, m)
        needed, asked = traffic["needed"], traffic["asked"]
        # Unused slots of the last tile of 16 and RoPE's tables: a few percent.
        assert needed["state"] <= asked["state"] < 1.1 * needed["state"]
        # A row brings its own embedding and reads the norms' vectors: no matrix.
        assert asked["weights"] == one + (m - 1) * (two - one)
        assert two - one < needed["weights"] / 10
        narrow = requested_bytes(front.plan, _sizes(front, m))["state"]
        assert (narrow > 1.9 * asked["state"]) == (m >= 4)


@given(eights=st.integers(1, 4))
def test_full_tiles_count_as_the_programs_own(front: Front, eights: int) -> None:
    """Where rows fill all tiles of 8 the count by two bodies is the count by the body of 8."""
    sizes = _sizes(front, 8 * eights)
    assert requested_bytes(front.plan, sizes, lambda s, extent: 8) == requested_bytes(
        front.plan, sizes
    )


def test_a_row_tile_that_stays_as_it_is() -> None:
    """One without a body that can be masked takes its rows one by one."""
    s = RowTiles(Var("row"), lit(5), ((8, ()), (1, ())))
    assert heights(s, Shape(tokens=8)) == (8,)


def test_amds_tiles_have_rows_for_each_warp() -> None:
    """Of sums by its engine: of a tile of 32 rows all four warps would make all."""
    low = lowered(Heads(16, 2, 16, "f16", "f16"))
    found = [s for k in low.kernels for s in walk(k.body) if isinstance(s, RowTiles)]
    summed = [s for s in found if any(by_engine(t) for _, body in s.variants for t in walk(body))]
    assert {heights(s, Shape(tokens=16)) for s in summed} == {(16, 32, 64, 128)}
    assert {heights(s, Shape(tokens=16, amd=True)) for s in summed} == {(16, 64, 128)}


@pytest.mark.parametrize("tokens", [8, 16])
def test_a_tile_in_memory_is_as_high(tokens: int, tmp_path: Path) -> None:
    """Heads are turned in memory: a tile of sixteen rows must not run into what lies behind."""
    session = PlanSession(SMALL, tmp_path, slots=16)
    plan = session.lowered.plan
    wanted = {"m": 10, "head_rows": 10}
    session.sizes = {v: wanted.get(v.name, n) for v, n in session.sizes.items()}
    depth, path = chain(10, 64)
    given = {"tokens": tokens_of(SMALL.tiny, 10), "positions": depth, "depth": depth, "path": path}
    arrays = {b.buf: np.zeros(session.shape(b.buf), b.buf.dtype.numpy) for b in plan.bufs}
    arrays |= session.kept
    for b in plan.by_role(Role.INPUT):
        arrays[b] = np.asarray(given[b.name], b.dtype.numpy)
    require("triton")
    with TritonMachine() as machine:
        text = rendered(plan, Shape(tokens=tokens, units=2, fill=1, amd=tokens == 16))
        got = stepped(machine, text, arrays, session.sizes)
    expected = golden(plan, arrays, session.sizes)
    for b in plan.bufs:
        if b.role is not Role.WORKSPACE:
            assert same_bits(got[b.buf], expected[b.buf]), b.buf.name
