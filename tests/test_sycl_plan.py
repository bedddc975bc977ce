"""A whole model in SYCL on Intel's CPU device: each phase, each step and each token as golden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_numerics
from cpu_rig import Spec, compiled, compiled_smollm2, model_file, same_bits
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.sycl_kernel import launched
from emulation.sycl_model import SyclModel
from golden_text import check_golden
from sampling_rig import Sampled
from table_session import ScriptedDrafter, TableTokens
from test_fragment_plan import SPECS, Bufs, Compared, Sizes
from test_numerics import PlanSession, tokens_of

from speccc.emit import EmitOptions, Front, read_model
from speccc.ir.fragment import FragmentKernel
from speccc.ir.plan import phases
from speccc.models import smollm2
from speccc.runtime.controller import FixedController
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.generate import Generation, collect, generate
from speccc.targets.base import Source, ToolMissingError
from speccc.targets.devices.profile import Fact
from speccc.targets.launch_plan import launches_per_step
from speccc.targets.registry import target, target_names
from speccc.targets.report import kernel_facts
from speccc.targets.sycl import target as sycl_target
from speccc.targets.sycl.target import SyclTarget
from speccc.targets.sycl_build import Command, XeCode, compile_xe, find_ocloc

BMG = target("sycl:bmg")
assert isinstance(BMG, SyclTarget)
QUANTIZED, FLOATS = (SPECS[name] for name in ("q4_1, kv f16", "f16, kv i8"))
LETTERS = TableTokens([bytes([n % 256]) for n in range(300)])


@pytest.fixture(scope="module")
def device() -> Iterator[SyclCpu]:
    require("sycl")
    with SyclCpu() as running:
        yield running


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> GpuSession:
    """Of the quantized model; a test may find tokens in it, and takes them out."""
    require("sycl")
    path = model_file(QUANTIZED, tmp_path_factory.mktemp("model"))
    return SyclModel(path, BMG).session()


def test_every_phase_on_the_device(
    device: SyclCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tokens, one more, then a tree: each phase is compared by itself."""

    def on_device(kernel: FragmentKernel, bufs: Bufs, scalars: Sizes) -> Bufs:
        return launched(device, kernel, bufs, scalars)

    compared = Compared(on_device, BMG.lowering.run)
    monkeypatch.setattr(test_numerics, "run_plan", compared.run_plan)
    machine = PlanSession(FLOATS, tmp_path)
    tokens = tokens_of(FLOATS.tiny, 9)
    machine.forward(tokens[:5])
    machine.forward(tokens[5:6])
    machine.forward(tokens[6:], [-1, 0, 0])
    assert compared.phases == 3 * len(compared.lowered) >= 30


def test_steps_equal_golden(session: GpuSession, tmp_path: Path) -> None:
    """Whole steps by the real driver: 9 tokens, then 1, then 5, as a chain and as a tree."""
    session.truncate(0)
    golden, tokens = PlanSession(QUANTIZED, tmp_path), tokens_of(QUANTIZED.tiny, 20)
    for part, parents in ((tokens[:9], None), (tokens[9:10], None), (tokens[10:15], None),
                          (tokens[15:], [-1, 0, 0, 1, -1])):  # fmt: skip
        assert same_bits(session.forward(part, parents=parents), golden.forward(part, parents))


def test_picks_equal_the_cpu_targets(session: GpuSession) -> None:
    """A tree of which a path is kept, picks behind it, then logits: as the CPU target's step."""
    session.truncate(0)
    theirs, tokens = compiled(QUANTIZED).session(context=64), tokens_of(QUANTIZED.tiny, 18)
    assert same_bits(session.forward(tokens[:7]), theirs.forward(tokens[:7]))
    for s in (session, theirs):
        s.pick(tokens[7:12], parents=[-1, 0, 0, 2, 3])
        s.keep([0, 2, 3, 4])
    assert same_bits(session.pick(tokens[12:15]), theirs.pick(tokens[12:15]))
    assert same_bits(session.forward(tokens[15:17]), theirs.forward(tokens[15:17]))


