"""Attention in halves on the matrix engines of every emulated target: near golden, and lossless."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import metal_rig
import numpy as np
import pytest
from attention_rig import Array, Heads, Lowered, Step, arrays, lowered, random_step
from cpu_rig import Spec, golden, model_file, same_bits, unmeasured
from emulation.metal_stand_in import stand_in
from emulation.require import require
from emulation.sycl_cpu import SyclCpu
from emulation.sycl_kernel import launched
from emulation.triton_interpret import TritonMachine
from emulation.vulkan_root import find_vulkan
from emulation.vulkan_worker import VulkanWorker
from fragment_rig import dispatched
from models import Tiny
from table_session import ScriptedDrafter, TableTokens
from test_attention import alone
from test_numerics import tokens_of
from triton_rig import rendered, stepped

from speccc.errors import UnsupportedError
from speccc.ir.expr import Var
from speccc.ir.matrix_engine import engine_bound
from speccc.ir.tile import Buf, Dot, walk
from speccc.ir.types import F16
from speccc.passes import attention_values
from speccc.runtime.controller import FixedController
from speccc.runtime.generate import Generation, collect, generate
from speccc.targets.clike.render import KernelText
from speccc.targets.registry import target
from speccc.targets.sycl.render import render_sycl
from speccc.targets.triton.schedule import Shape
from speccc.targets.vulkan.glsl_prelude import Fma
from speccc.targets.vulkan.render import render_shader

Bufs = dict[Buf, Array]
Run = Callable[[Lowered, Bufs, dict[Var, int]], Bufs]
BACKENDS = ("triton", "sycl", "metal", "vulkan")
SHAPE = Heads(6, 2, 32, "f16", "f16")
SPLIT = replace(SHAPE, split=True)
STEPS = {
    "one": (1, 150, None),
    "a chain over a group's end": (8, 187, None),
    "two branches over a group's end": (14, 187, (-1, -1, *range(12))),
    "two branches over a part's end": (6, 637, (-1, -1, *range(4))),
}
SPLIT_STEP = "two branches over a part's end"
CASES = [(SPLIT if step == SPLIT_STEP else SHAPE, step) for step in STEPS]


def by_kernel(render: Callable[..., KernelText], name: str, launch: Callable[..., Bufs]) -> Run:
    """Kernel after kernel, each a text of its own."""
    texts: dict[int, KernelText] = {}

    def run(low: Lowered, bufs: Bufs, sizes: dict[Var, int]) -> Bufs:
        for kernel in low.kernels:
            if id(kernel) not in texts:
                texts[id(kernel)] = render(target(name).lowering.run(kernel))
            text = texts[id(kernel)]
            bufs |= {b: a for b, a in launch(text, bufs, sizes).items() if b in bufs}
        return bufs

    return run


@pytest.fixture(scope="module")
def triton() -> Iterator[Run]:
    require("triton")
    with TritonMachine(timeout_s=120) as machine:

        def run(low: Lowered, bufs: Bufs, sizes: dict[Var, int]) -> Bufs:
            shape = Shape(tokens=16, fill=1, amd=True) if low.shape.split else Shape(fill=1)
            return stepped(machine, rendered(low.plan, shape), bufs, sizes)

        yield run


@pytest.fixture(scope="module")
def sycl() -> Iterator[Run]:
    require("sycl")
    with SyclCpu() as device:
        yield by_kernel(
            render_sycl, "sycl:bmg", lambda text, bufs, sizes: launched(device, text, bufs, sizes)
        )


@pytest.fixture(scope="module")
def metal(tmp_path_factory: pytest.TempPathFactory) -> Run:
    require("metal")
    machine = stand_in(tmp_path_factory.mktemp("metal"))
    return by_kernel(
        metal_rig.rendered,
        "metal:m4",
        lambda text, bufs, sizes: metal_rig.launched(machine, text, bufs, sizes),
    )


@pytest.fixture(scope="module")
def vulkan() -> Iterator[Run]:
    require("vulkan")
    home = find_vulkan()
    assert home is not None
    with VulkanWorker(home) as worker:
        yield by_kernel(
            lambda kernel: render_shader(kernel, Fma.PAIRS),
            "vulkan:lavapipe",
            lambda text, bufs, sizes: dispatched(home, worker, text, bufs, sizes, groups=2),
        )


def result(run: Run, low: Lowered, step: Step) -> Array:
    """f32 [m, heads, size] of a step."""
    given, tiles = arrays(low, step)
    sizes = low.sizes(len(step.q), step.length, tiles)
    return run(low, given, sizes)[low.out].reshape(step.q.shape)


def bound(step: Step) -> float:
    """How far an engine may be from the golden sums.

    A score by as much as its own sum, and a power by its score's. One that then rounds the other
    way moves by a unit, 2**-10 of it. The weighted values, of magnitude at most `top`, are a sum of
    n products whose magnitudes are together at most `top` times that of the powers.
    """
    top, n = float(np.abs(step.v).max()), step.length + len(step.q)
    per = SHAPE.heads // SHAPE.groups
    score = SHAPE.scale * max(
        engine_bound(F16, step.q[:, h], step.k[:, h // per].T).max() for h in range(SHAPE.heads)
    )
    values = engine_bound(F16, np.ones((1, n)), np.ones((n, 1)))[0, 0] / n
    return top * (2 * np.expm1(2 * score) + 2.0**-10 + 2 * float(values))


@pytest.mark.parametrize(("shape", "which"), [CASES[0], CASES[-1]], ids=["one", SPLIT_STEP])
@pytest.mark.parametrize("backend", BACKENDS)
def test_near_golden(
    backend: str, shape: Heads, which: str, request: pytest.FixtureRequest
) -> None:
    run, (m, length, parents) = request.getfixturevalue(backend), STEPS[which]
    low, step = lowered(shape), random_step(shape, m, length, 1, parents)
    given, tiles = arrays(low, step)
    right = golden(low.plan, given, low.sizes(m, length, tiles))[low.out].reshape(step.q.shape)
    got = result(run, low, step)
    assert np.abs(got - right).max() <= bound(step)
    assert not same_bits(got, right)  # an engine made it


def rows_apart(run: Run, low: Lowered, which: str) -> list[int]:
    """The rows of a step whose bits are others when a row is alone."""
    m, length, parents = STEPS[which]
    step = random_step(SHAPE, m, length, 2, parents)
    together = result(run, low, step)
    some = (m // 2, m - 1)
    return [r for r in some if not same_bits(together[r : r + 1], result(run, low, alone(step, r)))]


@pytest.mark.parametrize(("shape", "which"), CASES[1:], ids=list(STEPS)[1:])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_step_are_rows_alone(
    backend: str, shape: Heads, which: str, request: pytest.FixtureRequest
) -> None:
    """Chains and trees: an engine meets the same groups of slots for a row, whatever the step."""
    assert rows_apart(request.getfixturevalue(backend), lowered(shape), which) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_engine_on_a_steps_own_slots_shows(
    backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: settled too early, a tree's slots are grouped as no row alone has them."""
    monkeypatch.setattr(attention_values, "LATEST", 1)
    run = request.getfixturevalue(backend)
    assert 13 in rows_apart(run, lowered.__wrapped__(SHAPE), "two branches over a group's end")


