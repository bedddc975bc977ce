"""MSL text -> a Metal library, by Apple's compiler: a part of Xcode that runs on a Mac only."""

from __future__ import annotations

import shutil
import subprocess

from speccc.scratch import Scratch
from speccc.targets.base import ToolMissingError
from speccc.targets.build_error import BuildError

COMPILER = ("xcrun", "-sdk", "macosx", "metal")
# As the texts' own pragmas, for compilers older than those.
FLAGS = ("-std=metal3.1", "-O2", "-fno-fast-math", "-ffp-contract=off")
TIMEOUT_S = 120.0
MEND = "a Metal library needs Xcode's Metal compiler (xcrun -sdk macosx metal), on a Mac"


def metal_version() -> str | None:
    """What the compiler calls itself, in one line; None where there is none."""
    if shutil.which(COMPILER[0]) is None:
        return None
    done = _run((*COMPILER, "--version"))
    lines = done.stdout.decode(errors="replace").splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def compile_msl(text: str, *, name: str = "kernel") -> bytes:
    """The library of one text. BuildError quotes the compiler; ToolMissingError without one."""
    if metal_version() is None:
        raise ToolMissingError(MEND)
    with Scratch() as folder:
        source, out = folder / "kernel.metal", folder / "kernel.metallib"
        source.write_text(text, encoding="utf-8")
        done = _run((*COMPILER, *FLAGS, str(source), "-o", str(out)))
        if done.returncode != 0 or not out.exists():
            log = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise BuildError(log or "refused without a word", where=name)
        return out.read_bytes()


def _run(command: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"no answer in {TIMEOUT_S:.0f} s", where=command[0]) from None
    except OSError as error:
        raise BuildError(f"cannot be started: {error.strerror}", where=command[0]) from None
