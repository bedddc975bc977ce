"""One measurement of one configuration: what was tried, what came of it, every sample.

A record never changes; its identity is the hash of its content, so that the union of two caches
is the union of two sets.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from statistics import median

from speccc.autotune.facts import Facts, check_text, facts
from speccc.autotune.key import TuneKey, digest
from speccc.errors import InputError

SCHEMA = 1
MOST_SAMPLES = 4096
# No kernel, build or check takes a day; a longer one is a broken clock or a forged file.
MOST_SECONDS = 86400.0
STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z\Z")


class Outcome(Enum):
    """What came of a candidate; all but OK are failures that are remembered."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_FAILED = "compile_failed"
    RUN_FAILED = "run_failed"
    TIMEOUT = "timeout"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Record:
    """A configuration's outcome in one tuning session.

    config      choice by name
    ms          every sample, milliseconds; empty unless OK
    default_ms  median of the untuned default in the same session; there whenever ms is
    compile_s, verify_s  seconds spent building and checking
    at          UTC time, `2026-11-29T17:30:00Z`
    provenance  which version and session measured it; never a person or a host
    message     for a failure, why, in a few words
    """

    key: TuneKey
    config: Facts
    outcome: Outcome
    ms: tuple[float, ...]
    default_ms: float | None
    compile_s: float
    verify_s: float
    at: str
    provenance: Facts = ()
    message: str = ""

    def __post_init__(self) -> None:
        for name in ("config", "provenance"):
            if facts(dict(getattr(self, name)), name) != getattr(self, name):
                raise InputError("must be sorted by name, each name once", where=name)
        _check_times(self)
        check_stamp(self.at)
        if self.message:
            check_text(self.message, "message")

    def median_ms(self) -> float | None:
        """The median sample in milliseconds; None for a failure."""
        return median(self.ms) if self.ms else None

    def ratio(self) -> float | None:
        """Median over the default's median of the same session: below 1 is faster than it."""
        return median(self.ms) / self.default_ms if self.ms and self.default_ms else None

    def identity(self) -> str:
        """SHA-256 in hex over every field."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The record as plain values, ready for `json.dumps`."""
        return {
            "key": self.key.to_json(),
            "config": dict(self.config),
            "outcome": self.outcome.value,
            "ms": list(self.ms),
            "default_ms": self.default_ms,
            "compile_s": self.compile_s,
            "verify_s": self.verify_s,
            "at": self.at,
            "provenance": dict(self.provenance),
            "message": self.message,
        }


def now() -> str:
    """The time of a record made now."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_stamp(text: str) -> datetime:
    """The time a stamp says; InputError when it says none."""
    try:
        if STAMP.match(text):
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        pass
    raise InputError("must be a UTC time such as 2026-11-29T17:30:00Z", where="at")


def _check_times(record: Record) -> None:
    ok = record.outcome is Outcome.OK
    if ok != bool(record.ms) or len(record.ms) > MOST_SAMPLES:
        need = f"1 to {MOST_SAMPLES} samples" if ok else "no samples"
        raise InputError(f"outcome {record.outcome.value} has {need}", where="ms")
    if ok and record.default_ms is None:
        raise InputError("the default's time of the same session is missing", where="default_ms")
    for i, sample in enumerate(record.ms):
        _check_duration(sample, 1e3, f"ms[{i}]", zero=False)
    if record.default_ms is not None:
        _check_duration(record.default_ms, 1e3, "default_ms", zero=False)
    _check_duration(record.compile_s, 1.0, "compile_s", zero=True)
    _check_duration(record.verify_s, 1.0, "verify_s", zero=True)


def _check_duration(value: float, per_second: float, where: str, *, zero: bool) -> None:
    # Integers are refused too: 1 and 1.0 would be two identities of one record.
    fits = isinstance(value, float) and math.isfinite(value)
    if not fits or value < 0 or (value == 0 and not zero) or value > MOST_SECONDS * per_second:
        least = "0 or more" if zero else "above 0"
        raise InputError(f"must be a time {least} and within a day", where=where)