def test_logits_do_not_depend_on_the_width(session: GpuSession) -> None:
    """Lossless: six tokens in one step, or one by one, give the same bits."""
    tokens = tokens_of(QUANTIZED.tiny, 6)
    session.truncate(0)
    together = session.forward(tokens)
    session.truncate(0)
    assert same_bits(together, np.stack([session.forward([t])[0] for t in tokens]))


def test_a_model_generates(session: GpuSession, tmp_path: Path) -> None:
    """The golden machine's tokens, without drafts, with a chain of them and with a tree."""
    prompt, count = tokens_of(QUANTIZED.tiny, 5), 8
    golden, said = PlanSession(QUANTIZED, tmp_path), list(prompt)
    logits = golden.forward(prompt)
    while len(said) < len(prompt) + count:
        said.append(int(logits[-1].argmax()))
        logits = golden.forward(said[-1:])
    want = tuple(said[len(prompt) :])

    def generated(drafter: ScriptedDrafter | None) -> Generation:
        session.truncate(0)
        options = {"max_tokens": count, "drafter": drafter, "controller": FixedController(4)}
        return collect(generate(session, LETTERS, prompt, **options))

    assert generated(None).tokens == want
    for branches in (0, 1):
        drafter = ScriptedDrafter(want, lambda at: at in (2, 5), QUANTIZED.tiny.vocab, branches)
        done = generated(drafter)
        assert done.tokens == want
        assert done.stats.rounds < count


def test_sampled_text_is_the_cpus(session: GpuSession) -> None:
    Sampled(session, QUANTIZED).check()


def test_smollm2_equals_the_cpu_target() -> None:
    """One and five tokens through all 30 layers: the CPU target's logits, bit for bit."""
    require("sycl")
    cpu = compiled_smollm2()
    tokens = cpu.tokenizer.encode("The capital of France is Paris, that of Germany")
    here, there = SyclModel(smollm2(), BMG).session(), cpu.session(context=64)
    for part in (tokens[:4], tokens[4:5], tokens[5:10]):
        assert same_bits(here.forward(part), there.forward(part))
    ours, theirs = (s.top(tokens[:2], 40) for s in (here, there))
    assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------------------------------ target


def front_of(spec: Spec, folder: Path) -> Front:
    return read_model(model_file(spec, folder), EmitOptions(kv=spec.kv), lambda *_: None)


def test_emitted_texts_are_the_same_each_time(tmp_path: Path) -> None:
    """Two models read anew: equal texts, launches and places."""
    fronts = [front_of(QUANTIZED, tmp_path) for _ in range(2)]
    one, two = (BMG.render(f.plan, f.arena, f.bounds) for f in fronts)
    assert [s.text for s in one.sources] == [s.text for s in two.sources]
    assert [s.name for s in one.sources] == [k.name for k in phases(fronts[0].plan.body)]
    assert launches_per_step(one) == len(one.sources)  # one layer


