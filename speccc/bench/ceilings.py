"""The machine's ceilings: read bandwidth and int8 multiply-adds a second, measured.

Two loops of our own CPU target do it, on the pool of threads that runs steps: one call into NumPy
reads at full speed only where its BLAS has threads, and has no int8 product at all.

`python -m speccc.bench.ceilings THREADS` prints one JSON object: the compiler stays out of the
processes that are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from speccc.errors import SpecccError
from speccc.quick_import import without_torch

LEAST_BYTES = 256 << 20
CACHES = 8
"""The buffer is at least this many times the largest cache."""
ROUNDS = 30
"""Short runs, so that some fall into moments when nobody else wants the machine."""
DOT_TRIPS = 1_000_000
CACHE_FILES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Best of several runs with `threads` threads: bytes a second, int8 multiply-adds a second.

    Of several moments `read_bytes_s` is the median and `most_read_bytes_s` the best: what other
    machines of the host leave of its memory's bandwidth changes from minute to minute.
    """

    read_bytes_s: float
    int8_dots_s: float
    threads: int
    buffer_bytes: int
    most_read_bytes_s: float


def last_cache(root: Path = CACHE_FILES) -> int:
    """Bytes of the largest cache the system reports; 32 MiB where it reports none."""
    sizes = []
    for file in root.glob("index*/size"):
        text = file.read_text().strip()
        if text[:-1].isdigit() and text[-1:] in "KM":
            sizes.append(int(text[:-1]) << (10 if text.endswith("K") else 20))
    return max(sizes, default=32 << 20)


def measure_ceilings(threads: int, buffer_bytes: int | None = None) -> Ceilings:
    """Builds both loops for this machine and times them; this loads the compiler."""
    from speccc.runtime.aligned import aligned
    from speccc.runtime.devices.cpu import CpuStep
    from speccc.targets.cpu.ceilings import READ_VECTORS, TRIP_DOTS, ceilings_library
    from speccc.targets.cpu.isa import detect

    libraries = ceilings_library(detect())
    trip_bytes = READ_VECTORS * 64
    wanted = max(LEAST_BYTES, CACHES * last_cache()) if buffer_bytes is None else buffer_bytes
    trips = max(1, wanted // (trip_bytes * threads))
    data = aligned((trips * threads * trip_bytes // 4,), np.int32)
    data[:] = 0x01020304  # codes below 16; writing touches every page
    sums = aligned((threads * READ_VECTORS * 16,), np.int32)

    def least(name: str, trips: int) -> float:
        step = CpuStep(np.frombuffer(libraries[name], np.uint8), name, [data, sums])
        seconds = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            step([trips], threads)
            seconds.append(time.perf_counter() - begun)
        return min(seconds)

    read = data.nbytes / least("read", trips)
    dots = DOT_TRIPS * threads * TRIP_DOTS / least("dots", DOT_TRIPS)
    return Ceilings(read, dots, threads, data.nbytes, read)


def ceilings(threads: int) -> Ceilings:
    """The same in a process of its own. SpecccError when it fails."""
    command = [sys.executable, "-m", "speccc.bench.ceilings", str(threads)]
    env = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise SpecccError(last, where="ceilings")
    return Ceilings(**json.loads(done.stdout.splitlines()[-1]))


def beside(moments: Sequence[Ceilings]) -> Ceilings:
    """What held while something else was timed, of one measurement beside each of its rounds.

    Multiply-adds a second are the machine's own, and only ever measured too low.
    """
    return replace(
        moments[0],
        read_bytes_s=median(m.read_bytes_s for m in moments),
        int8_dots_s=max(m.int8_dots_s for m in moments),
        most_read_bytes_s=max(m.most_read_bytes_s for m in moments),
    )


if __name__ == "__main__":
    with without_torch():
        found = measure_ceilings(int(sys.argv[1]))
    print(json.dumps(asdict(found)))
