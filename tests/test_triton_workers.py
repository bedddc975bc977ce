"""The persistent step by several workers at once: each a process, all on the same memory.

A worker is held before a phase until all others wait for it, or have gone on without it, so what
a barrier is for shows each time and not by chance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import Spec, golden, model_file, same_bits, single
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from models import Tiny
from table_session import ScriptedDrafter, TableTokens
from test_numerics import PlanSession, tokens_of
from triton_driver import InterpretedModel
from triton_rig import Array, Stepper, golden_tokens, rendered

from speccc.emit import EmitOptions, read_model
from speccc.ir import expr as ex
from speccc.ir.expr import Expr, Load, Var
from speccc.ir.plan import Plan, Role
from speccc.ir.tile import Buf, Kernel, Map, Share
from speccc.ir.types import F32
from speccc.runtime.controller import FixedController
from speccc.runtime.generate import collect, generate
from speccc.runtime.rows import tree
from speccc.targets.registry import target
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.step import BARRIER, LATE, SPINS, StepText
from speccc.targets.triton.target import TritonTarget

SPEC = Spec(Tiny(seed=7, hidden=32, heads=2, kv_heads=1, ffn=64), "q4_0")
NARROW = Shape(units=1)
"""As many units in a phase as there can be: work for several."""
PROCESSES = 3
PARENTS = [-1, 0, 0]
COUNTED = """import triton
import triton.language as tl


@triton.jit
def count(words, trips):
    for trip in range(0, trips):
        tl.atomic_add(words, 1, sem="acq_rel")
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine(timeout_s=120, processes=PROCESSES) as running:
        yield running


@dataclass(frozen=True)
class Case:
    """A step of a tree of three rows after three tokens: what it is given, what golden makes."""

    plan: Plan
    before: Mapping[Buf, Array]
    after: Mapping[Buf, Array]
    sizes: Mapping[Var, int]
    text: StepText

    def wrong(self, got: Mapping[Buf, Array]) -> list[str]:
        """Buffers that are not golden's; unused slots of a workspace are nobody's."""
        kept = [b.buf for b in self.plan.bufs if b.role is not Role.WORKSPACE]
        return [b.name for b in kept if not same_bits(got[b], self.after[b])]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    session = PlanSession(SPEC, tmp_path_factory.mktemp("model"), slots=16)
    session.forward(tokens_of(SPEC.tiny, 3))
    return tree_behind(session, 3)


def tree_behind(session: PlanSession, length: int) -> Case:
    """The step of a tree behind what the session holds."""
    tokens = tokens_of(SPEC.tiny, 3 + len(PARENTS))
    plan = session.lowered.plan
    wanted = {"m": len(PARENTS), "head_rows": len(PARENTS), "length": length}
    session.sizes = {v: wanted.get(v.name, n) for v, n in session.sizes.items()}
    depth, path = tree(PARENTS, 64)
    given = {"tokens": tokens[3:], "positions": length + depth, "depth": depth, "path": path}
    before = {
        b.buf: np.full(session.shape(b.buf), 77, b.buf.dtype.numpy) for b in plan.bufs
    } | session.kept
    for b in plan.by_role(Role.INPUT):
        before[b] = np.asarray(given[b.name], b.dtype.numpy)
    after = golden(plan, before, session.sizes)
    return Case(plan, before, after, session.sizes, rendered(plan, NARROW))


def run(machine: TritonMachine, case: Case, text: StepText, workers: int) -> dict[Buf, Array]:
    own = {b: machine.share(a) for b, a in case.before.items()}
    Stepper(machine, text, workers).run(own, case.sizes)
    return own


def test_atomics_of_processes_count(machine: TritonMachine) -> None:
    """None of the additions of three processes to one word is lost."""
    words = machine.empty((1,), np.int64)
    machine.run(COUNTED, "count", (PROCESSES,), {"words": words, "trips": 1000})
    assert words[0] == PROCESSES * 1000


