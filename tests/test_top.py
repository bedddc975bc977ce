"""The largest logits a step finds: exact, in order, and as good to a sampler as all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import metal_rig
import numpy as np
import numpy.typing as npt
import pytest
import test_sycl
import triton_rig
from cpu_rig import HERE, golden, same_bits, single
from emulation import sycl_kernel
from emulation.metal_stand_in import stand_in
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.triton_interpret import TritonMachine
from emulation.vulkan_root import find_vulkan
from emulation.vulkan_worker import VulkanWorker
from fragment_rig import dispatched, lowered
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_rig import LETTERS
from test_head import MODELS, ROWS, Floats, head, machine_code, planted, session, tokens

from speccc.errors import InputError, SpecccError, UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.fragment_verify import verify_fragment
from speccc.ir.interp_fragment import run_fragment_kernel
from speccc.ir.interp_tile import run_kernel
from speccc.ir.plan import Role, phases, size_of
from speccc.ir.tile import LANES, Buf, Kernel
from speccc.passes.lower_head import RUNS
from speccc.passes.lower_top import MOST_TOP, TOKENS, VALUES
from speccc.passes.plan_memory import PlanMemory
from speccc.runtime.generate import collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.protocols import Tops, TopSession
from speccc.runtime.sampling import SamplingParams, pick_among, pick_sampled
from speccc.runtime.session import TOPS, CpuSession
from speccc.targets.registry import target
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import render_shader

MOST = 7
Arrays = dict[Buf, npt.NDArray[Any]]


def expected(row: Floats, k: int) -> npt.NDArray[np.int64]:
    """The tokens above -infinity by (value descending, token ascending), NaN first."""
    ranked = np.where(np.isnan(row), np.float32(np.inf), row)
    order = np.lexsort((np.arange(len(row)), -ranked))[:k]
    return order[ranked[order] > -np.inf]


def named(arrays: Arrays, name: str) -> npt.NDArray[Any]:
    return next(a for b, a in arrays.items() if b.name == name)


@pytest.mark.parametrize("vocab", [1, 5, 37, LANES * RUNS + 3])
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_tops_are_sorted_logits(vocab: int, data: st.DataObject) -> None:
    h = head(vocab, MOST)
    values = data.draw(planted(vocab))
    m = len(values)
    first = data.draw(st.integers(0, m))
    rows, k = data.draw(st.integers(0, m - first)), data.draw(st.integers(0, MOST))
    arrays: Arrays = dict(h.arrays(values))
    for b in h.plan.bufs:
        if b.buf.name in (VALUES, TOKENS):
            arrays[b.buf] = np.full((m, MOST), -5, b.buf.dtype.numpy)
    sizes = {v: k if v.name == "head_top" else n for v, n in h.sizes(m, first, rows, 1).items()}
    scratch = {
        b: np.full((m, int(b.shape[1])), np.nan, np.float32)  # type: ignore[arg-type]
        for b in h.plan.by_role(Role.ACTIVATION)
    }
    results = [golden(h.plan, {**arrays, **scratch}, sizes, workers=2)]
    built = machine_code(vocab, HERE[0].name, MOST)
    results += [built.run(arrays, sizes, workers) for workers in (1, 3)]
    for got in results:
        found, chosen = named(dict(got), VALUES), named(dict(got), TOKENS)
        for row in range(rows):
            at = expected(values[first + row], k)
            assert chosen[row, : len(at)].tolist() == at.tolist()
            assert same_bits(found[row, : len(at)], values[first + row, at])
            assert (found[row, len(at) : k] == -np.inf).all()
            assert (found[row, k:] == -5).all()
        assert (found[rows:] == -5).all()
        assert (chosen[rows:] == -5).all()


def test_sizes_that_rounds_do_not_pay_for_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the 65 largest logits: a step finds 1 to 64"):
        head(37, MOST_TOP + 1)


@pytest.fixture(params=MODELS)
def made(request: pytest.FixtureRequest) -> CpuSession:
    return session(MODELS[request.param])


def check_rows(found: Tops, logits: Floats, k: int) -> None:
    assert found.values.shape == found.tokens.shape == (len(logits), k)
    for row, (values, chosen) in enumerate(zip(*found, strict=True)):
        at = expected(logits[row], k)
        assert chosen.tolist() == at.tolist()
        assert same_bits(values, logits[row, at])


@pytest.mark.parametrize("k", [1, 5, 64])
def test_tops_of_chains_and_trees(made: CpuSession, k: int) -> None:
    """Any chunks of 150 tokens, more than a step holds; then a tree, and what may follow it."""
    text = [t % made.vocab for t in tokens(MODELS["f32"], 150)]
    logits = made.forward(text)
    for chunk in (150, 1, 5, 64):
        made.truncate(0)
        got = [made.top(text[at : at + chunk], k) for at in range(0, 150, chunk)]
        both = Tops(*(np.concatenate(part) for part in zip(*got, strict=True)))
        check_rows(both, logits, k)
    nodes, parents = text[20:29], [-1, 0, 0, -1, 3, 1, 1, 6, 2]
    made.truncate(20)
    whole = made.forward(nodes, parents=parents)
    made.truncate(20)
    check_rows(made.top(nodes, k, parents=parents), whole, k)
    made.keep([0, 2])
    after = made.forward(text[:3])
    made.truncate(20)
    made.forward(nodes, parents=parents)
    made.keep([0, 2])
    assert same_bits(after, made.forward(text[:3]))


def test_nothing_is_sought_unasked() -> None:
    s = session(MODELS["q4_1"])
    values = s._arrays[TOPS[0]]
    values[:] = 5.0
    s.pick([1, 2, 3])
    s.forward([1, 2])
    s.prefill([3, 4])
    assert (values == 5.0).all()
    s.top([1, 2], 3)
    assert (values[:2, :3] != 5.0).all()
    assert (values[2:] == 5.0).all()
    assert (values[:, 3:] == 5.0).all()


@pytest.mark.parametrize("k", [0, -1, 65, 1 << 70, 2.0, "3", None])
def test_other_counts_are_input_errors(k: int) -> None:
    s = session(MODELS["q4_1"])
    s.forward([1, 2, 3])
    with pytest.raises(InputError):
        s.top([1], k)
    assert s.length == 3


def test_a_step_without_tops_cannot() -> None:
    s = session(MODELS["q4_1"])
    s.spec = replace(s.spec, top=0)
    assert s.most_top == 0
    with pytest.raises(InputError, match="this step finds 1 to 0"):
        s.top([1], 1)


def stepped(vocab: int, m: int) -> Iterator[tuple[Kernel, Arrays, Arrays, dict[Var, int]]]:
    """The phases of a head with tops: buffers before and after by the golden machine, sizes."""
    h = head(vocab, MOST)
    rng = np.random.default_rng(vocab)
    values = np.round(rng.standard_normal((m, vocab)) * 4).astype(np.float32) / 4  # many ties
    values[0, 3] = -np.inf
    sizes = {v: MOST if v.name == "head_top" else n for v, n in h.sizes(m, 0, m, 1).items()}
    bufs: Arrays = dict(h.arrays(values))
    for b in h.plan.bufs:
        shape = tuple(size_of(d, sizes) for d in b.buf.shape)
        bufs.setdefault(b.buf, np.zeros(shape, b.buf.dtype.numpy))
    for kernel in phases(h.plan.body):
        own, scalars = {b: bufs[b] for b in kernel.bufs}, {v: sizes[v] for v in kernel.scalars}
        before = {b: a.copy() for b, a in own.items()}
        run_kernel(kernel, own, scalars)
        yield kernel, before, own, scalars
    for row in range(m):
        assert named(bufs, TOKENS)[row].tolist() == expected(values[row], MOST).tolist()


@pytest.mark.parametrize("vocab", [37, LANES * RUNS + 3])
def test_fragments_find_the_same(vocab: int) -> None:
    for kernel, before, after, scalars in stepped(vocab, 3):
        fragment = lowered(kernel)
        verify_fragment(fragment)
        run_fragment_kernel(fragment, before, scalars, groups=2)
        assert all(same_bits(before[b], after[b]) for b in kernel.bufs), kernel.name


Launch = Callable[[Kernel, Arrays, dict[Var, int]], Mapping[Buf, npt.NDArray[Any]]]


def check_device(launch: Launch) -> None:
    """Every phase, launched by a target's own text, leaves what the golden machine leaves."""
    for kernel, before, after, scalars in stepped(LANES * RUNS + 3, 3):
        got = launch(kernel, before, scalars)
        # A column of 0 may be a zero of either sign: an emulated fma makes + of sums of zeros.
        assert all(np.array_equal(got[b], after[b]) for b in kernel.bufs), kernel.name