@pytest.mark.parametrize("name", ["ffn_down", "attn_values", "pick"])
def test_golden_texts(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A quantized product on the matrix engine, a float one, and the choice of a token."""
    front = front_of(QUANTIZED, tmp_path)
    rendered = BMG.render(front.plan, front.arena, front.bounds)
    (text,) = (s.text for s in rendered.sources if s.name == name)
    assert text.startswith(f"// {name} for SYCL, sycl:bmg, ")
    check_golden(f"sycl/{name}.cpp", text, request)


@pytest.fixture(scope="module")
def spirv(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of every phase, for the matrix engine."""
    require("sycl")
    front, build = front_of(QUANTIZED, tmp_path_factory.mktemp("model")), BMG.stages()["spv"]
    return {s.name: build(s) for s in BMG.render(front.plan, front.arena, front.bounds).sources}


PRODUCTS = ("attn_q_k_v", "attn_output", "ffn_gate_up", "ffn_down", "output")


def test_every_phase_builds_for_the_matrix_engine(spirv: dict[str, bytes]) -> None:
    """The report counts a matrix instruction in each phase that multiplies packed weights."""
    counts = {name: kernel_facts({"spv": code}).instructions for name, code in spirv.items()}
    assert {name for name, found in counts.items() if found} == set(PRODUCTS)


def test_xe_code_of_every_product_multiplies_on_the_engine(spirv: dict[str, bytes]) -> None:
    """For Battlemage, and the largest for PVC, too; few rows by dots, all in their registers."""
    require("xe")
    for name, chip in (*((n, BMG.chip) for n in PRODUCTS), ("attn_q_k_v", "pvc")):
        code = compile_xe(spirv[name], chip, find_ocloc() or (), name=name)
        told = code.facts()
        assert set(kernel_facts({"xe.asm": code.text.encode()}).instructions) == {"dp4a", "dpas"}
        assert (told["registers"], told["spills"], told["stack_bytes"]) == (128, 0, 0), name


def test_ocloc_is_told_the_chip() -> None:
    names = [n for n in target_names() if n.startswith("sycl:") and n != "sycl:cpu"]
    assert {n: chip_of(n) for n in names} == {
        "sycl:bmg": "bmg", "sycl:b580": "bmg", "sycl:b70": "bmg-g31",
        "sycl:alchemist": "acm-g10", "sycl:a770": "acm-g10",
        "sycl:pvc": "pvc", "sycl:max1550": "pvc",
    }  # fmt: skip


def chip_of(name: str) -> str:
    made = target(name)
    assert isinstance(made, SyclTarget)
    return made.chip


@pytest.mark.parametrize("name", [n for n in target_names() if n.startswith("sycl:")])
def test_every_profile_serves_every_format(name: str, tmp_path: Path) -> None:
    for spec in SPECS.values():
        assert target(name).unsupported(front_of(spec, tmp_path).plan) is None


def test_too_little_local_memory_is_said(tmp_path: Path) -> None:
    arch = replace(BMG.profile.arch, shared_bytes=Fact(1000, "a test"))
    small = replace(BMG, profile=replace(BMG.profile, arch=arch))
    reason = small.unsupported(front_of(QUANTIZED, tmp_path).plan)
    assert reason is not None
    assert re.match(r"phase \w+ needs \d+ bytes of shared memory, not 1000$", reason)


def test_xe_code_is_a_stage_where_ocloc_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source is compiled once for all that is shown of it."""
    made: list[str] = []

    def xe(spirv: bytes, device: str, ocloc: Command, *, name: str) -> XeCode:
        made.append(f"{name} {device} {spirv.decode()}")
        return XeCode(b"code", "dpas.8x8 (16|M0)\n", "grf_count: 128\n")

    monkeypatch.setattr(sycl_target, "compile_sycl", lambda *_, **__: b"spirv")
    monkeypatch.setattr(sycl_target, "find_sycl_compiler", lambda: "a compiler")
    monkeypatch.setattr(sycl_target, "compile_xe", xe)
    monkeypatch.setattr(sycl_target, "find_ocloc", lambda: None)
    assert list(BMG.stages()) == ["spv"]
    monkeypatch.setattr(sycl_target, "find_ocloc", lambda: ("ocloc",))
    source = Source("ffn_down", "cpp", "entry", "text")
    built = {ext: make(source) for ext, make in BMG.stages().items()}
    assert list(built) == ["spv", "xe.bin", "xe.asm", "json"]
    assert made == ["ffn_down bmg spirv"]
    facts = kernel_facts({ext: data for ext, data in built.items() if ext != "spv"})
    assert (facts.registers, facts.spills, facts.instructions) == (128, 0, {"dpas": 1})


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sycl_target, "find_sycl_compiler", lambda: None)
    with pytest.raises(ToolMissingError, match=r"intel-sycl-rt 2026\.2\..*pip install"):
        BMG.stages()["spv"](Source("k", "cpp", "k", ""))
    assert len(BMG.fingerprint()) == 64
