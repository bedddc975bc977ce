"""Records from JSON text, trusting nothing: every field named, typed, limited, and no other."""

from __future__ import annotations

import json
from collections.abc import Mapping

from speccc.autotune.facts import Fact, Facts, check_fact, facts, kind
from speccc.autotune.key import Device, TuneKey, canonical
from speccc.autotune.record import Outcome, Record
from speccc.errors import InputError

MOST_BYTES = 1 << 17
OUTCOMES = {outcome.value: outcome for outcome in Outcome}
DEVICE = ("kind", "family", "name", "details")
KEY = (
    "kernel", "program", "numeric_class", "m", "shapes", "formats", "layout", "device",
    "compilers", "policy",
)  # fmt: skip
RECORD = (
    "key", "config", "outcome", "ms", "default_ms", "compile_s", "verify_s", "at", "provenance",
    "message",
)  # fmt: skip


def dump_record(record: Record) -> str:
    """The canonical one-line text of a record: equal records, equal texts."""
    return canonical(record.to_json())


def parse_record(text: str) -> Record:
    """The record of one line; InputError names the first field that does not fit."""
    return record_from_json(parse_json(text))


def parse_json(text: str) -> object:
    """JSON without NaN, infinities, doubled names or bottomless nesting; else InputError."""
    if len(text) > MOST_BYTES:
        raise InputError(f"has {len(text)} characters; {MOST_BYTES} are allowed")
    try:
        value: object = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_no_doubles
        )
    except RecursionError:
        raise InputError("is nested too deep") from None
    except json.JSONDecodeError as error:
        raise InputError(f"is no JSON ({error.msg} at column {error.colno})") from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("has a number out of range") from None
    return value


def record_from_json(value: object) -> Record:
    """The record a parsed JSON value describes; InputError names the field that does not fit."""
    fields = _object(value, "record", RECORD)
    outcome = _text(fields["outcome"], "outcome")
    if outcome not in OUTCOMES:
        raise InputError(f"must be one of {', '.join(OUTCOMES)}", where="outcome")
    default = fields["default_ms"]
    return Record(
        key=key_from_json(fields["key"]),
        config=_facts(fields["config"], "config"),
        outcome=OUTCOMES[outcome],
        ms=_samples(fields["ms"]),
        default_ms=None if default is None else _number(default, "default_ms"),
        compile_s=_number(fields["compile_s"], "compile_s"),
        verify_s=_number(fields["verify_s"], "verify_s"),
        at=_text(fields["at"], "at"),
        provenance=_facts(fields["provenance"], "provenance"),
        message=_text(fields["message"], "message"),
    )


def key_from_json(value: object) -> TuneKey:
    """The key a parsed JSON value describes; InputError names the field that does not fit."""
    fields = _object(value, "key", KEY)
    device = _object(fields["device"], "key.device", DEVICE)
    m = fields["m"]
    if isinstance(m, bool) or not isinstance(m, int):
        raise InputError(f"must be an integer, not {kind(m)}", where="key.m")
    return TuneKey(
        kernel=_text(fields["kernel"], "key.kernel"),
        program=_text(fields["program"], "key.program"),
        numeric_class=_text(fields["numeric_class"], "key.numeric_class"),
        m=m,
        shapes=_facts(fields["shapes"], "key.shapes"),
        formats=_facts(fields["formats"], "key.formats"),
        layout=_facts(fields["layout"], "key.layout"),
        device=Device(
            kind=_text(device["kind"], "key.device.kind"),
            family=_text(device["family"], "key.device.family"),
            name=_text(device["name"], "key.device.name"),
            details=_facts(device["details"], "key.device.details"),
        ),
        compilers=_facts(fields["compilers"], "key.compilers"),
        policy=_facts(fields["policy"], "key.policy"),
    )


def _object(value: object, where: str, names: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InputError(f"must be an object, not {kind(value)}", where=where)
    missing = [name for name in names if name not in value]
    if missing:
        raise InputError(f"lacks {missing[0]}", where=where)
    for name in value:
        if name not in names:
            raise InputError(f"has an unknown field {str(name)[:80]!r}", where=where)
    return value


def _facts(value: object, where: str) -> Facts:
    if not isinstance(value, dict):
        raise InputError(f"must be an object, not {kind(value)}", where=where)
    checked: dict[str, Fact] = {}
    for name, fact in value.items():
        checked[name] = check_fact(fact, f"{where}.{str(name)[:64]}")
    return facts(checked, where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"must be a text, not {kind(value)}", where=where)
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"must be a number, not {kind(value)}", where=where)
    try:
        return float(value)
    except OverflowError:
        raise InputError("must be a time within a day", where=where) from None


def _samples(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise InputError(f"must be a list, not {kind(value)}", where="ms")
    return tuple(_number(sample, f"ms[{i}]") for i, sample in enumerate(value))


def _refuse_constant(name: str) -> object:
    raise InputError(f"has {name}, which is no number")


def _no_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InputError("has the same name twice in one object")
    return fields
