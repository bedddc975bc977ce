"""A whole model for Metal, on the stand-in: each phase, each step and each token as golden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_numerics
from cpu_rig import Spec, model_file, same_bits
from emulation.metal_stand_in import MetalStandIn, stand_in
from emulation.require import require
from fragment_rig import Array
from golden_text import check_golden
from metal_rig import launched, lowered, rendered
from metal_step import MetalModel
from models import Tiny
from table_session import ScriptedDrafter, TableTokens
from test_fragment_plan import Compared
from test_numerics import PlanSession, tokens_of

from speccc.emit import EmitOptions, Front, read_model
from speccc.ir.expr import Var
from speccc.ir.fragment import FragmentKernel
from speccc.ir.plan import phases
from speccc.ir.tile import Buf
from speccc.runtime.controller import FixedController
from speccc.runtime.generate import Generation, collect, generate
from speccc.targets.clike.render import KernelText
from speccc.targets.devices.profile import Fact, Profile
from speccc.targets.launch_plan import launches_per_step
from speccc.targets.metal import msl
from speccc.targets.metal import target as metal_target
from speccc.targets.metal.target import MetalTarget
from speccc.targets.registry import target, target_names
from speccc.targets.report import kernel_facts

# Between them: 4-bit, 8-bit and float weights, a half and an int8 cache, a tied and an untied head.
SPECS = {
    "q4_1, kv f16": Spec(Tiny(seed=2, hidden=96, heads=6, kv_heads=3, ffn=160, layers=1), "q4_1"),
    "f16, kv i8": Spec(Tiny(seed=4, tied=False, layers=1), "f16", "i8"),
    "q8_0, kv f16": Spec(Tiny(seed=6, layers=2), "q8_0"),
}
METAL = target("metal:m4")
LETTERS = TableTokens([bytes([n % 256]) for n in range(300)])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> MetalStandIn:
    require("metal")
    return stand_in(tmp_path_factory.mktemp("metal"))


def front_of(spec: Spec, folder: Path) -> Front:
    return read_model(model_file(spec, folder), EmitOptions(kv=spec.kv), lambda *_: None, "metal")


@pytest.mark.parametrize("which", list(SPECS)[:2])
def test_every_phase_equals_block_level(
    which: str, machine: MetalStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each phase of a chain of 9 tokens and of a tree of 5, compared by itself."""
    texts: dict[FragmentKernel, KernelText] = {}

    def on_stand_in(
        kernel: FragmentKernel, bufs: Mapping[Buf, Array], scalars: Mapping[Var, int]
    ) -> Mapping[Buf, Array]:
        texts.setdefault(kernel, rendered(kernel))
        return launched(machine, texts[kernel], bufs, scalars)

    compared = Compared(on_stand_in, lowered)
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    session = PlanSession(SPECS[which], tmp_path)
    tokens = tokens_of(SPECS[which].tiny, 14)
    session.forward(tokens[:9])
    session.forward(tokens[9:], [-1, 0, 0, 1, -1])
    assert compared.phases >= 2 * len(texts) > 12


