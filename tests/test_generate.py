"""The loop over table models: whatever is drafted, the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_rig import (
    AWKWARD,
    DRAFTERS,
    LETTERS,
    PROMPT,
    SAMPLINGS,
    VOCAB,
    plain_loop,
    run,
)
from table_session import (
    ScriptedDrafter,
    TableSession,
    hashed_table,
    literal_table,
)

from speccc.runtime.controller import AdaptiveController, Controller, FixedController, VerifyCost
from speccc.runtime.generate import collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.sampling import SamplingParams


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded", "filtered"])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 8, 15])
def test_text_equals_plain_decoding(name: str, k: int, sampling: SamplingParams) -> None:
    table = hashed_table(VOCAB, order=2)
    plain = plain_loop(table, PROMPT, 40, sampling)
    found, session = run(table, DRAFTERS[name](plain), FixedController(k), sampling=sampling)
    assert list(found.tokens) == plain
    assert found.text == "".join(chr(97 + t) for t in plain)
    assert found.finish_reason == "length"
    assert session.history == [*PROMPT, *plain[:-1]]
    assert max(session.widths[1:]) <= k + 1


def test_seeds_and_temperatures_tell_texts_apart() -> None:
    """Guards the test above: the seeded texts really are random ones."""
    table = hashed_table(VOCAB, order=2)
    texts = {run(table, sampling=SamplingParams(1.0, seed=seed))[0].text for seed in range(20)}
    assert len(texts) == 20


def test_right_drafts_are_all_accepted_and_wrong_ones_never() -> None:
    table = hashed_table(VOCAB, order=2)
    plain = plain_loop(table, PROMPT, 40, SamplingParams())
    right, session = run(table, DRAFTERS["right"](plain), FixedController(7))
    assert right.stats.acceptance_length == 8.0
    assert right.stats.histogram == (0,) * 7 + (5,)
    assert session.widths == [4, *[8] * 5]
    wrong, session = run(table, DRAFTERS["wrong"](plain), FixedController(3))
    assert (wrong.stats.accepted, wrong.stats.rounds) == (0, 40)
    assert session.widths[-4:] == [4, 3, 2, 1]  # never past the budget


@settings(deadline=None, max_examples=400)
@given(
    st.integers(0, 30),
    st.sampled_from(sorted(DRAFTERS)),
    st.integers(0, 9),
    st.integers(0, 24),
    st.lists(st.sampled_from(["a", "ab", "bab", "🦜", "éa", "ca c", "abab"]), max_size=2),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_drafter_stop_and_budget(
    salt: int,
    name: str,
    k: int,
    budget: int,
    stops: list[str],
    stop_ids: set[int],
    sampling: SamplingParams,
    room: int,
    adaptive: bool,
) -> None:
    """Everything delivered, and the session's length, are those of the run without drafts."""
    table = hashed_table(VOCAB, order=2, salt=salt)
    plain_tokens = plain_loop(table, PROMPT, budget, sampling)
    controller: Controller = AdaptiveController(max_draft=k) if adaptive else FixedController(k)
    results = []
    for drafter in (None, DRAFTERS[name](plain_tokens)):
        results.append(
            run(
                table, drafter, controller, tokenizer=AWKWARD, max_tokens=budget, stops=stops,
                stop_ids=sorted(stop_ids), sampling=sampling, context=len(PROMPT) + 2 * room,
                log_probs=True,
            )
        )  # fmt: skip
    (plain, plain_session), (found, session) = results
    assert (found.text, found.tokens, found.finish_reason) == (
        plain.text, plain.tokens, plain.finish_reason,
    )  # fmt: skip
    assert found.log_probs == plain.log_probs
    assert session.history == plain_session.history
    assert session.history == [*PROMPT, *found.tokens][: session.length]
    assert session.length == len(PROMPT) + len(found.tokens) - 1
    assert list(found.tokens) == plain_tokens[: len(found.tokens)]
    assert found.stats.completion_tokens == len(found.tokens) <= min(budget, 2 * room + 1)
    assert found.stats.accepted <= min(len(found.tokens), found.stats.drafted)
    assert not any(stop in found.text for stop in stops)
    assert not stop_ids & set(found.tokens)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 9])