@pytest.mark.parametrize("workers", [1, 2, PROCESSES])
def test_workers_make_the_golden_bits(machine: TritonMachine, case: Case, workers: int) -> None:
    """However many there are, and whichever way they happen to meet."""
    assert case.wrong(run(machine, case, case.text, workers)) == []


def test_steps_of_changing_crews(machine: TritonMachine, case: Case) -> None:
    """Each step takes up the count of the one before, which had other workers."""
    own = Stepper(machine, case.text, PROCESSES)
    meetings = case.text.kernel.source.count("meet(") - 1
    assert meetings > 1
    total = 0
    for workers in (2, PROCESSES, 1):
        own.workers = workers
        bufs = {b: machine.share(a) for b, a in case.before.items()}
        own.run(bufs, case.sizes)
        assert case.wrong(bufs) == []
        total += workers * _barriers(case.plan)
        assert own.own[BARRIER].tolist() == [total, 0, total]


def _barriers(plan: Plan) -> int:
    inside = [len(s.body) * s.extent if hasattr(s, "extent") else 1 for s in plan.body]
    return sum(inside) - 1


@pytest.mark.parametrize(("n", "barriers"), [(1, 1), (3, 1), (4, 2), (9, 2)])
def test_a_phase_without_work_is_left_out_with_its_barrier(
    machine: TritonMachine, n: int, barriers: int
) -> None:
    """The middle one of three, where there are not four elements: two workers meet once less."""
    size, i = Var("n"), Var("i")
    x, y, z = (Buf(name, (size,), F32) for name in "xyz")

    def phase(name: str, to: Buf, extent: Expr, index: Expr, value: Expr) -> Kernel:
        body = (Share(i, extent, (Map(to, (index,), (), value),)),)
        return Kernel(name, (x, y, z), (size,), body)

    fourth = ex.mul(i, 4)
    first = phase("first", y, size, i, ex.add(Load(x, (i,)), 1.0))
    middle = phase("middle", z, ex.idiv(size, 4), fourth, ex.mul(Load(y, (fourth,)), 3.0))
    last = phase("last", y, size, i, ex.add(Load(y, (i,)), Load(z, (i,))))
    plan, sizes = single((first, middle, last)), {size: n}
    rng = np.random.default_rng(n)
    before = {b: rng.standard_normal(n).astype(np.float32) for b in (x, y, z)}
    own = Stepper(machine, rendered(plan, NARROW), 2)
    got = {b: machine.share(a) for b, a in before.items()}
    own.run(got, sizes)
    after = golden(plan, before, sizes)
    assert all(same_bits(got[b], after[b]) for b in before)
    assert own.own[BARRIER].tolist() == [2 * barriers, 0, 2 * barriers]


@pytest.mark.parametrize(("length", "merges"), [(630, 0), (700, SPEC.tiny.layers)])
def test_attention_in_parts(
    machine: TritonMachine, tmp_path: Path, length: int, merges: int
) -> None:
    """Behind few slots there is one part, and nothing to put together: no barrier for that."""
    session = PlanSession(SPEC, tmp_path, slots=704, split=True)
    rng = np.random.default_rng(length)
    for b, kept in session.kept.items():
        if b in session.lowered.plan.by_role(Role.STATE):
            session.kept[b] = rng.standard_normal(kept.shape).astype(kept.dtype)
    case = tree_behind(session, length)
    assert sum("merge" in name for name in _phases(case.text)) == 1
    own = Stepper(machine, case.text, 2)
    bufs = {b: machine.share(a) for b, a in case.before.items()}
    own.run(bufs, case.sizes)
    assert case.wrong(bufs) == []
    assert own.own[BARRIER][0] == 2 * (_barriers(case.plan) - SPEC.tiny.layers + merges)


def test_a_worker_that_is_always_last(machine: TritonMachine, case: Case) -> None:
    """Each of two workers in turn comes to every phase when the other has done it."""
    for late in (0, 1):
        text = held(case.text, _phases(case.text), late)
        assert case.wrong(run(machine, case, text, 2)) == []


