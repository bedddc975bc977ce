"""How a generation ends, what it counts, and what a failure leaves behind."""

from __future__ import annotations

import pytest
from loop_rig import (
    DRAFTERS,
    LETTERS,
    PROMPT,
    VOCAB,
    plain_loop,
    run,
)
from table_session import (
    ScriptedDrafter,
    TableSession,
    TableTokens,
    fixed_text,
    hashed_table,
)

from speccc.errors import InputError
from speccc.runtime.controller import FixedController
from speccc.runtime.generate import collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.sampling import SamplingParams


def test_progress_counts_the_prompt() -> None:
    seen: list[tuple[int, int]] = []
    session = TableSession(hashed_table(VOCAB, 1))
    pieces = generate(
        session, LETTERS, [1] * 11, max_tokens=1, prefill_chunk=4,
        on_progress=lambda done, of: seen.append((done, of)),
    )  # fmt: skip
    collect(pieces)
    assert seen == [(4, 10), (8, 10), (10, 10)]


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


def test_a_prompt_of_one_token_has_no_rate() -> None:
    """It goes with the first round: nothing was timed that could be divided by."""
    ticks = iter(range(1000))
    pieces = generate(
        TableSession(hashed_table(VOCAB, 2)), LETTERS, PROMPT[:1], max_tokens=2,
        clock=lambda: float(next(ticks)),
    )  # fmt: skip
    stats = collect(pieces).stats
    assert (stats.prefill_seconds, stats.prefill_rate) == (0.0, 0.0)


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
