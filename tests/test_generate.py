"""The loop over table models: whatever is drafted, the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_session import (
    ScriptedDrafter,
    Table,
    TableSession,
    TableTokens,
    fixed_text,
    hashed_table,
    literal_table,
)

from speccc.errors import InputError
from speccc.runtime.controller import AdaptiveController, Controller, FixedController, VerifyCost
from speccc.runtime.drafter import Drafter
from speccc.runtime.generate import Generation, collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.sampling import SamplingParams, picker

VOCAB = 12
LETTERS = TableTokens([bytes([97 + i]) for i in range(VOCAB)])
AWKWARD = TableTokens(b"a|b|ab||ba|\xf0\x9f|\xa6\x9c|\xc3\xa9|c|ca|\xc3| ".split(b"|"))
PROMPT = [1, 2, 3, 1, 2]


def run(
    table: Table,
    drafter: Drafter | None = None,
    controller: Controller | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    tokenizer: TableTokens = LETTERS,
    max_tokens: int | None = 40,
    sampling: SamplingParams | None = None,
    stops: Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    context: int = 4096,
    chunk: int = 64,
    log_probs: bool = False,
) -> tuple[Generation, TableSession]:
    session = TableSession(table, context)
    pieces = generate(
        session, tokenizer, prompt, max_tokens=max_tokens, drafter=drafter, controller=controller,
        sampling=sampling or SamplingParams(), stop_strings=stops, stop_ids=stop_ids,
        prefill_chunk=chunk, log_probs=log_probs,
    )  # fmt: skip
    return collect(pieces), session


def plain_loop(
    table: Table, prompt: Sequence[int], count: int, sampling: SamplingParams
) -> list[int]:
    """Decoding by its definition, without a session."""
    history = list(prompt)
    pick = picker(sampling)
    for _ in range(count):
        history.append(pick(table(tuple(history)), len(history)))
    return history[len(prompt) :]


SAMPLINGS = [SamplingParams(), SamplingParams(0.8, seed=4), SamplingParams(1.2, 6, 0.9, 0.05, 7)]
DRAFTERS: dict[str, Callable[[Sequence[int]], Drafter]] = {
    "ngram": lambda plain: NgramDrafter(1, 3),
    "right": lambda plain: ScriptedDrafter(plain, vocab=VOCAB),
    "wrong": lambda plain: ScriptedDrafter(plain, lambda at: True, VOCAB),
    "half": lambda plain: ScriptedDrafter(plain, lambda at: at * 7 % 5 < 2, VOCAB),
    "tree": lambda plain: ScriptedDrafter(plain, vocab=VOCAB, branches=2),
    "half tree": lambda plain: ScriptedDrafter(plain, lambda at: at * 7 % 5 < 2, VOCAB, branches=1),
}


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


def test_progress_counts_the_prompt() -> None:
    seen: list[tuple[int, int]] = []
    session = TableSession(hashed_table(VOCAB, 1))
    pieces = generate(
        session, LETTERS, [1] * 11, max_tokens=1, prefill_chunk=4,
        on_progress=lambda done, of: seen.append((done, of)),
    )  # fmt: skip
    collect(pieces)
    assert seen == [(4, 10), (8, 10), (10, 10)]


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


@pytest.mark.parametrize("name", ["right", "tree"])
def test_text_ends_at_a_stop_token_inside_a_block(name: str) -> None:
    """B10: the third token of a block of eight is the end."""
    plain = [5, 6, 7, 8, 9, 10]
    found, session = run(
        fixed_text(plain, len(PROMPT), VOCAB), DRAFTERS[name](plain), FixedController(8),
        stop_ids=[7],
    )  # fmt: skip
    assert (found.tokens, found.text, found.finish_reason) == ((5, 6), "fg", "stop")
    assert session.history == [*PROMPT, 5]
    assert found.stats.completion_tokens == 2
    assert found.stats.accepted <= 2


@pytest.mark.parametrize("k", [0, 1, 2, 3, 8])
def test_stop_string_over_two_tokens_and_two_blocks(k: int) -> None:
    """B12: usage, text, session and draft counts all end where the text does."""
    tokenizer = TableTokens([b"x", b"fooEN", b"D.", b"bar", b"E", b"N", b"D"])
    for plain, tokens, text in (
        ([0, 3, 1, 2, 3], (0, 3, 1), "xbarfoo"),
        ([0, 3, 4, 5, 6, 3], (0, 3), "xbar"),
        ([0, 4, 5, 3, 4, 5, 6, 0], (0, 4, 5, 3), "xENbar"),
    ):
        found, session = run(
            fixed_text(plain, 1, 7), ScriptedDrafter(plain), FixedController(k),
            prompt=[0], tokenizer=tokenizer, stops=["END"],
        )  # fmt: skip
        assert (found.tokens, found.text, found.finish_reason) == (tokens, text, "stop")
        assert session.history == [0, *tokens[:-1]]
        assert found.stats.completion_tokens == len(tokens)
        assert found.stats.accepted <= len(tokens)
        assert sum(n * count for n, count in enumerate(found.stats.histogram)) == (
            found.stats.accepted
        )


def test_an_ngram_drafter_without_matches() -> None:
    """B23: nothing to copy for 300 tokens, then a repeat."""
    vocab = 320
    plain = [*range(1, 301), 1, 2, 3, 4, 5, 6, 7, 8]
    found, _ = run(
        fixed_text(plain, 1, vocab), NgramDrafter(2, 3), FixedController(4), prompt=[310],
        tokenizer=TableTokens([b"."] * vocab), max_tokens=len(plain),
    )  # fmt: skip
    assert list(found.tokens) == plain
    stats = found.stats
    assert stats.rounds == 304
    assert (stats.steps, stats.drafted, stats.accepted) == (1, 4, 4)
    assert stats.acceptance_length == 5.0
    assert stats.tokens_per_round == 308 / 304


def test_counts_of_scripted_acceptance() -> None:
    """B34 through the loop: 3, 0, 2, 4 of 4."""
    plain = [1 + i % 9 for i in range(20)]
    # each round starts where the last one ended: 0, 4, 5, 8, 13
    found, _ = run(
        fixed_text(plain, len(PROMPT), VOCAB),
        ScriptedDrafter(plain, lambda at: at in (3, 4, 7), VOCAB),
        FixedController(4),
        max_tokens=13,
    )
    stats = found.stats
    assert (stats.drafted, stats.accepted, stats.steps) == (16, 9, 4)
    assert stats.acceptance_length == 3.25
    assert stats.per_position == (0.75, 0.75, 0.5, 0.25)
    assert stats.histogram == (1, 0, 1, 1, 1)


@pytest.mark.parametrize("k", [0, 3, 8])
def test_emoji_over_byte_tokens(k: int) -> None:
    """B35: pieces join to the exact text and account for every token."""
    text = "ok 🦜 日本 👩‍🚀!"
    plain = list(text.encode())
    pieces = list(
        generate(
            TableSession(fixed_text(plain, 1, 256)), TableTokens([bytes([b]) for b in range(256)]),
            [0], max_tokens=len(plain), drafter=ScriptedDrafter(plain),
            controller=FixedController(k),
        )
    )  # fmt: skip
    assert "".join(p.text for p in pieces) == text
    assert not any("\ufffd" in p.text for p in pieces)
    assert [t for p in pieces for t in p.tokens] == plain
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("half", "forward"),
        ("half", "late forward"),
        ("half", "truncate"),
        ("half tree", "forward"),
        ("half tree", "late forward"),
        ("half tree", "keep"),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_failed_round_leaves_the_session_as_it_was(name: str, method: str, after: int) -> None:
    """Whatever fails, the session holds what it held and can be used again."""
    table = hashed_table(VOCAB, 2)
    plain = plain_loop(table, PROMPT, 40, SamplingParams())
    session = TableSession(table)
    pieces = generate(
        session, LETTERS, PROMPT, max_tokens=40, drafter=DRAFTERS[name](plain),
        controller=FixedController(4),
    )  # fmt: skip
    shown = next(pieces).text
    session.fail_at[method] = after
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for piece in pieces:
            shown += piece.text
    delivered = [ord(c) - 97 for c in shown]
    assert delivered == plain[: len(delivered)]
    assert session.history == [*PROMPT, *delivered[:-1]]
    known = session.length
    prompt = [*PROMPT, *delivered]
    rest = collect(generate(session, LETTERS, prompt, max_tokens=9, cached=known))
    assert list(rest.tokens) == plain_loop(table, prompt, 9, SamplingParams())


@pytest.mark.parametrize("failing", ["propose", "observe", "token_bytes"])
def test_a_failing_part_leaves_the_session_as_it_was(failing: str) -> None:
    table = hashed_table(VOCAB, 2)
    plain = plain_loop(table, PROMPT, 40, SamplingParams())
    drafter, tokenizer = ScriptedDrafter(plain), TableTokens(LETTERS.pieces)

    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    session = TableSession(table)
    pieces = generate(
        session, tokenizer, PROMPT, max_tokens=40, drafter=drafter, controller=FixedController(3)
    )
    shown = next(pieces).text + next(pieces).text
    owner = tokenizer if failing == "token_bytes" else drafter
    object.__setattr__(owner, failing, fail)
    with pytest.raises(ZeroDivisionError):
        next(pieces)
    assert session.history == [*PROMPT, *plain[: len(shown) - 1]]


def test_a_stream_may_be_abandoned() -> None:
    table = hashed_table(VOCAB, 2)
    session = TableSession(table)
    pieces = generate(session, LETTERS, PROMPT, drafter=NgramDrafter(1, 2))
    shown = "".join(next(pieces).text for _ in range(5))
    pieces.close()
    assert session.length == len(PROMPT) + len(shown) - 1


def test_budget_of_none_fills_the_context() -> None:
    for k in (0, 5):
        table = hashed_table(VOCAB, 2)
        plain = plain_loop(table, PROMPT, 16, SamplingParams())
        found, session = run(
            table, DRAFTERS["right"](plain), FixedController(k), max_tokens=None, context=20
        )
        assert (list(found.tokens), found.finish_reason) == (plain, "length")
        assert session.length == 20


def test_no_tokens_asked_for() -> None:
    found, session = run(hashed_table(VOCAB, 2), max_tokens=0)
    assert (found.text, found.tokens, found.finish_reason) == ("", (), "length")
    assert session.history == PROMPT[:-1]


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


def test_times_come_from_the_clock() -> None:
    ticks = iter(range(1000))
    pieces = generate(
        TableSession(hashed_table(VOCAB, 2)), LETTERS, PROMPT, max_tokens=5,
        clock=lambda: float(next(ticks)),
    )  # fmt: skip
    stats = collect(pieces).stats
    assert (stats.prefill_seconds, stats.decode_seconds) == (1.0, 5.0)
    assert stats.decode_rate == 1.0


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("prompt", {"prompt_tokens": []}),
        ("prompt", {"prompt_tokens": [1] * 33}),
        ("max_tokens", {"max_tokens": -1}),
        ("stop", {"stop_strings": [""]}),
        ("cached", {"cached": 5}),
        ("prefill_chunk", {"prefill_chunk": 0}),
    ],
)
def test_bad_requests_touch_nothing(field: str, options: dict[str, object]) -> None:
    session = TableSession(hashed_table(VOCAB, 2), context=32)
    session.forward([1, 2, 3])
    request: dict[str, object] = {"prompt_tokens": PROMPT, **options}
    with pytest.raises(InputError, match=rf"^{field}: "):
        generate(session, LETTERS, **request)  # type: ignore[arg-type]
    assert session.length == 3