def test_each_barrier_is_needed(machine: TritonMachine, case: Case) -> None:
    """Without one of them, a worker that is late spoils the step; so for every barrier."""
    names = _phases(case.text)[:-1]
    assert len(names) == len(set(names)) > 8
    for name in names:
        bare = unmet(case.text, name)
        assert any(
            case.wrong(run(machine, case, held(bare, [name], late), 2)) for late in (1, 0)
        ), f"nothing shows that the barrier after {name} is missing"


def test_a_worker_that_dies_is_noticed(machine: TritonMachine, case: Case) -> None:
    """The others give up waiting and say so."""
    impatient = _with(case.text, lambda s: s.replace(str(SPINS), "200"))
    first = _phases(case.text)[3]
    dead = _with(
        impatient,
        partial(re.sub, rf"(?m)^( +)({first}\()", r"\1if worker == 1:\n\1    return\n\1\2"),
    )
    stepper = Stepper(machine, dead, 2)
    stepper.run({b: machine.share(a) for b, a in case.before.items()}, case.sizes)
    assert stepper.own[BARRIER][LATE] == 1


@pytest.mark.parametrize("drafts", [False, True])
def test_two_workers_generate(machine: TritonMachine, tmp_path: Path, drafts: bool) -> None:
    """A text by two workers is golden's, with drafts that are partly right and without."""
    front = read_model(model_file(SPEC, tmp_path), EmitOptions(kv=SPEC.kv), lambda *_: None)
    made = target("cuda:sm_90")
    assert isinstance(made, TritonTarget)
    model = InterpretedModel(front, replace(made, shape=NARROW), machine)
    prompt, count = tokens_of(SPEC.tiny, 2), 3
    want = golden_tokens(SPEC, tmp_path, prompt, count)
    drafter = ScriptedDrafter(want, lambda at: at == 1, SPEC.tiny.vocab, 1) if drafts else None
    session, driver = model.session(workers=2)
    letters = TableTokens([bytes([n % 256]) for n in range(300)])
    options = {"max_tokens": count, "drafter": drafter, "controller": FixedController(3)}
    assert collect(generate(session, letters, prompt, **options)).tokens == want
    assert driver.widest == 2


def _phases(text: StepText) -> list[str]:
    """Names of the phases in order, as the step calls them."""
    step = text.kernel.source.split(f"def {text.kernel.name}(")[1]
    return re.findall(r"(?m)^ +(\w+)\(.*, worker, workers\)$", step)


def _with(text: StepText, edit: Callable[[str], str]) -> StepText:
    changed = edit(text.kernel.source)
    assert changed != text.kernel.source
    return replace(text, kernel=replace(text.kernel, source=changed))


def held(text: StepText, names: Sequence[str], late: int) -> StepText:
    """The step with worker `late` held before these phases until the others have next arrived."""
    hold = (
        rf"\1if worker == {late}:\n"
        rf"\1    while tl.atomic_load({BARRIER}, sem='acquire') < goal + workers - 1:\n"
        r"\1        pass\n\1\2"
    )
    calls = "|".join(names)
    slow = _with(text, partial(re.sub, rf"(?m)^( +)((?:{calls})\(.*, worker, workers\))$", hold))
    # One more barrier, so that there is an arrival to wait for behind the last phase too.
    end = "    if worker == 0:\n        tl.store"
    closed = f"    goal += workers\n    meet({BARRIER}, goal)\n{end}"
    return _with(slow, lambda s: closed.join(s.rsplit(end, 1)))


def unmet(text: StepText, name: str) -> StepText:
    """The step without the barrier after a phase."""
    barrier = rf"(?m)^( +{name}\(.*, worker, workers\)\n) +goal \+= workers\n +meet\(.*\)\n"
    return _with(text, partial(re.sub, barrier, r"\1"))
