"""The worker process: builds, checks and times one configuration after another.

    python -m speccc.autotune.worker MODULE:FUNCTION

It reads the payload (pickled, from the parent alone), then a JSON line a request, and writes JSON
lines: `{"at": phase}` when a phase begins, an outcome at the end. It is alone in its process group.
The parent kills it at a phase's limit; should the parent be gone, an alarm does.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, BinaryIO

from speccc.autotune.facts import Facts, facts
from speccc.autotune.record import Outcome
from speccc.autotune.suite import Candidate, Suite
from speccc.errors import InputError, SpecccError, UnsupportedError, VerifyError

ILLEGAL = (InputError, UnsupportedError, VerifyError)
KEPT = 8
"""Built candidates kept for another race."""
ROUNDS = (5, 200)
"""Least and most times each width is timed in a race."""
HOPELESS = 1.15
"""A candidate this much slower after the least rounds is not timed further."""
GRACE = 5.0
"""Seconds an orphan may live past its limit."""


class Refused(Exception):
    """A candidate's outcome other than a time."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass
class Work:
    """The suite, its default with the bits all others must have, and what was built."""

    suite: Suite
    out: BinaryIO
    default: Candidate | None = None
    golden: bytes = b""
    built: dict[Facts, Candidate] = field(default_factory=dict)
    checked: set[Facts] = field(default_factory=set)

    def say(self, message: Mapping[str, object]) -> None:
        """One line to the parent."""
        self.out.write(json.dumps(message).encode() + b"\n")
        self.out.flush()

    def phase(self, name: str, limits: Mapping[str, float]) -> None:
        """Tells the parent what is next, and asks the system to end this process if it hangs."""
        self.say({"at": name})
        signal.setitimer(signal.ITIMER_REAL, limits[name] + GRACE)


def main(argv: list[str]) -> int:
    """Serves requests until standard input ends."""
    # What kernels and tools print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # TVM imports PyTorch where it is installed: seconds for nothing that is used here.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    module, _, function = argv[0].partition(":")
    payload = pickle.load(sys.stdin.buffer)
    work = Work(getattr(importlib.import_module(module), function)(payload), answers)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        begun = time.perf_counter()
        try:
            work.say(serve(work, request))
        except Refused as refused:
            spent = time.perf_counter() - begun
            work.say(
                {"outcome": refused.outcome.value, "message": str(refused), "compile_s": spent}
            )
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def serve(work: Work, request: Mapping[str, Any]) -> Mapping[str, object]:
    """One request: build, check twice, race against the default. Refused for a failure.

    One without a configuration only builds the default.
    """
    limits = request["limits"]
    if request["config"] is None:
        begun = time.perf_counter()
        _default(work, limits)
        return {"outcome": Outcome.OK.value, "compile_s": time.perf_counter() - begun}
    config = facts(request["config"])
    if work.default is None:
        _start(work, limits, check_golden=request["golden"])
    begun = time.perf_counter()
    candidate = _built(work, config, limits)
    compiled = time.perf_counter()
    if config not in work.checked:
        work.phase("check", limits)
        _check(work, candidate)
        work.checked.add(config)
    verified = time.perf_counter()
    work.phase("time", limits)
    ms, default_ms = _race(work, candidate, request["seconds"])
    return {
        "outcome": Outcome.OK.value,
        "ms": ms,
        "default_ms": default_ms,
        "compile_s": compiled - begun,
        "verify_s": verified - compiled,
    }


def _start(work: Work, limits: Mapping[str, float], *, check_golden: bool) -> None:
    """The default: built, compared with the golden model, run twice."""
    default = _default(work, limits)
    bits = default.bits()
    wrong = work.suite.golden(default, bits) if check_golden else ""
    if wrong:
        raise Refused(Outcome.WRONG, f"the untuned default is wrong: {wrong}")
    if default.bits() != bits:
        raise Refused(Outcome.WRONG, "the untuned default differs from run to run")
    work.default, work.golden = default, bits
    work.checked.add(())


def _default(work: Work, limits: Mapping[str, float]) -> Candidate:
    """The default, built by now."""
    work.phase("start", limits)
    if () not in work.built:
        work.built[()] = work.suite.build(())
    return work.built[()]


def _built(work: Work, config: Facts, limits: Mapping[str, float]) -> Candidate:
    if config in work.built:
        return work.built[config]
    work.phase("build", limits)
    try:
        candidate = work.suite.build(config)
    except ILLEGAL as error:
        raise Refused(Outcome.INVALID, str(error)) from None
    except SpecccError as error:
        raise Refused(Outcome.COMPILE_FAILED, str(error)) from None
    except Exception as error:
        raise Refused(Outcome.COMPILE_FAILED, f"{type(error).__name__}: {error}") from None
    for old in [c for c in work.built if c != ()][: max(0, len(work.built) - KEPT)]:
        del work.built[old]
        work.checked.discard(old)
    work.built[config] = candidate
    return candidate


def _check(work: Work, candidate: Candidate) -> None:
    try:
        runs = [candidate.bits() for _ in range(2)]
    except SpecccError as error:
        raise Refused(Outcome.RUN_FAILED, str(error)) from None
    # A candidate that is right only now and then is wrong.
    wrong = [n for n, bits in enumerate(runs, 1) if bits != work.golden]
    if wrong:
        which = "bits differ from the default's" if len(wrong) == 2 else f"run {wrong[0]} of 2 did"
        raise Refused(Outcome.WRONG, f"results are not the golden ones: {which}")


def _race(
    work: Work, candidate: Candidate, seconds: float
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Samples of the candidate and medians of the default, in ms by width, measured in turns.

    A sample is the candidate's time over that of the default's run beside it, times the default's
    median: a machine that slows down for a while slows both. Who goes first alternates, so that
    neither always finds the caches the other left.
    """
    if work.default is None:
        raise SpecccError("nothing to race against")
    sides = (work.default, candidate)
    pairs: dict[int, list[tuple[float, float]]] = {m: [] for m in work.suite.widths}
    for m in pairs:
        for side in sides:
            side.run(m)
    begun = time.perf_counter()
    for n in range(ROUNDS[1]):
        if n >= ROUNDS[0] and (time.perf_counter() - begun > seconds or _hopeless(pairs)):
            break
        for m, taken in pairs.items():
            times = [0.0, 0.0]
            for which in (0, 1) if n % 2 else (1, 0):
                times[which] = _above_0(sides[which].run(m))
            taken.append((times[0], times[1]))
    default_ms = {str(m): 1e3 * median(d for d, _ in taken) for m, taken in pairs.items()}
    ms = {str(m): [default_ms[str(m)] * c / d for d, c in taken] for m, taken in pairs.items()}
    return ms, default_ms


def _hopeless(pairs: dict[int, list[tuple[float, float]]]) -> bool:
    return mean(median(c / d for d, c in taken) for taken in pairs.values()) > HOPELESS


def _above_0(seconds: float) -> float:
    # A clock too coarse to see a step still gives a time.
    return max(seconds, 1e-9)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
