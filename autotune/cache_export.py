"""Writing records for others: JSON lines, which we read back, and T4, which the field's tools read.

T4 is the result format of the autotuning community (AutoTuningAssociation, schema 1.1.0): one
document holds the results of one kernel on one device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from speccc.autotune.key import canonical
from speccc.autotune.record import SCHEMA, Outcome, Record
from speccc.autotune.record_json import dump_record
from speccc.errors import InputError

FORMAT = "speccc-tune"
T4_VERSION = "1.1.0"
T4_INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.INVALID: "constraints",
    Outcome.COMPILE_FAILED: "compile",
    Outcome.RUN_FAILED: "runtime",
    Outcome.TIMEOUT: "timeout",
    Outcome.WRONG: "correctness",
}
# T4 knows these interfaces only; for the others it has no word and the field is left out.
T4_COMPUTE_API = {"cuda": "CUDA", "vulkan": "Vulkan"}


def json_lines(records: Sequence[Record]) -> Iterator[str]:
    """The lines of an export: a header, then a record a line."""
    yield canonical({"format": FORMAT, "schema": SCHEMA, "records": len(records)})
    for record in records:
        yield dump_record(record)


def t4_groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each T4 document by a name fit for a file: kernel, m and the key's hash."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = record.key
        groups.setdefault(f"{key.kernel}-m{key.m}-{key.digest()[:12]}", []).append(record)
    return groups


def t4_document(records: Sequence[Record]) -> dict[str, object]:
    """One T4 document. All times are in milliseconds. InputError for records of several keys."""
    keys = {record.key for record in records}
    if len(keys) != 1:
        raise InputError(f"T4 holds one kernel on one device; these are of {len(keys)} keys")
    (key,) = keys
    metadata: dict[str, object] = {
        "platform": key.device.kind,
        "device": key.device.name,
        "autotuner": "speccc",
        "autotuner_version": str(dict(key.compilers).get("speccc", "unknown")),
        "timestamp": min(record.at for record in records),
        "timeunit": "milliseconds",
        "speccc_key": key.to_json(),
    }
    if key.device.kind in T4_COMPUTE_API:
        metadata["compute_api"] = T4_COMPUTE_API[key.device.kind]
    return {
        "schema_version": T4_VERSION,
        "metadata": metadata,
        "results": [_t4_result(record) for record in records],
    }


def t4_text(records: Sequence[Record]) -> str:
    """The document as JSON."""
    return json.dumps(t4_document(records), indent=1, allow_nan=False)


def _t4_result(record: Record) -> dict[str, object]:
    time = record.median_ms()
    return {
        "timestamp": record.at,
        "configuration": dict(record.config),
        "objectives": ["time"],
        "times": {
            "compilation_time": record.compile_s * 1e3,
            "runtimes": list(record.ms),
            "validation": record.verify_s * 1e3,
        },
        "invalidity": T4_INVALIDITY[record.outcome],
        "correctness": int(record.outcome is Outcome.OK),
        "measurements": []
        if time is None
        else [{"name": "time", "value": time, "unit": "milliseconds"}],
    }
