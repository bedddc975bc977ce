"""Records for the cache's tests, and a process that writes them until it ends or is killed."""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path

from speccc.autotune.cache import TuneCache, _row
from speccc.autotune.facts import Fact, facts
from speccc.autotune.key import Device, TuneKey, make_key
from speccc.autotune.record import Outcome, Record

HERE = Device("cpu", "x86_64 avx512vnni", "Xeon A", facts({"cpus": 2}))
SIBLING = Device("cpu", "x86_64 avx512vnni", "Xeon B", facts({"cpus": 64}))
STRANGER = Device("cpu", "x86_64 avx2", "Ryzen C", facts({"cpus": 8}))
DEFAULT = facts({"unroll": 1, "prefetch": 0})


def key(device: Device = HERE, **changes: object) -> TuneKey:
    parts: dict[str, object] = {
        "kernel": "step",
        "program": "ab" * 32,
        "numeric_class": "k-blocks in order, f32, kv 64",
        "m": 8,
        "shapes": {"n": 576, "k": 1536},
        "formats": {"w": "q4_1", "kv": "f16"},
        "layout": {"panel": 16, "planes": False},
        "device": device,
        "compilers": {"speccc": "0.1.0", "tvm": "0.27.0"},
        "policy": {"threads": 2, "in_step": True, "cold": False},
    }
    kernel = parts.pop("kernel")
    return make_key(str(changes.pop("kernel", kernel)), **{**parts, **changes})  # type: ignore[arg-type]


def record(
    config: dict[str, Fact] | None = None,
    ms: tuple[float, ...] = (1.0, 1.25),
    *,
    of: TuneKey | None = None,
    outcome: Outcome = Outcome.OK,
    default_ms: float = 2.0,
    at: str = "2026-11-29T12:00:00Z",
) -> Record:
    ok = outcome is Outcome.OK
    return Record(
        key=of or key(),
        config=facts(config or {"unroll": 2, "prefetch": 512}),
        outcome=outcome,
        ms=ms if ok else (),
        default_ms=default_ms if ok else None,
        compile_s=0.25,
        verify_s=0.5,
        at=at,
        provenance=facts({"session": "s1", "speccc": "0.1.0"}),
        message="" if ok else "why",
    )


def numbered(writer: int, i: int) -> Record:
    """A record no other writer makes."""
    return record({"unroll": i, "prefetch": writer})


def write(folder: Path, writer: int, count: int) -> None:
    """Adds records one by one; says so after each is promised to be kept."""
    with TuneCache(folder) as cache:
        for i in range(count):
            cache.add([numbered(writer, i)])
            print(numbered(writer, i).identity(), flush=True)


def hang_while_writing(folder: Path, writer: int) -> None:
    """Adds a record, then stops in the middle of a transaction that adds more."""
    cache = TuneCache(folder)
    cache.add([numbered(writer, 0)])
    print(numbered(writer, 0).identity(), flush=True)

    def work(db: sqlite3.Connection) -> None:
        # Enough rows that pages reach the log before the commit that never comes.
        db.execute("PRAGMA cache_size = 1")
        rows = [_row(numbered(writer, i), True, "local") for i in range(1, 200)]
        db.executemany(f"INSERT INTO record VALUES ({', '.join('?' * 12)})", rows)
        print("inside", flush=True)
        time.sleep(600)

    cache._write(work)


if __name__ == "__main__":
    place, me, records = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if records:
        write(place, me, records)
    else:
        hang_while_writing(place, me)
