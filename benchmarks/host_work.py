"""What the host does of a step: where a device replays what was recorded, and where it launches.

    python benchmarks/host_work.py MODEL [--target sycl:cpu] [--rounds 40]

Compiles the model and opens it twice on the device here, the second time without its recorder.
Steps of one row alternate; their picks must be the same. The host's work is the time of a step
outside the driver's wait: on a GPU, what the device may have to wait for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import speccc
from speccc.runtime.devices import metal, sycl
from speccc.runtime.devices.gpu_session import GpuSession

CONTEXT = 256
RECORDERS = {"sycl": (sycl.SyclDriver, "wait"), "metal": (metal.MetalDriver, "finish")}
"""A driver whose launches can be made one by one too, and its method that waits."""


class Waited:
    """Seconds in the wait of every driver of a class."""

    def __init__(self) -> None:
        """None yet."""
        self.seconds = 0.0

    @contextmanager
    def watching(self, driver: type, method: str) -> Iterator[None]:
        """While it lasts, waits are counted."""
        wait = getattr(driver, method)

        def timed(*args: object) -> None:
            began = time.perf_counter()
            wait(*args)
            self.seconds += time.perf_counter() - began

        with patch.object(driver, method, timed):
            yield


def sessions(model: speccc.Model, driver: type) -> dict[str, GpuSession]:
    """By how their steps run."""
    recorded = model.session(context=CONTEXT)
    with patch.object(driver, "recorder", None):
        launched = model.session(context=CONTEXT)
    both = [s for s in (recorded, launched) if isinstance(s, GpuSession)]
    return {s.steps: s for s in both}


def measure(
    both: Mapping[str, GpuSession], waited: Waited, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a step and of the host's part in it, round by round; the first two warm up."""
    out: dict[str, list[tuple[float, float]]] = {how: [] for how in both}
    for n in range(rounds + 2):
        picks = {}
        for how, session in both.items():
            waited.seconds, began = 0.0, time.perf_counter()
            picks[how] = session.pick([n + 5]).tolist()
            whole = time.perf_counter() - began
            if n > 1:
                out[how].append((whole, whole - waited.seconds))
        if len({tuple(p) for p in picks.values()}) > 1:
            raise SystemExit(f"step {n}: they differ: {picks}")
    return out


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--target", default="sycl:cpu")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    driver, method = RECORDERS[given.target.partition(":")[0]]
    both = sessions(speccc.compile(given.model, target=given.target), driver)
    waited = Waited()
    with waited.watching(driver, method):
        found = measure(both, waited, given.rounds)
    for how, times in found.items():
        steps, host = zip(*times, strict=True)
        print(
            f"{how}: host {1e3 * min(host):.2f} ms at best, {1e3 * statistics.median(host):.2f} "
            f"in the median; step {1e3 * min(steps):.1f} and {1e3 * statistics.median(steps):.1f}"
        )


if __name__ == "__main__":
    main()
