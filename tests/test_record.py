"""Keys and records: what tells two apart, what is refused, and the text that gives them back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_rig import HERE, STRANGER, key, record
from hypothesis import given
from hypothesis import strategies as st

from speccc.autotune.facts import Fact, facts, plain_text
from speccc.autotune.key import Device
from speccc.autotune.record import Outcome, Record
from speccc.autotune.record_json import dump_record, parse_record
from speccc.errors import InputError

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
VALUES: st.SearchStrategy[Fact] = st.one_of(
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 _:@()-]{0,30}", fullmatch=True),
)
TIMES = st.floats(1e-6, 1e6)


@st.composite
def records(draw: st.DrawFn) -> Record:
    outcome = draw(st.sampled_from(Outcome))
    config = facts(draw(st.dictionaries(NAMES, VALUES, max_size=6)))
    ok = outcome is Outcome.OK
    return Record(
        key=key(m=draw(st.integers(1, 64))),
        config=config,
        outcome=outcome,
        ms=tuple(draw(st.lists(TIMES, min_size=1, max_size=9))) if ok else (),
        default_ms=draw(TIMES) if ok else None,
        compile_s=draw(st.floats(0, 100)),
        verify_s=draw(st.floats(0, 100)),
        at="2026-11-29T12:00:00Z",
        message="" if ok else draw(st.just("exit code -11")),
    )


@given(records())
def test_text_gives_the_record_back(one: Record) -> None:
    text = dump_record(one)
    again = parse_record(text)
    assert again == one
    assert dump_record(again) == text
    assert again.identity() == one.identity()
    assert "\n" not in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel", "attention"),
        ("program", "cd" * 32),
        ("numeric_class", "kv 128"),
        ("m", 7),
        ("shapes", {"n": 576, "k": 1537}),
        ("formats", {"w": "q4_0", "kv": "f16"}),
        ("layout", {"panel": 16, "planes": True}),
        ("compilers", {"speccc": "0.1.0", "tvm": "0.27.1"}),
        ("policy", {"threads": 1, "in_step": True, "cold": False}),
    ],
)
def test_every_part_of_a_key_counts(field: str, value: object) -> None:
    changed = key(**{field: value})
    assert changed.problem() != key().problem()
    assert changed.digest() != key().digest()


def test_the_device_is_apart_from_the_problem() -> None:
    assert key(STRANGER).problem() == key(HERE).problem()
    assert key(STRANGER).digest() != key(HERE).digest()
    more = replace(HERE, details=facts({"cpus": 4}))
    assert more.digest() != HERE.digest()


def test_order_of_names_does_not_count() -> None:
    assert key(shapes={"k": 1536, "n": 576}).digest() == key().digest()


def test_every_field_of_a_record_counts() -> None:
    base = record()
    changed = [
        replace(base, config=facts({"unroll": 3})),
        replace(base, ms=(1.25, 1.0)),
        replace(base, default_ms=3.0),
        replace(base, compile_s=0.5),
        replace(base, verify_s=0.25),
        replace(base, at="2026-11-29T12:00:01Z"),
        replace(base, provenance=facts({"session": "s2"})),
        replace(base, message="note"),
        replace(base, outcome=Outcome.WRONG, ms=(), default_ms=None),
    ]
    assert len({one.identity() for one in [base, *changed]}) == 1 + len(changed)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"ms": ()}, "ms"),
        ({"ms": (0.0,)}, r"ms\[0\]"),
        ({"ms": (1.0, -1.0)}, r"ms\[1\]"),
        ({"ms": (float("nan"),)}, r"ms\[0\]"),
        ({"ms": (float("inf"),)}, r"ms\[0\]"),
        ({"ms": (1.0,) * 4097}, "ms"),
        ({"default_ms": None}, "default_ms"),
        ({"default_ms": 0.0}, "default_ms"),
        ({"compile_s": -0.5}, "compile_s"),
        ({"verify_s": 1e9}, "verify_s"),
        ({"at": "yesterday"}, "at"),
        ({"at": "2026-13-01T00:00:00Z"}, "at"),
        ({"message": "../../etc"}, "message"),
        ({"config": (("b", 1), ("a", 1))}, "config"),
        ({"outcome": Outcome.TIMEOUT}, "ms"),
    ],
)
def test_a_record_that_cannot_be_is_refused(changes: dict[str, object], names: str) -> None:
    with pytest.raises(InputError, match=f"^{names}: "):
        replace(record(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    ["/etc/passwd", "a/b", "a\\b", "..", "a..b", "", " x", "a\x1b[31m", "a\nb", "é", "x" * 161],
)
def test_texts_that_could_be_more_than_texts_are_refused(bad: str) -> None:
    with pytest.raises(InputError):
        Device("cpu", "family", bad)
    with pytest.raises(InputError):
        facts({"choice": bad})
    # What a machine says of itself is made to fit instead.
    Device("cpu", "family", plain_text(bad))


def test_times_over_the_default_of_the_same_session() -> None:
    one = record(ms=(3.0, 1.0, 1.5), default_ms=2.0)
    assert one.median_ms() == 1.5
    assert one.ratio() == 0.75
    assert record(outcome=Outcome.WRONG).ratio() is None