def test_a_model_on_an_engine(tmp_path: Path) -> None:
    """Other logits than a CPU's, but alike for any number of rows: drafts change no token."""
    require("vulkan")
    spec = Spec(Tiny(seed=17, layers=1), "f32", attention="f16")
    file, chosen = model_file(spec, tmp_path), {"target": "vulkan:lavapipe", "attention": "f16"}
    session = unmeasured(file, **chosen).session(context=256, threads=2)
    prompt = tokens_of(spec.tiny, 187)
    together = session.forward(prompt)[-8:]
    right = unmeasured(file, attention="f16").session(context=256).forward(prompt)[-8:]
    # Where an engine's sum makes a query or a power round the other way, it moves by 2**-10.
    assert np.abs(together - right).max() <= 2.0**-10 * np.abs(right).max()
    assert not same_bits(together, right)
    session.truncate(179)
    assert same_bits(together, np.stack([session.forward([t])[0] for t in prompt[179:]]))

    def generated(drafter: ScriptedDrafter | None) -> Generation:
        session.truncate(0)
        options = {"max_tokens": 12, "drafter": drafter, "controller": FixedController(6)}
        letters = TableTokens([bytes([n % 256]) for n in range(300)])
        return collect(generate(session, letters, prompt, **options))

    plain = generated(None)
    drafter = ScriptedDrafter(plain.tokens, lambda at: at in (2, 5), spec.tiny.vocab, 1)
    drafted = generated(drafter)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.rounds < plain.stats.rounds
    session.close()


def test_what_an_engine_multiplies() -> None:
    """Both products; of the second what is settled, by two sums of one text."""
    scores, _, values = lowered(SHAPE).kernels
    found = [[s.engine for s in walk(k.body) if isinstance(s, Dot)] for k in (scores, values)]
    assert set(found[0]) == {F16}
    assert found[1] == [F16, None] * (len(found[1]) // 2)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (replace(SHAPE, kv="i8"), "--attention f16: the cache holds i8; choose --kv f16"),
        (replace(SHAPE, kv="f32"), "--attention f16: the cache holds f32; choose --kv f16"),
        (replace(SHAPE, attention="f8"), "--attention f8: choose one of f32, f16"),
    ],
)
def test_refusals(shape: Heads, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        lowered(shape)
