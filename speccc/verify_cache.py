"""T(m) of steps that were measured on this machine before, kept in the user's tuning cache.

Each width is one record: all its samples, under a key of the step's code, its weights' size, the
device and the number of threads. A cache that cannot be used costs the time of measuring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from statistics import median
from typing import Any

from speccc import user_cache
from speccc.autotune.cache import TuneCache, warn
from speccc.autotune.cache_file import Notice
from speccc.autotune.host import host_device
from speccc.autotune.key import Device, TuneKey, digest, make_key
from speccc.autotune.record import MOST_SAMPLES, Outcome, Record, now
from speccc.errors import SpecccError
from speccc.verify_cost import LEAST_MS, PROMPT, WIDTHS, VerifyTable

KERNEL = "verify"
TRIES = 3
"""Measurements after which a busy machine is not asked again: it may always be busy."""


def known_or_measured(
    keys: Mapping[int, TuneKey], measure: Callable[[], VerifyTable], notice: Notice = warn
) -> VerifyTable:
    """The table kept under the keys, by width; else what `measure` finds, which is then kept.

    A busy machine is measured again at once, up to `TRIES` times in all: what is kept, noisy or
    not, is not measured another time. Of several measurements of a width the lowest median counts:
    other work only adds to a time.
    """
    try:
        cache = TuneCache(user_cache.folder("tune"), notice=notice)
    except SpecccError as error:
        notice(f"T(m) is not kept: {error}")
        return _quietest(_measured(measure))
    with cache:
        tables = _known(cache, keys, notice)
        if not tables:
            tables = _measured(measure)
            records = [_record(keys[w], ms) for t in tables for w, ms in t.samples.items()]
            _keep(cache, records, notice)
    return _quietest(tables)


def _measured(measure: Callable[[], VerifyTable]) -> list[VerifyTable]:
    """As many measurements as it takes until what they show together is not noisy."""
    tables = [measure()]
    while _quietest(tables).noisy and len(tables) < TRIES:
        tables.append(measure())
    return tables


def verify_keys(
    library: bytes, step: dict[str, Any], weight_bytes: int, isa: str, threads: int, room: int
) -> dict[int, TuneKey]:
    """Keys by width of a step: its code, how it is called, and what it runs on."""
    program = digest([hashlib.sha256(library).hexdigest(), step])
    device = host_device(isa)
    return {
        width: _key(program, width, weight_bytes, device, threads)
        for width in WIDTHS
        if min(PROMPT, room // 2) + width <= room
    }


def _key(program: str, m: int, weight_bytes: int, device: Device, threads: int) -> TuneKey:
    return make_key(
        KERNEL,
        program=program,
        numeric_class="the whole step",
        m=m,
        shapes={"weight_bytes": max(weight_bytes, 1)},
        formats={},
        layout={},
        device=device,
        compilers={"speccc": metadata.version("speccc")},
        policy={"threads": threads, "in_step": True, "cold": False, "prompt": PROMPT},
    )


def _known(cache: TuneCache, keys: Mapping[int, TuneKey], notice: Notice) -> list[VerifyTable]:
    """Every measurement that has all widths; what another machine measured does not count."""
    runs: list[dict[int, tuple[float, ...]]] = []
    try:
        for n, (width, key) in enumerate(keys.items()):
            found = [entry.record for entry in cache.lookup(key).exact if entry.verified]
            runs = runs if n else [{} for _ in found]
            runs = [{**run, width: r.ms} for run, r in zip(runs, found, strict=False)]
    except SpecccError as error:
        notice(f"T(m) is measured anew: {error}")
        return []
    return [VerifyTable(run) for run in runs]


def _quietest(tables: Sequence[VerifyTable]) -> VerifyTable:
    """Of each width the samples with the lowest median of at least one table."""
    widths = tables[0].samples
    return VerifyTable({w: min((t.samples[w] for t in tables), key=median) for w in widths})


def _keep(cache: TuneCache, records: Sequence[Record], notice: Notice) -> None:
    try:
        cache.add(records)
    except SpecccError as error:
        notice(f"T(m) is not kept: {error}")


def _record(key: TuneKey, samples: Sequence[float]) -> Record:
    ms = tuple(max(value, LEAST_MS) for value in samples)[:MOST_SAMPLES]
    return Record(key, (), Outcome.OK, ms, median(ms), 0.0, 0.0, now())
