"""Sums of floats by the matrix engines of CUDA and ROCm: near golden, and the same for any rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tile_gen
from cpu_rig import Spec, model_file, same_bits, single
from emulation.require import require
from emulation.triton_interpret import TritonMachine
from engine_rig import Array, Product, golden, inputs, product, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Tiny
from table_session import ScriptedDrafter, TableTokens
from test_numerics import PlanSession, tokens_of
from tile_gen import Program
from triton_driver import InterpretedModel
from triton_rig import rendered, stepped

from speccc.emit import EmitOptions, read_model
from speccc.ir import expr as ex
from speccc.ir.expr import Var
from speccc.ir.matrix_engine import engine_bound
from speccc.ir.tile import Buf
from speccc.ir.types import F16
from speccc.runtime.controller import FixedController
from speccc.runtime.generate import collect, generate
from speccc.targets.launch_plan import launches_per_step
from speccc.targets.registry import target
from speccc.targets.report import kernel_facts
from speccc.targets.triton.schedule import Fp8, Shape
from speccc.targets.triton.step import StepText
from speccc.targets.triton.target import TritonTarget
from speccc.targets.triton_build import CUDA_ARCHS, ROCM_WAVES, build_cuda, build_rocm

EACH = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PLAIN = Shape(units=2, fill=1)
SHAPES = {
    "f16": ("f16", PLAIN),
    "bf16": ("bf16", PLAIN),
    "fp8 as f16": ("fp8", PLAIN),
    "fp8 to f16": ("fp8", replace(PLAIN, fp8=Fp8(halves=True))),
    "fp8": ("fp8", replace(PLAIN, fp8=Fp8())),
    "fp8 by wgmma": ("fp8", replace(PLAIN, fp8=Fp8(tokens=16))),
}
HALVES = ("fp8 as f16", "fp8 to f16")
WIDE = 17


@pytest.fixture(scope="module")
def machine() -> Iterator[TritonMachine]:
    require("triton")
    with TritonMachine(timeout_s=120) as running:
        yield running


def weights_of(p: Product, bufs: dict[Buf, Array]) -> Array:
    """The weights f32 [k, columns], out of a product with ones."""
    k, columns = p.w.k, bufs[p.y].shape[1]
    ones = {**bufs, p.x: np.eye(k, dtype=np.float32), p.y: np.zeros((k, columns), np.float32)}
    return golden(p, ones)


def bound(p: Product, bufs: dict[Buf, Array], which: str) -> Array:
    held = F16 if which in HALVES else p.dtype
    return engine_bound(held, bufs[p.x], weights_of(p, bufs))


# ------------------------------------------------------------------------------------ one product


@pytest.mark.parametrize("which", SHAPES)
@EACH
@given(
    n=st.sampled_from([5, 16, 40]),
    k=st.sampled_from([1, 16, 31, 32, 50, 96]),
    m=st.sampled_from([1, 5, 8, WIDE]),
    seed=st.integers(0, 2**16),
)
def test_near_golden(machine: TritonMachine, which: str, n: int, k: int, m: int, seed: int) -> None:
    """Tails of a step and of a panel; the last row's bits are those that it has alone."""
    fmt, shape = SHAPES[which]
    p = product(fmt, n, k)
    text, bufs = rendered(single((p.kernel,)), shape), inputs(p, m, seed)
    assert "tl.dot(" in text.kernel.source
    got = stepped(machine, text, bufs, {p.m: m})[p.y]
    assert (np.abs(got - golden(p, bufs)) <= bound(p, bufs, which)).all()
    alone = stepped(machine, text, rows_of(p, bufs, slice(m - 1, m)), {p.m: 1})[p.y]
    assert same_bits(alone, got[m - 1 :])


@pytest.mark.parametrize("which", SHAPES)
def test_rows_alone_in_five_and_in_a_tile(machine: TritonMachine, which: str) -> None:
    """And not golden's bits, or nothing would be shown; but e4m3 as f16 is exact in so few."""
    fmt, shape = SHAPES[which]
    p = product(fmt, 40, 80)
    text, bufs = rendered(single((p.kernel,)), shape), inputs(p, WIDE)

    def run(part: slice) -> Array:
        own = rows_of(p, bufs, part)
        return stepped(machine, text, own, {p.m: len(own[p.x])})[p.y]

    whole = run(slice(0, WIDE))
    for rows in (slice(2, 3), slice(1, 6), slice(0, 16)):
        assert same_bits(run(rows), whole[rows])
    assert same_bits(whole, golden(p, bufs)) == (which in HALVES)


