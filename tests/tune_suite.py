"""A suite whose candidates are small C libraries, some of them bad in every way there is.

The worker loads it by name, as it does the real one. `Job.kinds` says what is wrong with which
configuration; times are given, so that no test depends on a clock.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from speccc.autotune.facts import Facts
from speccc.errors import InputError, SpecccError

SUITE = "tune_suite:suite"
WIDTHS = (1, 8)

STEP = """
static int calls;
int step(int m) {{ calls++; {bad} return 1000 + 7 * m; }}
"""

BAD = {
    "ok": "",
    "wrong": "return 1001 + 7 * m;",
    "flaky": "if (calls % 7 == 0) return 1;",
    "segv": "*(volatile int *)8 = m;",
    "hang": "extern int pause(void); for (;;) pause();",
    "hang_in_race": "extern int pause(void); while (calls > 9) pause();",
    "no_c": "this is not C",
}


@dataclass(frozen=True)
class Job:
    """What is planted: a kind and the factor of a step's time, by choices. A configuration has
    what is planted in any part of it, the default only what is planted in itself."""

    folder: Path
    kinds: Mapping[Facts, str] = field(default_factory=dict)
    seconds: Mapping[Facts, float] = field(default_factory=dict)
    golden: str = ""
    pause: float = 0.0

    def kind(self, config: Facts) -> str:
        return next((k for part, k in self.kinds.items() if _inside(part, config)), "ok")

    def time(self, config: Facts) -> float:
        return math.prod(s for part, s in self.seconds.items() if _inside(part, config))


def _inside(part: Facts, config: Facts) -> bool:
    return set(part) <= set(config) if part else not config


class Library:
    """A candidate: a function of a loaded C library."""

    def __init__(self, path: Path, seconds: float, pause: float) -> None:
        self.step = ctypes.CDLL(str(path)).step
        self.seconds, self.pause = seconds, pause

    def bits(self) -> bytes:
        return b"".join(int(self.step(m)).to_bytes(4, "little") for m in (1, 2, 4, 8))

    def run(self, m: int) -> float:
        self.step(m)
        time.sleep(self.pause)
        return self.seconds * m


class Suite:
    """Builds the job's candidates with the C compiler; notes each build in a file."""

    widths = WIDTHS

    def __init__(self, job: Job) -> None:
        self.job = job

    def build(self, config: Facts) -> Library:
        kind = self.job.kind(config)
        with (self.job.folder / "built.txt").open("a") as log:
            log.write(f"{dict(config)}\n")
        if kind == "invalid":
            raise InputError("more rows than registers")
        if kind == "fails":
            raise SpecccError("LLVM ERROR: cannot select")
        if kind == "crash_in_build":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang_in_build":
            while True:
                pass
        if kind == "looks_for_torch":
            raise SpecccError(f"torch is {sys.modules.get('torch', 'not looked for')}")
        if kind == "prints":
            print("{}", flush=True)
            os.write(1, b'{"outcome": "ok"}\n')
            kind = "ok"
        if kind == "leaves_children":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (self.job.folder / "child.txt").write_text(str(child.pid))
            kind = "hang"
        if kind == "leaves_folder":
            tempfile.mkdtemp()
            kind = "hang"
        name = f"{len(list(self.job.folder.glob('*.c')))}-{os.getpid()}"
        return Library(
            compiled(STEP.format(bad=BAD[kind]), self.job.folder / f"{name}.c"),
            self.job.time(config),
            self.job.pause,
        )

    def golden(self, default: Library, bits: bytes) -> str:
        return self.job.golden


def suite(job: Job) -> Suite:
    """The suite of a job."""
    return Suite(job)


def compiled(text: str, path: Path) -> Path:
    """A shared library of C source."""
    path.write_text(text)
    command = [
        os.environ.get("CC", "cc"),
        "-O0",
        "-shared",
        "-fPIC",
        "-o",
        str(path.with_suffix(".so")),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SpecccError(f"cc: {done.stderr.splitlines()[0]}")
    return path.with_suffix(".so")
