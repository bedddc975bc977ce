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


def known_or_measured(
    keys: Mapping[int, TuneKey], measure: Callable[[], VerifyTable], notice: Notice = warn
) -> VerifyTable:
    """The table kept under the keys, by width; else what `measure` finds, which is then kept."""
    try:
        cache = TuneCache(user_cache.folder("tune"), notice=notice)
    except SpecccError as error:
        notice(f"T(m) is not kept: {error}")
        return measure()
    with cache:
        table = _known(cache, keys, notice)
        if table is None:
            table = measure()
            _keep(cache, [_record(keys[w], ms) for w, ms in table.samples.items()], notice)
    return table


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


def _known(cache: TuneCache, keys: Mapping[int, TuneKey], notice: Notice) -> VerifyTable | None:
    """The samples of every width, or None; what another machine measured does not count."""
    samples: dict[int, list[float]] = {}
    try:
        for width, key in keys.items():
            found = [entry.record for entry in cache.lookup(key).exact if entry.verified]
            samples[width] = [ms for record in found for ms in record.ms]
            if not samples[width]:
                return None
    except SpecccError as error:
        notice(f"T(m) is measured anew: {error}")
        return None
    return VerifyTable(samples)


def _keep(cache: TuneCache, records: Sequence[Record], notice: Notice) -> None:
    try:
        cache.add(records)
    except SpecccError as error:
        notice(f"T(m) is not kept: {error}")


def _record(key: TuneKey, samples: Sequence[float]) -> Record:
    ms = tuple(max(value, LEAST_MS) for value in samples)[:MOST_SAMPLES]
    return Record(key, (), Outcome.OK, ms, median(ms), 0.0, 0.0, now())