SPOILED = {
    "a scale": (r", 1\.0, acc\)|, 256\.0, acc\)", ", 1.0625, acc)"),
    "the next step's rows": (r"(x_at) \+ step \* (16|32)", r"\1 + (1 - step % 2) * \2"),
    "a column's neighbour": (r"\(column\[None, :\] \* 16\)", "((column[None, :] ^ 1) * 16)"),
}


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("which", SHAPES)
def test_a_wrong_sum_shows(machine: TritonMachine, which: str, how: str) -> None:
    fmt, shape = SHAPES[which]
    p = product(fmt, 16, 64)
    text, bufs = rendered(single((p.kernel,)), shape), inputs(p, 3)
    room, right = bound(p, bufs, which), golden(p, bufs)
    assert (np.abs(stepped(machine, text, bufs, {p.m: 3})[p.y] - right) <= room).all()
    source, count = re.subn(*SPOILED[how], text.kernel.source)
    assert count > 0
    spoiled = replace(text, kernel=replace(text.kernel, source=source))
    got = stepped(machine, spoiled, bufs, {p.m: 3})[p.y]
    assert (np.abs(got - right) > room).any()


@pytest.mark.parametrize("activations", ["f16", "bf16", "fp8"])
@EACH
@given(data=st.data(), m=st.sampled_from([1, 3, WIDE]))
def test_whole_kernels_do_not_depend_on_rows(
    machine: TritonMachine, activations: str, data: st.DataObject, m: int
) -> None:
    """With the norm, the rounding, the factors and an end: each row as it is alone."""
    p: Program = data.draw(tile_gen.matmuls(activations, activations))
    text = rendered(single((p.kernel,)), replace(PLAIN, fp8=Fp8()))
    assert "tl.dot(" in text.kernel.source
    arrays = p.arrays(m, 1)
    whole = stepped(machine, text, arrays, {p.m: m})[p.out]
    assert np.isfinite(whole).all()
    for n in {0, m - 1}:
        by_row = [b for b in arrays if b.shape[0] is p.m]
        own = {b: a[n : n + 1] if b in by_row else a for b, a in arrays.items()}
        assert same_bits(stepped(machine, text, own, {p.m: 1})[p.out], whole[n : n + 1])


def test_addresses_are_counted_in_numbers() -> None:
    """What a constant divides every term of; what it does not is left alone."""
    x, y = Var("x"), Var("y")
    sum_ = ex.add(ex.mul(x, 6), ex.mul(ex.add(ex.mul(y, 3), 2), 4))
    half = ex.quotient(sum_, 2)
    assert half is not None
    assert ex.stride(half, x) == 3
    assert ex.stride(half, y) == 6
    assert ex.quotient(ex.add(sum_, 1), 2) is None
    assert ex.quotient(sum_, 4) is None
    assert ex.quotient(x, 2) is None


# -------------------------------------------------------------------------------------- the builds

CUDA_OPS = {"f16": "mma.sync f16", "bf16": "mma.sync bf16"}
FP8_OPS = {89: "mma.sync e4m3", 90: "wgmma.mma_async e4m3", 120: "mma.sync e4m3"}
ROCM_OPS = {
    "gfx906": "",
    "gfx942": "v_mfma_f32_16x16x16_{}",
    "gfx950": "v_mfma_f32_16x16x32_{}",
    "gfx1100": "v_wmma_f32_16x16x16_{}",
    "gfx1151": "v_wmma_f32_16x16x16_{}",
    "gfx1201": "v_wmma_f32_16x16x16_{}",
}

CUDA_CASES = [(arch, "fp8") for arch in CUDA_ARCHS]
CUDA_CASES += [(80, "f16"), (90, "f16"), (100, "f16"), (90, "bf16")]
ROCM_CASES = [(chip, "f16") for chip in ROCM_WAVES]
ROCM_CASES += [("gfx1100", "bf16"), ("gfx942", "fp8"), ("gfx1201", "fp8")]


def text_for(name: str, fmt: str) -> StepText:
    require("triton")
    made = target(name)
    assert isinstance(made, TritonTarget)
    return rendered(single((product(fmt, 1024, 512).kernel,)), replace(made.shape, fill=1))


@pytest.mark.parametrize(("arch", "fmt"), CUDA_CASES)
def test_ptx(arch: int, fmt: str) -> None:
    """One instruction for all heights of a tile, from zero each time; nothing spills."""
    built = build_cuda(text_for(f"cuda:sm_{arch}", fmt).kernel, arch)
    facts = kernel_facts({"ptx": built.text.encode(), "cubin": built.binary})
    want = CUDA_OPS.get(fmt) or FP8_OPS.get(arch, "mma.sync f16")
    assert set(facts.instructions) == {want}
    assert facts.spills == 0
    spelled = set(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async)\S+", built.text))
    assert len(spelled) == 1


