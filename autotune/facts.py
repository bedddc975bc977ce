"""Named plain values, sorted by name: what keys and configurations are made of.

Everything here can come from a stranger's file, so names and texts are limited to what can never
be a path, a control sequence or a surprise: see `NAME` and `TEXT`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeAlias

from speccc.errors import InputError

Fact: TypeAlias = str | int | float | bool
Facts: TypeAlias = tuple[tuple[str, Fact], ...]

NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}\Z")
TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._,:;+*=@()\[\]<>#%-]{0,159}\Z")
MOST_FACTS = 64
# Integers a JSON reader in any language keeps exact.
LARGEST_INT = 2**53 - 1


def facts(values: Mapping[str, Fact], where: str = "facts") -> Facts:
    """The values sorted by name; InputError names the first that is not a plain value."""
    if len(values) > MOST_FACTS:
        raise InputError(f"has {len(values)} values; {MOST_FACTS} are allowed", where=where)
    for name, value in values.items():
        check_name(name, where)
        check_fact(value, f"{where}.{name}")
    return tuple(sorted(values.items()))


def check_name(name: str, where: str) -> str:
    """A name of small letters, digits, dots and underscores; InputError otherwise."""
    if not NAME.match(name) or ".." in name:
        raise InputError(f"{name[:80]!r} is no name (a-z, 0-9, _ and single dots)", where=where)
    return name


def check_text(text: str, where: str) -> str:
    """Printable ASCII without slashes, quotes or `..`, 160 at most; InputError otherwise."""
    if not TEXT.match(text) or ".." in text:
        raise InputError(f"{text[:80]!r} is no plain text (no slashes, no quotes)", where=where)
    return text


def check_fact(value: object, where: str) -> Fact:
    """A bool, a text, an exact integer or a finite float; InputError otherwise."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(value, where)
    if isinstance(value, int) and abs(value) <= LARGEST_INT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InputError(
        f"must be a text, a finite number or true/false, not {kind(value)}", where=where
    )


def kind(value: object) -> str:
    """What a JSON value is, for messages that must not repeat the value."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return "a number out of range"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true/false"}
    return names.get(type(value), "null")


def plain_text(text: str) -> str:
    """A text of the machine (a device's name, a compiler's version) made fit for `TEXT`."""
    kept = re.sub(r"[^A-Za-z0-9 ._,:;+*=@()\[\]<>#%-]+", " ", text)
    kept = re.sub(r"\.\.+", ".", " ".join(kept.split()))[:160].lstrip(" ._,:;+*=@()[]<>#%-")
    return kept.rstrip() or "unknown"
