"""Measuring in a worker process: whatever a candidate does costs its time limit and no more."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import IO, Any

from speccc.autotune.facts import Fact, Facts, plain_text
from speccc.autotune.record import Outcome
from speccc.errors import SpecccError
from speccc.scratch import Scratch

WORKER = "speccc.autotune.worker"
DIED_IN = {
    "build": Outcome.COMPILE_FAILED,
    "check": Outcome.RUN_FAILED,
    "time": Outcome.RUN_FAILED,
}
LONGEST_TAIL = 4096


class OutOfTime(Exception):
    """The budget ended before the candidate did: nothing is known about it."""


class DefaultFails(SpecccError):
    """The untuned default is wrong or does not run: there is nothing to tune, nor to use."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds a phase may take. `start` is the default: loading, building, the golden model."""

    start: float = 300.0
    build: float = 60.0
    check: float = 20.0
    time: float = 20.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one configuration: samples and the default's median in ms by width."""

    outcome: Outcome
    ms: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    default_ms: Mapping[int, float] = field(default_factory=dict)
    compile_s: float = 0.0
    verify_s: float = 0.0
    message: str = ""


class Worker:
    """Measures configurations of a suite; its process is started when needed and after a crash."""

    def __init__(
        self,
        suite: str,
        payload: object,
        *,
        limits: Limits | None = None,
        golden: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`golden`: compare the default with the golden model when the worker starts."""
        self._suite, self._payload = suite, pickle.dumps(payload)
        self._limits, self._golden, self._clock = limits or Limits(), golden, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._scratch: Scratch | None = None
        self._buffer = b""
        self._started = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def prepare(self) -> None:
        """Starts the process and builds the default, before any budget begins.

        DefaultFails when it cannot be built.
        """
        self._ask(None, 0.0, math.inf)

    def measure(self, config: Facts, *, seconds: float, deadline: float) -> Measured:
        """Builds, checks and races one configuration for about `seconds`.

        OutOfTime at `deadline` (of the clock). DefaultFails when not even the default works.
        """
        return self._ask(dict(config), seconds, deadline)

    def _ask(self, config: dict[str, Fact] | None, seconds: float, deadline: float) -> Measured:
        process = self._running()
        request = {
            "config": config,
            "seconds": seconds,
            "limits": asdict(self._limits),
            "golden": self._golden,
        }
        try:
            self._send(process, json.dumps(request).encode() + b"\n")
            return self._answer(process, deadline)
        except BaseException:
            # Also for Ctrl-C: no answer of this request may be taken for the next one's.
            self.close()
            raise

    def close(self) -> None:
        """Ends the worker and everything it started, and removes its temporary files."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                # What could not be sent to it any more is no concern.
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        self._buffer, self._started = b"", False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
            # The worker is killed and cannot clean up.
            self._scratch = Scratch()
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER, self._suite],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "TMPDIR": str(self._scratch.path)},
                start_new_session=True,
            )
            self._send(self._process, self._payload)
        return self._process

    def _send(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        if process.stdin is None:
            raise SpecccError("the tuning worker cannot be written to")
        with suppress(BrokenPipeError):  # it died: reading will tell how
            process.stdin.write(data)
            process.stdin.flush()

    def _answer(self, process: subprocess.Popen[bytes], deadline: float) -> Measured:
        """Follows the worker from phase to phase until there is an outcome."""
        phase, begun = "build" if self._started else "start", self._clock()
        while True:
            limit = begun + getattr(self._limits, phase)
            line = self._line(process, min(limit, deadline))
            if line is None and self._clock() >= limit and limit <= deadline:
                return self._timed_out(phase, self._clock() - begun)
            if line is None:
                raise OutOfTime
            if not line:
                return self._died(process, phase, self._clock() - begun)
            message = json.loads(line)
            if "at" not in message:
                self._started = True
                return _measured(message, phase)
            phase, begun = message["at"], self._clock()

    def _line(self, process: subprocess.Popen[bytes], until: float) -> bytes | None:
        """The next line; None when `until` passes first, nothing when the worker is gone."""
        if process.stdout is None:
            raise SpecccError("the tuning worker cannot be read from")
        handle = process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = until - self._clock()
            # An answer that is there already counts, however late it is read.
            ready, _, _ = select.select([handle], [], [], max(0.0, left))
            if not ready:
                if left <= 0:
                    return None
                continue
            data = os.read(handle, 1 << 16)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _timed_out(self, phase: str, spent: float) -> Measured:
        self.close()
        message = f"{phase} took longer than {getattr(self._limits, phase):g} s"
        if phase == "start":
            raise DefaultFails(f"tuning: the untuned default does not work: {message}")
        return Measured(Outcome.TIMEOUT, compile_s=spent, message=message)

    def _died(self, process: subprocess.Popen[bytes], phase: str, spent: float) -> Measured:
        """A worker that is gone: killed by a signal, or by an error of its own."""
        code = process.wait()
        tail = self._last_words()
        self.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        message = f"the worker ended in {phase} by {how}"
        if phase == "start":
            raise DefaultFails(f"tuning: the untuned default does not work: {message} {tail}")
        return Measured(DIED_IN[phase], compile_s=spent, message=_short(f"{message} {tail}"))

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - LONGEST_TAIL))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"({lines[-1].strip()})" if lines else ""


def _measured(message: Mapping[str, Any], phase: str) -> Measured:
    outcome = Outcome(message["outcome"])
    if outcome is not Outcome.OK and phase == "start":
        raise DefaultFails(f"tuning: {message['message']}")
    return Measured(
        outcome,
        {int(m): tuple(samples) for m, samples in message.get("ms", {}).items()},
        {int(m): time_ms for m, time_ms in message.get("default_ms", {}).items()},
        message["compile_s"],
        message.get("verify_s", 0.0),
        _short(message["message"]) if message.get("message") else "",
    )


def _short(message: str) -> str:
    """A message fit for a record, which says nothing of this machine's folders."""
    return plain_text(re.sub(r"\S*/\S*", "<path>", message))