@pytest.mark.parametrize("which", SPECS)
def test_steps_equal_golden(
    which: str, machine: MetalStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole steps by the real driver: 9 tokens, then 1, then 5, as a chain and as a tree."""
    spec = SPECS[which]
    session = MetalModel(front_of(spec, tmp_path), METAL, machine).session(monkeypatch)
    golden = PlanSession(spec, tmp_path)
    tokens = tokens_of(spec.tiny, 20)
    for part, parents in ((tokens[:9], None), (tokens[9:10], None), (tokens[10:15], None),
                          (tokens[15:], [-1, 0, 0, 1, -1])):  # fmt: skip
        assert same_bits(session.forward(part, parents=parents), golden.forward(part, parents))


def test_logits_do_not_depend_on_the_width(
    machine: MetalStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lossless: six tokens in one step, or one by one, give the same bits."""
    spec = SPECS["q4_1, kv f16"]
    model = MetalModel(front_of(spec, tmp_path), METAL, machine)
    together, alone = (model.session(monkeypatch) for _ in range(2))
    tokens = tokens_of(spec.tiny, 6)
    rows = [alone.forward([t])[0] for t in tokens]
    assert same_bits(together.forward(tokens), np.stack(rows))


def test_a_model_generates(
    machine: MetalStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden machine's tokens, without drafts, with a chain of them and with a tree."""
    spec = SPECS["q4_1, kv f16"]
    model = MetalModel(front_of(spec, tmp_path), METAL, machine)
    prompt, count = tokens_of(spec.tiny, 5), 8
    golden, said = PlanSession(spec, tmp_path), list(prompt)
    logits = golden.forward(prompt)
    while len(said) < len(prompt) + count:
        said.append(int(logits[-1].argmax()))
        logits = golden.forward(said[-1:])
    want = tuple(said[len(prompt) :])

    def generated(drafter: ScriptedDrafter | None) -> Generation:
        session = model.session(monkeypatch)
        options = {"max_tokens": count, "drafter": drafter, "controller": FixedController(4)}
        return collect(generate(session, LETTERS, prompt, **options))

    assert generated(None).tokens == want
    for branches in (0, 1):
        drafter = ScriptedDrafter(want, lambda at: at in (2, 5), spec.tiny.vocab, branches)
        done = generated(drafter)
        assert done.tokens == want
        assert done.stats.rounds < count


def test_emitted_texts_are_the_same_each_time(tmp_path: Path) -> None:
    """Two models read anew: equal texts, launches and places."""
    spec = SPECS["q4_1, kv f16"]
    fronts = [front_of(spec, tmp_path) for _ in range(2)]
    one, two = (METAL.render(f.plan, f.arena, f.bounds) for f in fronts)
    assert [s.text for s in one.sources] == [s.text for s in two.sources]
    assert [s.name for s in one.sources] == [k.name for k in phases(fronts[0].plan.body)]
    assert launches_per_step(one) == len(one.sources)  # one layer


def test_the_report_counts_matrix_instructions(tmp_path: Path) -> None:
    """Each phase that multiplies packed weights does so by simdgroup matrices."""
    front = front_of(SPECS["q4_1, kv f16"], tmp_path)
    rendered_plan = METAL.render(front.plan, front.arena, front.bounds)
    counts = {
        s.name: kernel_facts({"metal": s.text.encode()}).instructions for s in rendered_plan.sources
    }
    assert sum(bool(c) for c in counts.values()) == 5  # qkv, attention's output, ffn's two, head
    assert all(c["simdgroup_multiply_accumulate"] % 4 == 0 for c in counts.values() if c)


@pytest.mark.parametrize("name", [n for n in target_names() if n.startswith("metal:")])
def test_every_profile_serves_every_format(name: str, tmp_path: Path) -> None:
    for spec in SPECS.values():
        assert target(name).unsupported(front_of(spec, tmp_path).plan) is None


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = front_of(SPECS["q4_1, kv f16"], tmp_path).plan
    arch = METAL.profile.arch
    small = MetalTarget(Profile(replace(arch, shared_bytes=Fact(1024, "a test"))))
    assert re.fullmatch(
        r"phase attn_q_k_v needs \d+ bytes of shared memory, not 1024",
        small.unsupported(plan) or "",
    )
    silent = MetalTarget(Profile(replace(arch, subgroup=None, shared_bytes=None, matrix=None)))
    assert silent.unsupported(plan) is None
    monkeypatch.setattr(msl, "MOST_BUFFERS", 8)
    assert (METAL.unsupported(plan) or "").endswith("buffers, but Metal binds 8")


def test_a_compilers_version_is_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    here = METAL.fingerprint()
    assert list(METAL.stages()) == ["metallib"]
    monkeypatch.setattr(metal_target, "metal_version", lambda: "Apple metal version 1")
    others = (METAL, target("metal:m4max"), replace(METAL, few=1), replace(METAL, matrix=False))
    assert len({here, *(t.fingerprint() for t in others)}) == 5


@pytest.mark.parametrize("name", ["ffn_down", "attn_softmax"])
def test_golden_texts(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A product and a reduction, to be read."""
    front = front_of(SPECS["q4_1, kv f16"], tmp_path)
    sources = METAL.render(front.plan, front.arena, front.bounds).sources
    (text,) = (s.text for s in sources if s.name == name)
    assert text.startswith(f"// {name} for Metal, metal:m4, ")
    check_golden(f"metal/{name}.metal", text, request)
