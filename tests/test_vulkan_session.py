"""Whole models on Vulkan: a session in the CPU's driver equals the golden model bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_rig import (
    compiled,
    compiled_smollm2,
    same_bits,
    smollm2_file,
    unmeasured,
)
from emulation.require import require
from sampling_rig import Sampled
from table_session import ScriptedDrafter
from test_numerics import PlanSession, tokens_of
from vulkan_rig import LAVAPIPE, NAMES, SPECS, model_of, session_of

from speccc.runtime.controller import FixedController
from speccc.runtime.devices.built_kernels import read_codes, read_plan
from speccc.runtime.devices.launch_plan import Launch, Repeat
from speccc.runtime.devices.vulkan_session import VulkanSession
from speccc.runtime.devices.vulkan_worker import WorkerError
from speccc.runtime.drafter import Drafter
from speccc.runtime.generate import collect, generate
from speccc.runtime.ngram import NgramDrafter


@pytest.fixture(scope="module", autouse=True)
def _vulkan() -> None:
    require("vulkan")


@pytest.fixture
def session(which: str) -> Iterator[VulkanSession]:
    live = session_of(which)
    yield live
    live.truncate(0)


@pytest.mark.parametrize("which", NAMES)
def test_equals_the_golden_model(which: str, session: VulkanSession, tmp_path: Path) -> None:
    """A chain that fills one tile of rows and begins another, then a tree, then a row alone."""
    golden = PlanSession(SPECS[which], tmp_path)
    tokens = tokens_of(SPECS[which].tiny, 18)
    assert same_bits(session.forward(tokens[:9]), golden.forward(tokens[:9]))
    parents = [-1, 0, 0, 1, -1]
    tree = golden.forward(tokens[9:14], parents)
    assert same_bits(session.forward(tokens[9:14], parents=parents), tree)
    session.truncate(9)
    golden.length = 9
    picks = golden.forward(tokens[14:15]).argmax(axis=1)
    assert session.pick(tokens[14:15]).tolist() == picks.tolist()


@pytest.mark.parametrize("which", NAMES)
def test_a_path_of_a_tree_is_kept(which: str, session: VulkanSession) -> None:
    """Slots move in K, V and their scales, across a tile's edge, as on the CPU."""
    cpu = compiled(SPECS[which]).session(context=64)
    tokens = tokens_of(SPECS[which].tiny, 30)
    parents = [-1, -1, 1, 0, 2, 4]
    for s in (session, cpu):
        s.prefill(tokens[:13])
        s.forward(tokens[13:19], parents=parents)
        s.keep([1, 2, 4, 5])
    assert session.length == cpu.length == 17
    assert same_bits(session.forward(tokens[20:25]), cpu.forward(tokens[20:25]))


