"""Plans: the order check, and activation memory by liveness."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from cpu_rig import build, golden, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from speccc.errors import VerifyError
from speccc.ir import expr as ex
from speccc.ir.expr import Load, Var
from speccc.ir.plan import Loop, Plan, PlanBuf, Role, Step, check_order, run_plan
from speccc.ir.tile import Axis, Buf, Kernel, Map, Mem, Share
from speccc.ir.types import F32
from speccc.passes.plan_memory import ALIGN, PlanMemory

M = Var("m")
ROWS = 3


def phase(name: str, reads: list[Buf], write: Buf, keep: bool = False) -> Kernel:
    """write[:, c] = the sum of everything in `reads` (and of itself) + a number of its own."""
    u, c = Var("u"), Var("c")
    value: ex.Expr = ex.lit(float(len(name) + len(reads)), F32)
    for b in [*reads, *([write] if keep else [])]:
        wide = b.shape[1]
        column = c if b is write else ex.mod(c, wide)
        value = ex.fma(Load(b, (u, column)), 0.5, value)
    body = (Share(u, M, (Map(write, (u, c), (Axis(c, write.shape[1]),), value),)),)
    return Kernel(name, tuple(dict.fromkeys([*reads, write])), (M,), body)


def buf(name: str, columns: int = 8) -> Buf:
    return Buf(name, (M, columns), F32)


def plan(body: tuple[Step, ...], roles: dict[Buf, Role]) -> Plan:
    return Plan("step", (M,), tuple(PlanBuf(b, r) for b, r in roles.items()), body)


X, A, B, Y = buf("x"), buf("a"), buf("b"), buf("y")
ROLES = {X: Role.INPUT, A: Role.ACTIVATION, B: Role.ACTIVATION, Y: Role.OUTPUT}


def test_order_of_a_good_plan() -> None:
    loop = Loop(Var("l"), 2, (phase("l", [A], B), phase("m", [B], A)))
    check_order(plan((phase("p", [X], A), loop, phase("q", [A], Y)), ROLES))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((phase("p", [A], Y),), "phase p reads a before a phase wrote it"),
        ((phase("p", [Y], A),), "phase p reads y before"),
        ((phase("p", [B], Y), phase("q", [X], B)), "phase p reads b before"),
        ((Loop(Var("l"), 2, (phase("p", [B], A), phase("q", [A], B))),), "phase p reads b before"),
        ((phase("p", [X], A), phase("q", [A, B], Y)), "phase q reads b before"),
    ],
)
def test_order_of_bad_plans(body: tuple[Step, ...], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        check_order(plan(body, ROLES))
    with pytest.raises(VerifyError, match=message):
        run_plan(plan(body, ROLES), {}, {M: 1})


def test_buffers_of_nobody() -> None:
    with pytest.raises(VerifyError, match="phase p: b is not a buffer of the plan"):
        check_order(plan((phase("p", [X], B),), {X: Role.INPUT}))
    mine = Buf("s", (M, 8), F32, Mem.SCRATCH)
    with pytest.raises(VerifyError, match="phase p: s is not a buffer of the plan"):
        check_order(plan((phase("p", [X], mine),), {X: Role.INPUT, mine: Role.ACTIVATION}))


@dataclass(frozen=True)
class Case:
    """A plan whose activations are all written before they are read."""

    plan: Plan
    out: Buf


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Chains of phases, some in a loop, over activations of several widths; reads go far back."""
    x, y = buf("x", 16), buf("y", 16)
    pool = [buf(f"t{n}", draw(st.sampled_from([3, 16, 40]))) for n in range(8)]
    ready: list[Buf] = []
    count = 0

    def step(targets: list[Buf]) -> Kernel:
        nonlocal count
        count += 1
        sources = [x, *ready]
        reads = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=3, unique=True))
        write = draw(st.sampled_from(targets))
        keep = write in ready and draw(st.booleans())
        if write not in ready:
            ready.append(write)
        return phase(f"p{count}", [b for b in reads if b is not write], write, keep)

    def run(most: int) -> list[Step]:
        return [step(pool) for _ in range(draw(st.integers(0, most)))]

    body = [*run(4), Loop(Var("l"), draw(st.integers(1, 3)), (step(pool), *run(4))), *run(4)]
    last = phase("last", [x, *ready[-3:]], y)
    roles = {x: Role.INPUT, **dict.fromkeys(pool, Role.ACTIVATION), y: Role.OUTPUT}
    return Case(plan((*body, last), roles), y)


