"""Stop strings in a stream: found once complete, never shown, however the stream is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccc.errors import InputError
from speccc.runtime.stops import StopScanner

SMALL = st.text(alphabet="ab¢", max_size=4)


def run(stops: list[str], parts: list[bytes]) -> tuple[bytes, bool, list[int]]:
    scanner = StopScanner(stops)
    shown, sizes = b"", []
    for part in parts:
        shown += scanner.feed(part)
        sizes.append(len(shown))
        if scanner.stopped:
            return shown, True, sizes
    return shown + scanner.flush(), False, sizes


def first_completed(stops: list[str], text: bytes) -> bytes | None:
    """By definition: grow the text byte by byte, the longest stop that ends it wins."""
    for end in range(1, len(text) + 1):
        lengths = [len(s.encode()) for s in stops if text[:end].endswith(s.encode())]
        if lengths:
            return text[: end - max(lengths)]
    return None


@given(st.lists(SMALL.filter(bool), max_size=3), st.lists(SMALL, max_size=8))
def test_equals_the_definition_for_every_split(stops: list[str], parts: list[str]) -> None:
    whole = "".join(parts).encode()
    expected = first_completed(stops, whole)
    singles = [bytes([b]) for b in whole]
    for split in ([p.encode() for p in parts], [whole], singles):
        shown, stopped, _ = run(stops, split)
        assert stopped == (expected is not None)
        assert shown == (whole if expected is None else expected)
        assert not any(s.encode() in shown for s in stops)


@given(st.lists(SMALL.filter(bool), min_size=1, max_size=3), st.lists(SMALL, max_size=8))
def test_holds_back_no_more_than_it_must(stops: list[str], parts: list[str]) -> None:
    """All that is held back is the start of some stop."""
    _, stopped, sizes = run(stops, [p.encode() for p in parts])
    whole = b""
    for part, size in zip(parts, sizes[:-1] if stopped else sizes, strict=False):
        whole += part.encode()
        held = whole[size:]
        assert not held or any(s.encode().startswith(held) for s in stops)


def test_half_a_stop_is_held_then_released() -> None:
    scanner = StopScanner(["</s>"])
    assert scanner.feed(b"a<") == b"a"
    assert scanner.feed(b"/s") == b""
    assert scanner.feed(b"x") == b"</sx"
    assert scanner.feed(b"<") == b""
    assert scanner.flush() == b"<"
    assert not scanner.stopped


def test_the_stop_completed_first_wins() -> None:
    assert run(["abcd", "bc"], [b"abcd"])[0] == b"a"
    assert run(["abc", "c"], [b"abcd"])[0] == b""


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InputError, match=r"^stop: "):
        StopScanner(["x", ""])
