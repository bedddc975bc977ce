"""What a measurement is a measurement of: a record is used again only where its key is equal.

Every part is there because some cache gave a wrong hit without it: the draft length, the layout,
the target, the compiler, the thread count.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from speccc.autotune.facts import Fact, Facts, check_name, check_text, facts
from speccc.errors import InputError

HASH = re.compile(r"[0-9a-f]{16,64}\Z")
MOST_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Device:
    """One device: `family` runs the same code, `name` and `details` tell members apart.

    `details` are what changes times: cores, cache sizes, memory, driver.
    """

    kind: str
    family: str
    name: str
    details: Facts = ()

    def __post_init__(self) -> None:
        check_name(self.kind, "device.kind")
        check_text(self.family, "device.family")
        check_text(self.name, "device.name")
        _check_facts(self.details, "device.details")

    def digest(self) -> str:
        """SHA-256 in hex over every field: the exact device."""
        return digest([self.kind, self.family, self.name, dict(self.details)])


@dataclass(frozen=True, slots=True)
class TuneKey:
    """A kernel of one program at one shape on one device, compiled and measured in one way.

    program        SHA-256 in hex of the program the schedule is applied to
    numeric_class  what schedules must not change: K order, splits, accumulate type, KV tile
    shapes         exact sizes by name, `m` apart: the rows of one pass
    formats        number format by operand
    layout         packing flags
    compilers      versions by compiler, ours included
    policy         how it was measured: threads, cold or warm, alone or in the step, samples
    """

    kernel: str
    program: str
    numeric_class: str
    m: int
    shapes: Facts
    formats: Facts
    layout: Facts
    device: Device
    compilers: Facts
    policy: Facts

    def __post_init__(self) -> None:
        check_name(self.kernel, "key.kernel")
        check_text(self.numeric_class, "key.numeric_class")
        if not HASH.match(self.program):
            raise InputError("must be a hash of 16 to 64 hex digits", where="key.program")
        if isinstance(self.m, bool) or not 1 <= self.m <= MOST_ROWS:
            raise InputError(f"must be 1 to {MOST_ROWS}", where="key.m")
        for name in ("shapes", "formats", "layout", "compilers", "policy"):
            _check_facts(getattr(self, name), f"key.{name}")
        for name, size in self.shapes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError("must be a size of 1 or more", where=f"key.shapes.{name}")

    def problem(self) -> str:
        """SHA-256 in hex over everything but the device."""
        return digest({k: v for k, v in self.to_json().items() if k != "device"})

    def digest(self) -> str:
        """SHA-256 in hex over everything."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The key as plain values, ready for `json.dumps`."""
        return {
            "kernel": self.kernel,
            "program": self.program,
            "numeric_class": self.numeric_class,
            "m": self.m,
            "shapes": dict(self.shapes),
            "formats": dict(self.formats),
            "layout": dict(self.layout),
            "device": {
                "kind": self.device.kind,
                "family": self.device.family,
                "name": self.device.name,
                "details": dict(self.device.details),
            },
            "compilers": dict(self.compilers),
            "policy": dict(self.policy),
        }


def make_key(
    kernel: str,
    *,
    program: str,
    numeric_class: str,
    m: int,
    shapes: Mapping[str, int],
    formats: Mapping[str, str],
    layout: Mapping[str, Fact],
    device: Device,
    compilers: Mapping[str, str],
    policy: Mapping[str, Fact],
) -> TuneKey:
    """A key from plain mappings in any order. InputError names the field that does not fit."""
    return TuneKey(
        kernel, program, numeric_class, m,
        facts(shapes, "key.shapes"), facts(formats, "key.formats"), facts(layout, "key.layout"),
        device, facts(compilers, "key.compilers"), facts(policy, "key.policy"),
    )  # fmt: skip


def canonical(value: object) -> str:
    """One text for one value: sorted names, no spaces, ASCII, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: object) -> str:
    """SHA-256 in hex of the canonical text."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def _check_facts(values: Facts, where: str) -> None:
    if facts(dict(values), where) != values:
        raise InputError("must be sorted by name, each name once", where=where)
