"""Delivered text and tokens: whole characters, cuts at the right token, budgets, retraction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speccc.runtime.stream_text import Piece, TextStream, Utf8Stream

TEXT = "né 日本語 🦜👩‍🚀 end"


def push_all(stream: TextStream, parts: list[bytes], each: int = 1) -> list[Piece]:
    """Push the parts as tokens 0, 1, ..., taking pieces after every `each` tokens."""
    pieces = []
    for token, data in enumerate(parts):
        ended = stream.push(token, data)
        if ended or (token + 1) % each == 0:
            piece = stream.take()
            if piece is not None:
                pieces.append(piece)
        if ended:
            break
    return pieces


@given(st.lists(st.binary(max_size=4), max_size=12))
def test_any_bytes_decode_as_in_one_go(parts: list[bytes]) -> None:
    """Streamed text is the whole's text, but for a character cut off at the very end."""
    stream = Utf8Stream()
    shown = "".join(map(stream.feed, parts))
    whole = b"".join(parts).decode(errors="replace")
    # At most three bytes are held back; invalid ones among them are one replacement each.
    assert whole in [shown + "\ufffd" * held for held in range(4)]
    if whole != shown:  # what is left out is the start of a character
        assert not _complete(b"".join(parts))


def _complete(data: bytes) -> bool:
    return all(
        b"".join((data, more)).decode(errors="replace").endswith("\ufffd")
        for more in (b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xa0\xa0", b"\x90\x90\x90")
    )


def test_bytes_of_emoji_never_show_as_replacement() -> None:
    """B35: one token a byte."""
    data = TEXT.encode()
    stream = TextStream(len(data), (), ())
    pieces = push_all(stream, [bytes([b]) for b in data])
    assert "".join(p.text for p in pieces) == TEXT
    assert not any("\ufffd" in p.text for p in pieces)
    assert sum(len(p.tokens) for p in pieces) == len(data)
    assert [p.finish_reason for p in pieces if p.finish_reason] == ["length"]


def test_half_a_character_at_the_end_is_dropped() -> None:
    stream = TextStream(3, (), ())
    pieces = push_all(stream, [b"a", b"\xe6", b"\x97", b"\xa5"])
    assert "".join(p.text for p in pieces) == "a"
    assert stream.tokens == [0, 1, 2]


def test_stop_inside_the_budget_wins_and_beyond_it_length_does() -> None:
    parts = [b"x", b"E", b"ND", b"y"]
    at_budget = TextStream(3, ["END"], ())
    assert push_all(at_budget, parts)[-1].finish_reason == "stop"
    assert at_budget.tokens == [0]
    short = TextStream(2, ["END"], ())
    assert push_all(short, parts)[-1].finish_reason == "length"
    assert short.tokens == [0, 1]


def test_stop_id_at_and_beyond_the_budget() -> None:
    parts = [b"x", b"y", b""]
    assert push_all(TextStream(3, (), {2}), parts)[-1].finish_reason == "stop"
    assert push_all(TextStream(2, (), {2}), parts)[-1].finish_reason == "length"


def test_a_stop_takes_back_tokens_of_earlier_calls() -> None:
    """The token that holds the last text byte stays, all later ones go."""
    stream = TextStream(10, ["END"], ())
    pieces = push_all(stream, [b"a", b"bE", b"N", b"", b"Dz", b"q"])
    assert "".join(p.text for p in pieces) == "ab"
    assert stream.tokens == [0, 1]
    assert [t for p in pieces for t in p.tokens] == [0, 1]
    assert pieces[-1].finish_reason == "stop"


def test_stop_as_the_very_first_text() -> None:
    stream = TextStream(10, ["END"], ())
    pieces = push_all(stream, [b"END"])
    assert pieces == [Piece("", (), "stop")]
    assert stream.tokens == []


def test_stop_token_releases_what_was_held() -> None:
    stream = TextStream(10, ["END"], {2})
    pieces = push_all(stream, [b"aE", b"N", b"</s>", b"q"])
    assert "".join(p.text for p in pieces) == "aEN"
    assert stream.tokens == [0, 1]


def test_length_releases_what_was_held() -> None:
    stream = TextStream(2, ["END"], ())
    assert "".join(p.text for p in push_all(stream, [b"aE", b"N"])) == "aEN"


def test_no_budget_gives_one_empty_piece() -> None:
    stream = TextStream(0, (), ())
    assert stream.take() == Piece("", (), "length")


@given(
    st.lists(st.sampled_from([b"a", b"b", b"", b"\xc2", b"\xa2", "¢a".encode(), b"ab"]),
             min_size=1, max_size=14),
    st.lists(st.sampled_from(["a", "ab", "b¢", "¢", "bab", "aaa"]), max_size=2),
    st.integers(1, 16),
    st.integers(1, 5),
    st.sets(st.integers(0, 14), max_size=2),
)  # fmt: skip
def test_pieces_do_not_depend_on_rounds(
    parts: list[bytes], stops: list[str], budget: int, each: int, stop_ids: set[int]
) -> None:
    """Text, tokens and reason are a token-by-token run's; tokens are shown once, in order."""
    one, many = TextStream(budget, stops, stop_ids), TextStream(budget, stops, stop_ids)
    plain, blocks = push_all(one, parts, 1), push_all(many, parts, each)
    assert many.tokens == one.tokens
    assert many.finish_reason == one.finish_reason
    shown = [t for p in blocks for t in p.tokens]
    assert shown == one.tokens[: len(shown)]
    if one.finish_reason:
        assert shown == one.tokens
        text = "".join(p.text for p in blocks)
        assert text == "".join(p.text for p in plain)
        assert not any(stop in text for stop in stops)
        assert len(one.tokens) <= budget