def in_one_arena(p: Plan, arrays: dict[Buf, np.ndarray]) -> dict[Buf, np.ndarray]:  # type: ignore[type-arg]
    """The arrays with every activation a view into one arena, where the pass put it."""
    arena = PlanMemory({M: ROWS}).run(p)
    memory = np.full(arena.elements, np.nan, np.float32)
    out = dict(arrays)
    for b, at in arena.offsets.items():
        columns = int(b.shape[1])  # type: ignore[call-overload]
        out[b] = memory[at : at + ROWS * columns].reshape(ROWS, columns)
    return out


@given(cases())
@settings(max_examples=200, deadline=None)
def test_activations_that_live_together_do_not_overlap(case: Case) -> None:
    """Run in the shared arena, the plan gives what it gives with a buffer for each activation.

    The contents decide, not the pass's own idea of liveness: if a live buffer were overwritten, its
    readers would compute something else (each phase writes different numbers).
    """
    rng = np.random.default_rng(0)
    arrays = {
        b.buf: rng.standard_normal((ROWS, int(b.buf.shape[1]))).astype(np.float32)  # type: ignore[call-overload]
        for b in case.plan.bufs
    }
    apart = {b: a.copy() for b, a in arrays.items()}
    run_plan(case.plan, apart, {M: ROWS})
    together = in_one_arena(case.plan, {b: a.copy() for b, a in arrays.items()})
    run_plan(case.plan, together, {M: ROWS})
    assert same_bits(apart[case.out], together[case.out])


@given(cases())
@settings(max_examples=100, deadline=None)
def test_the_arena_is_no_larger_than_needed_and_aligned(case: Case) -> None:
    arena = PlanMemory({M: ROWS}).run(case.plan)
    sizes = {b: -(-ROWS * int(b.shape[1]) // ALIGN) * ALIGN for b in arena.offsets}  # type: ignore[call-overload]
    assert all(at % ALIGN == 0 for at in arena.offsets.values())
    assert max(sizes.values(), default=0) <= arena.elements <= sum(sizes.values())
    assert all(at + sizes[b] <= arena.elements for b, at in arena.offsets.items())


def test_memory_is_used_again() -> None:
    """Of a chain of equal buffers two live at once."""
    chain = [buf(f"t{n}", 16) for n in range(6)]
    body = [phase("p0", [X], chain[0])]
    body += [phase("p", [a], b) for a, b in pairwise(chain)]
    roles = {X: Role.INPUT, **dict.fromkeys(chain, Role.ACTIVATION), Y: Role.OUTPUT}
    arena = PlanMemory({M: ROWS}).run(plan((*body, phase("q", [chain[-1]], Y)), roles))
    assert arena.elements == 2 * ROWS * 16


def test_memory_of_an_unknown_size_is_refused() -> None:
    n = Var("n")
    odd = Buf("odd", (n, 8), F32)
    roles = {X: Role.INPUT, odd: Role.ACTIVATION}
    with pytest.raises(VerifyError, match="variable n has no value"):
        PlanMemory({M: ROWS}).run(plan((phase("p", [X], odd),), roles))


@given(st.lists(cases(), min_size=1, max_size=1))
@settings(max_examples=3, deadline=None)
def test_compiled_plans_share_the_arena(found: list[Case]) -> None:
    """Loops, phases and the arena as machine code, with fewer and more workers than rows."""
    case = found[0]
    rng = np.random.default_rng(1)
    arrays = {
        b.buf: rng.standard_normal((ROWS, int(b.buf.shape[1]))).astype(np.float32)  # type: ignore[call-overload]
        for b in case.plan.bufs
    }
    expected = golden(case.plan, arrays, {M: ROWS})
    code = build(case.plan, {M: ROWS})
    for workers in (1, 2, 5):
        assert same_bits(code.run(arrays, {M: ROWS}, workers)[case.out], expected[case.out])