def test_prompt_split_does_not_matter(chunk: int, length: int) -> None:
    table = hashed_table(VOCAB, order=3)
    prompt = [i % VOCAB for i in range(length)]
    found, session = run(table, NgramDrafter(), prompt=prompt, chunk=chunk)
    assert list(found.tokens) == plain_loop(table, prompt, 40, SamplingParams())
    fed = 0
    for width in session.widths[: -(-(length - 1) // chunk)]:
        assert width <= chunk
        fed += width
    assert fed == length - 1


def test_a_prefilling_session_computes_no_logits() -> None:
    class Prefilling(TableSession):
        prefilled = 0

        def prefill(self, tokens: Sequence[int]) -> None:
            self.prefilled += len(tokens)
            self.history += tokens

    table = hashed_table(VOCAB, 2)
    session = Prefilling(table)
    found = collect(generate(session, LETTERS, PROMPT, max_tokens=10))
    assert session.prefilled == len(PROMPT) - 1
    assert session.widths == [1] * 10
    assert list(found.tokens) == plain_loop(table, PROMPT, 10, SamplingParams())


def test_cached_prompt_is_not_fed_again() -> None:
    """A second turn keeps the first's tokens, cuts what differs, and says the same."""
    table = hashed_table(VOCAB, 3)
    first, session = run(table, max_tokens=6)
    prompt = [*PROMPT, *first.tokens[:4], 5, 6, 7]
    session.widths.clear()
    cached = len(PROMPT) + 4
    again = collect(generate(session, LETTERS, prompt, max_tokens=9, cached=cached))
    assert list(again.tokens) == plain_loop(table, prompt, 9, SamplingParams())
    assert session.widths[0] == 2
    assert again.stats.cached_tokens == cached
    whole = collect(generate(session, LETTERS, prompt, max_tokens=9, cached=len(prompt)))
    assert whole.tokens == again.tokens


def test_the_likelier_token_wins_over_the_draft() -> None:
    """B04: draft at p = .30, the other at .50."""
    row = np.log([0.30, 0.50, 0.20]).tolist()
    drafter = ScriptedDrafter([0] * 9)
    found, _ = run(literal_table({}, row), drafter, FixedController(4), prompt=[2], max_tokens=6)
    assert found.tokens == (1,) * 6
    assert found.stats.accepted == 0


def test_sampled_tokens_follow_softmax_beside_an_argmax_drafter() -> None:
    """B05: T = 1, 20k tokens over 80 seeds; chi-square of 3 degrees below its 99.99 % quantile."""
    values = [2.0, 1.5, 1.0, 0.5]
    table, drafter = literal_table({}, values), ScriptedDrafter([0] * 250)
    runs = [
        run(table, drafter, FixedController(3), prompt=[0], max_tokens=250,
            sampling=SamplingParams(1.0, seed=seed))[0]
        for seed in range(80)
    ]  # fmt: skip
    counts = np.bincount([t for found in runs for t in found.tokens], minlength=4)
    expected = np.exp(values) / np.exp(values).sum() * 20_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1
    # a draft of the likeliest token holds as often as the target draws it
    steps = sum(found.stats.steps for found in runs)
    first = sum(found.stats.accepted_at[0] for found in runs)
    p = expected[0] / 20_000
    assert first / steps == pytest.approx(p, abs=5 * (p * (1 - p) / steps) ** 0.5)


@pytest.mark.parametrize(
    ("params", "left"),
    [
        (SamplingParams(1.0, top_k=2), {0, 1}),
        (SamplingParams(1.0, top_p=0.6), {0, 1}),
        (SamplingParams(1.0, min_p=0.3), {0, 1, 2}),
    ],
    ids=["top-k", "top-p", "min-p"],
)
def test_a_filtered_draft_is_never_emitted(params: SamplingParams, left: set[int]) -> None:
    """B06: the drafter proposes a filtered token every time."""
    table = literal_table({}, [2.0, 1.5, 1.0, 0.5])
    found, _ = run(
        table, ScriptedDrafter([3] * 500), FixedController(3), prompt=[0], max_tokens=500,
        sampling=params,
    )  # fmt: skip
    assert set(found.tokens) == left
    assert found.stats.accepted == 0
    assert list(found.tokens) == plain_loop(table, [0], 500, params)


def test_log_probs_are_the_targets() -> None:
    values = np.log([0.30, 0.50, 0.20])
    found, _ = run(
        literal_table({}, values.tolist()), ScriptedDrafter([1] * 9), FixedController(3),
        prompt=[0], max_tokens=6, log_probs=True,
    )  # fmt: skip
    # float32 logits near 1: half an ulp is 6e-8
    assert found.log_probs == pytest.approx([np.log(0.5)] * 6, abs=2e-7)
    assert run(hashed_table(VOCAB, 2))[0].log_probs is None


def test_a_controller_kept_for_a_second_request() -> None:
    """What it learnt changes the widths and not the text."""
    table = hashed_table(VOCAB, 2)
    controller = AdaptiveController(VerifyCost((1, 2), (1.0, 1.5)))
    drafter = NgramDrafter(1, 3)
    first, _ = run(table, drafter, controller, max_tokens=200)
    second, _ = run(table, drafter, controller, max_tokens=200)
    assert first.tokens == second.tokens
    assert list(first.tokens) == plain_loop(table, PROMPT, 200, SamplingParams())