@pytest.mark.parametrize(("chip", "fmt"), ROCM_CASES)
def test_amdgcn(chip: str, fmt: str) -> None:
    built = build_rocm(text_for(f"rocm:{chip}", fmt).kernel, chip)
    facts = kernel_facts({"amdgcn": built.text.encode(), "hsaco": built.binary})
    kind = ("fp8_fp8" if chip == "gfx1201" else "f16") if fmt == "fp8" else fmt
    want = ROCM_OPS[chip].format(kind)
    assert set(facts.instructions) == ({want} if want else set())


# -------------------------------------------------------------------------------------- the models

SMALL = Tiny(seed=8, hidden=32, heads=2, kv_heads=1, ffn=64, layers=1)
MODELS = {
    "f16, sm_90": ("cuda:sm_90", Spec(SMALL, "f16", activations="f16")),
    "bf16, gfx1100": ("rocm:gfx1100", Spec(SMALL, "bf16", "i8", activations="bf16")),
    "fp8, sm_80": ("cuda:sm_80", Spec(SMALL, "fp8", kind="llama", activations="fp8")),
    "fp8, sm_89": ("cuda:sm_89", Spec(SMALL, "fp8", kind="llama", activations="fp8")),
}
LETTERS = TableTokens([bytes([n % 256]) for n in range(300)])
COUNT = 5
Load = Callable[[str], InterpretedModel]


@pytest.fixture(scope="module")
def load(machine: TritonMachine, tmp_path_factory: pytest.TempPathFactory) -> Load:
    def loaded(which: str) -> InterpretedModel:
        name, spec = MODELS[which]
        path = model_file(spec, tmp_path_factory.mktemp("model"))
        options = EmitOptions(kv=spec.kv, activations=spec.activations)
        made = target(name)
        assert isinstance(made, TritonTarget)
        one_tile = replace(made, shape=replace(made.shape, fill=1))
        return InterpretedModel(read_model(path, options, lambda *_: None), one_tile, machine)

    return loaded


@pytest.mark.parametrize("which", [n for n in MODELS if n != "fp8, sm_80"])
def test_speculative_text_is_the_plain_one(which: str, load: Load) -> None:
    """Without drafts, with a chain of them, with a tree; fewer rounds where some are right."""
    model, spec = load(which), MODELS[which][1]
    prompt = tokens_of(spec.tiny, 4)

    def said(drafter: ScriptedDrafter | None) -> tuple[tuple[int, ...], int]:
        session, _ = model.session()
        options = {"max_tokens": COUNT, "drafter": drafter, "controller": FixedController(4)}
        done = collect(generate(session, LETTERS, prompt, **options))
        return done.tokens, done.stats.rounds

    plain, rounds = said(None)
    assert len(plain) == COUNT
    for branches in (0, 1):
        drafter = ScriptedDrafter(plain, lambda at: at == 2, spec.tiny.vocab, branches)
        text, fewer = said(drafter)
        assert text == plain
        assert fewer < rounds


def test_a_whole_step(tmp_path: Path) -> None:
    """One launch; every product of fp8 by fp8 is one instruction's, and nothing spills."""
    require("triton")
    tiny = Tiny(seed=8, hidden=128, heads=2, kv_heads=2, ffn=128, layers=1)
    path, options = model_file(Spec(tiny, "fp8", kind="llama"), tmp_path), EmitOptions()
    front = read_model(path, replace(options, activations="fp8"), lambda *_: None)
    made = target("cuda:sm_90")
    assert isinstance(made, TritonTarget)
    plan = replace(made, shape=replace(made.shape, fill=1)).render(
        front.plan, front.arena, front.bounds
    )
    assert launches_per_step(plan) == 1
    facts = kernel_facts({ext: step(plan.sources[0]) for ext, step in made.stages().items()})
    assert set(facts.instructions) == {"wgmma.mma_async e4m3"}
    # q, k, v, o, two of ffn_gate_up and ffn_down.
    assert facts.instructions["wgmma.mma_async e4m3"] >= 7
    assert facts.spills == 0


@pytest.mark.parametrize("which", MODELS)
def test_logits_alone_and_together(which: str, load: Load, tmp_path: Path) -> None:
    """The same bits; golden's up to what sums in another order do to a layer.

    Logits are near where roundings of activations fall alike, and further where one does not: by
    a step of the type, 2^-3 of a value at most, of one of 32 columns. Sums of so few e4m3 as f16
    are exact.
    """
    model, spec = load(which), MODELS[which][1]
    tokens = tokens_of(spec.tiny, 5)
    together = model.session()[0].forward(tokens)
    alone, _ = model.session()
    assert same_bits(together, np.stack([alone.forward([t])[0] for t in tokens]))
    expected = PlanSession(spec, tmp_path).forward(tokens)
    gap = np.abs(together - expected).max() / np.abs(expected).max()
    assert gap < (2.0**-5 if spec.fmt == "fp8" else 2.0**-7)
    assert same_bits(together, expected) == (which == "fp8, sm_80")