def test_vulkan_finds_the_same() -> None:
    require("vulkan")
    home = find_vulkan()
    assert home is not None
    with VulkanWorker(home, timeout_s=60) as worker:
        check_device(
            lambda kernel, bufs, sizes: dispatched(
                home, worker, render_shader(lowered(kernel), Fma.PAIRS), bufs, sizes, groups=2
            )
        )


def test_sycl_finds_the_same() -> None:
    require("sycl")
    with SyclCpu() as device:
        check_device(
            lambda kernel, bufs, sizes: sycl_kernel.launched(
                device, test_sycl.lowered(kernel), bufs, sizes
            )
        )


def test_metal_finds_the_same(tmp_path: Path) -> None:
    require("metal")
    machine = stand_in(tmp_path)
    check_device(
        lambda kernel, bufs, sizes: metal_rig.launched(
            machine, metal_rig.rendered(metal_rig.lowered(kernel)), bufs, sizes
        )
    )


def test_triton_finds_the_same() -> None:
    require("triton")
    with TritonMachine() as machine:
        check_device(
            lambda kernel, bufs, sizes: triton_rig.stepped(
                machine, triton_rig.rendered(single((kernel,))), bufs, sizes
            )
        )


@pytest.mark.parametrize("name", ["metal:m4", "sycl:bmg", "cuda:sm_90", "rocm:gfx942", "vulkan"])
def test_every_target_has_a_lowering(name: str) -> None:
    plan, made = head(LANES * RUNS + 3, MOST).plan, target(name)
    bounds = {v: ROWS for v in plan.sizes if v.name == "m"}
    assert made.unsupported(plan) is None
    text = "".join(s.text for s in made.render(plan, PlanMemory(bounds).run(plan), bounds).sources)
    assert TOKENS in text
    assert "head_top" in text


SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 4.0),
    top_k=st.integers(1, 12),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 0.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)


@given(planted(37), SAMPLINGS, st.integers(0, 1 << 20))
@settings(max_examples=200)
def test_the_sampler_needs_no_more_than_the_tops(
    rows: Floats, params: SamplingParams, position: int
) -> None:
    for row in rows:
        at = expected(row, params.top_k)
        values = np.full(params.top_k, -np.inf, np.float32)
        chosen = np.full(params.top_k, -7, np.int32)
        values[: len(at)], chosen[: len(at)] = row[at], at
        try:
            want = pick_sampled(row, position, params)
        except SpecccError:
            with pytest.raises(SpecccError, match="not finite"):
                pick_among(values, chosen, position, params)
        else:
            assert pick_among(values, chosen, position, params) == want


class Forward:
    """A session of which only `forward` is known: the logits' own way."""

    def __init__(self, inner: CpuSession) -> None:
        self.inner = inner
        self.forward, self.keep, self.truncate = inner.forward, inner.keep, inner.truncate
        self.context = inner.context

    @property
    def length(self) -> int:
        return self.inner.length


@pytest.mark.parametrize("top_k", [1, 8, 64, 100])
def test_sampled_text_is_the_same_by_either_way(
    top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = session(MODELS["f32"])
    prompt = [1, 2, 3, 1, 2, 3, 1]
    sampling = SamplingParams(0.9, top_k, 0.95, 0.02, seed=11)
    bare = Forward(session(MODELS["f32"]))
    assert not isinstance(bare, TopSession)

    def text(over: Any, drafter: NgramDrafter | None) -> tuple[int, ...]:
        s.truncate(0)
        pieces = generate(over, Bytes(), prompt, max_tokens=40, sampling=sampling, drafter=drafter)
        return collect(pieces).tokens

    plain = text(bare, None)
    asked: list[int] = []
    top = s.top
    monkeypatch.setattr(s, "top", lambda *a, **k: asked.append(a[1]) or top(*a, **k))
    assert text(s, None) == plain
    assert set(asked) == ({top_k} if top_k <= MOST_TOP else set())
    assert text(s, NgramDrafter(1, 3)) == plain


class Bytes:
    """Every token is a letter."""

    def token_bytes(self, token: int, /) -> bytes:
        return LETTERS.token_bytes(token % 12)


def test_log_probabilities_still_see_every_logit() -> None:
    s = session(MODELS["f32"])
    sampling = SamplingParams(0.9, 8, seed=3)
    done = collect(generate(s, Bytes(), [1, 2], max_tokens=5, sampling=sampling, log_probs=True))
    assert done.log_probs is not None
    assert all(p < 0 for p in done.log_probs)


def test_names_are_the_runtimes() -> None:
    assert (VALUES, TOKENS) == TOPS