def test_the_widest_steps_and_a_session_opened_anew() -> None:
    """A prompt longer than a step, a tree of 64 rows, a cut, and the same in another session."""
    which = NAMES[0]
    tokens = tokens_of(SPECS[which].tiny, 180)
    tree = [-1, *(max(n // 2 - 1, -1) for n in range(1, 64))]
    cpu = compiled(SPECS[which]).session(context=192)
    prompt = cpu.forward(tokens[:90], last=70)
    cpu.truncate(70)
    wide = cpu.forward(tokens[90:154], parents=tree)
    path = [63]
    while tree[path[0]] >= 0:
        path.insert(0, tree[path[0]])
    cpu.keep(path)
    after = cpu.forward(tokens[154:157])
    for _ in range(2):
        session = model_of(which).session(context=192)
        assert same_bits(session.forward(tokens[:90], last=70), prompt)
        session.truncate(70)
        assert same_bits(session.forward(tokens[90:154], parents=tree), wide)
        session.keep(path)
        assert session.length == cpu.length - 3
        assert same_bits(session.forward(tokens[154:157]), after)
        session.close()


def test_a_step_launches_what_has_work() -> None:
    """No merge before attention has parts, no head in a prefill; a row's bits are the same."""
    session, tokens = model_of(NAMES[0]).session(context=660), tokens_of(SPECS[NAMES[0]].tiny, 646)
    assert isinstance(session, VulkanSession)
    merges = sum(n == "attn_merge" for n in (t.launch.kernel for t in session.plan.turns()))
    every = sum(1 for _ in session.plan.turns())
    session.prefill(tokens[:636])
    assert session.launches == (every - merges - 2, every - merges - 2)  # output and pick
    first = session.forward(tokens[636:639])
    assert session.launches == (every - merges - 2, every - merges)
    together = session.forward(tokens[639:646])
    assert session.launches == (every - merges - 2, every)
    session.truncate(636)
    alone = [session.forward([t])[0] for t in tokens[636:646]]
    assert same_bits(np.concatenate([first, together]), np.stack(alone))
    session.truncate(636)
    assert same_bits(session.forward(tokens[636:646]), np.stack(alone))  # the first merged too
    session.close()


class Rig:
    """A generation on a session, with any drafter, drafting three tokens a round."""

    def __init__(self, which: str, session: VulkanSession) -> None:
        self.model, self.session = model_of(which), session

    def tokens(self, prompt: list[int], drafter: Drafter | None) -> tuple[list[int], int]:
        """The tokens, and how many steps they took."""
        self.session.truncate(0)
        done = collect(
            generate(
                self.session,
                self.model.tokenizer,
                prompt,
                max_tokens=12,
                drafter=drafter,
                controller=FixedController(3),
            )
        )
        return list(done.tokens), done.stats.rounds


@pytest.mark.parametrize("which", NAMES)
def test_speculation_gives_the_golden_tokens(
    which: str, session: VulkanSession, tmp_path: Path
) -> None:
    rig, spec = Rig(which, session), SPECS[which]
    prompt = tokens_of(spec.tiny, 5)
    golden, expected = PlanSession(spec, tmp_path), []
    row = golden.forward(prompt)[-1]
    for _ in range(12):
        expected.append(int(row.argmax()))
        row = golden.forward(expected[-1:])[-1]
    plain, rounds = rig.tokens(prompt, None)
    assert plain == expected
    half: dict[str, Drafter] = {
        "right": ScriptedDrafter(expected),
        "wrong at times": ScriptedDrafter(expected, lambda at: at % 3 == 1, spec.tiny.vocab),
        "tree": ScriptedDrafter(expected, vocab=spec.tiny.vocab, branches=1),
        "ngram": NgramDrafter(1, 3),
    }
    for name, drafter in half.items():
        assert rig.tokens(prompt, drafter)[0] == expected, name
    assert rig.tokens(prompt, ScriptedDrafter(expected))[1] < rounds / 2


@pytest.mark.parametrize("which", NAMES)
def test_sampled_text_is_the_cpus(which: str, session: VulkanSession) -> None:
    Sampled(session, SPECS[which]).check()


def test_memory_that_the_host_does_not_see() -> None:
    """As on a GPU without a window to its memory: everything goes through copies."""
    which = NAMES[0]
    model = model_of(which)
    data, plan = model._entries.data, read_plan(model._entries.data, "")
    codes = read_codes(data, plan, "vulkan", "")
    vectors = data["vectors"].view(np.float32)
    hidden = VulkanSession(
        model._spec, plan, codes, data["weights"], vectors, context=64, hidden=True
    )
    cpu = compiled(SPECS[which]).session(context=64)
    tokens = tokens_of(SPECS[which].tiny, 20)
    for s in (hidden, cpu):
        s.forward(tokens[:15], parents=[-1, *range(13), 0])
        s.keep([0, 14])
    assert same_bits(hidden.forward(tokens[15:17]), cpu.forward(tokens[15:17]))
    hidden.close()
    with pytest.raises(WorkerError, match="closed"):
        hidden.forward(tokens[17:18])


def test_a_worker_that_dies_is_an_error_of_that_session_alone() -> None:
    model = model_of(NAMES[0])
    lost, other = model.session(context=64), session_of(NAMES[0])
    assert isinstance(lost, VulkanSession)
    lost._worker._process.kill()
    with pytest.raises(WorkerError, match="the worker died with status -9"):
        lost.forward([1, 2])
    assert other.pick([1, 2]).shape == (2,)
    other.truncate(0)


def test_the_order_of_launches_matters() -> None:
    """The control: softmax before scores is another result."""
    model, tokens = model_of(NAMES[0]), tokens_of(SPECS[NAMES[0]].tiny, 5)
    data = model._entries.data
    plan = read_plan(data, "")
    before, loop, *after = plan.steps
    assert isinstance(loop, Repeat)
    names = [s.kernel for s in loop.body if isinstance(s, Launch)]
    scores, softmax = names.index("attn_scores"), names.index("attn_softmax")
    swapped = list(loop.body)
    swapped[scores], swapped[softmax] = loop.body[softmax], loop.body[scores]
    wrong = VulkanSession(
        model._spec,
        replace(plan, steps=(before, replace(loop, body=tuple(swapped)), *after)),
        read_codes(data, plan, "vulkan", ""),
        data["weights"],
        data["vectors"].view(np.float32),
        context=64,
    )
    right = session_of(NAMES[0])
    assert not same_bits(wrong.forward(tokens), right.forward(tokens))
    right.truncate(0)


def test_a_kernel_that_the_driver_refuses_is_named() -> None:
    """Not by Vulkan's number alone: which kernel, and what to do."""
    model = model_of(NAMES[0])
    data = {**model._entries.data, "kernels/pick.spv": b"\x03\x02#\x07 no module"}
    plan = read_plan(data, "")
    codes = read_codes(data, plan, "vulkan", "")
    with pytest.raises(WorkerError, match=r"^kernel pick: .*for this device, .*\? \(--target\)"):
        VulkanSession(
            model._spec, plan, codes, data["weights"], data["vectors"].view(np.float32), context=64
        )


def test_smollm2_equals_the_cpu() -> None:
    """All 30 layers, 12 rows of a prompt, then m = 1 and m = 5: no bit of a logit differs.

    Nor of the 40 largest of 49152.
    """
    cpu = compiled_smollm2().session(context=64)
    device = unmeasured(smollm2_file(), target=LAVAPIPE).session(context=64)
    tokens = compiled_smollm2().tokenizer.encode("The capital of France is Paris, that of Germany")
    assert same_bits(device.forward(tokens), cpu.forward(tokens))
    picks = [int(t) for t in cpu.pick([tokens[0]])]
    assert device.pick([tokens[0]]).tolist() == picks
    rows = [*picks, *tokens[:4]]
    assert same_bits(device.forward(rows), cpu.forward(rows))
    ours, theirs = (s.top(rows[:2], 40) for s in (device, cpu))
    assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
