"""Triton kernels under Triton's own interpreter, in processes of their own.

TRITON_INTERPRET must be set before triton is imported, and an interpreted kernel can spin for
ever (a grid barrier that not all programs reach), hence the process and its deadline.

The interpreter runs one program after the other. Programs that wait for each other each get a
process: they share their arrays as mapped files, the interpreter's atomic operations are the CPU's
own, and so the programs of a grid truly run at once. What this cannot show is a device's weaker
memory order: an x86 CPU shows stores in the order in which they were made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Scalar = int | float | bool

WORKER = Path(__file__).with_name("triton_worker.py")


class InterpretError(Exception):
    """The kernel raised, or the process died or was killed for being late."""


class _Process:
    """One interpreter: a request at a time."""

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        # One thread: torch's pool on a small machine only gets in the way of other tests.
        env = dict(os.environ, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
        self._process = subprocess.Popen(
            (sys.executable, str(WORKER)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
        )

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, line: str) -> None:
        """A request; a process that is gone says so when it is asked for its answer."""
        pipe = cast(IO[bytes], self._process.stdin)
        with contextlib.suppress(OSError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()

    def answer(self) -> str | None:
        """ "ok" or a traceback; None when the process is gone."""
        line = cast(IO[bytes], self._process.stdout).readline()
        if line:
            return str(json.loads(line))
        self._process.wait()
        return None


class TritonMachine:
    """Worker processes: started on entry, ended on exit; a kernel that raises does not end them.

    With one process the programs of a grid run one after the other, with several all at once.
    """

    def __init__(self, *, timeout_s: float = 120.0, processes: int = 1) -> None:
        """`timeout_s` bounds each run, the start of the process included."""
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="speccc-triton-")
        self._arrays: dict[int, tuple[Path, int, Array]] = {}
        self._log = Path(self._folder.name, "stderr").open("w+b")  # noqa: SIM115 (closed in close)
        self._processes = [_Process(self._log) for _ in range(processes)]

    def __enter__(self) -> TritonMachine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; may be called again."""
        for process in self._processes:
            process.close()
        self._log.close()
        self._folder.cleanup()

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array of zeros that kernels can be given without copying."""
        count = int(np.prod(shape, dtype=np.int64))
        path = Path(self._folder.name, f"array{len(self._arrays)}")
        flat = np.memmap(path, dtype=dtype, mode="w+", shape=(max(1, count),))
        out: Array = flat[:count].reshape(shape)
        self._arrays[id(out)] = (path, 0, out)
        return out

    def part(self, array: Array, at: int, dtype: npt.DTypeLike) -> Array:
        """An array's memory from byte `at` on, as numbers of another type."""
        path, start, known = self._arrays[id(array)]
        whole = known.reshape(-1).view(np.uint8)[at:]
        out: Array = whole[: whole.size - whole.size % np.dtype(dtype).itemsize].view(dtype)
        self._arrays[id(out)] = (path, start + at, out)
        return out

    def share(self, array: Array) -> Array:
        """A copy of an array that kernels can be given."""
        out = self.empty(array.shape, array.dtype)
        out[...] = array
        return out

    def run(
        self,
        source: str,
        kernel: str,
        grid: tuple[int, ...],
        args: Mapping[str, Array | Scalar],
    ) -> None:
        """Run `kernel` of the module text `source` over `grid`.

        `args` names every parameter: an array made by `empty` or `share` becomes a pointer, the
        rest is passed as it is.
        """
        path = Path(self._folder.name, hashlib.sha256(source.encode()).hexdigest()[:16])
        path.write_text(source, encoding="utf-8")
        arrays = {k: self._described(v) for k, v in args.items() if isinstance(v, np.ndarray)}
        scalars = {k: v for k, v in args.items() if not isinstance(v, np.ndarray)}
        request = {"source": str(path), "kernel": kernel, "grid": grid, "arrays": arrays}
        self._ask([{**request, "scalars": scalars, "program": p} for p in self._programs(grid)])

    def _programs(self, grid: tuple[int, ...]) -> Sequence[int | None]:
        """The program of each process; None for all of the grid, one by one."""
        if len(self._processes) == 1:
            return (None,)
        if len(grid) != 1 or grid[0] > len(self._processes):
            raise ValueError(f"a grid of {grid} for {len(self._processes)} processes")
        return range(grid[0])

    def _described(self, array: Array) -> tuple[str, str, int, int]:
        path, at, known = self._arrays[id(array)]
        return str(path), known.dtype.str, max(1, known.size), at

    def _ask(self, requests: list[dict[str, object]]) -> None:
        used = self._processes[: len(requests)]
        timer = threading.Timer(self._timeout_s, lambda: [p.kill() for p in used])
        timer.start()
        for process, request in zip(used, requests, strict=True):
            process.send(json.dumps(request))
        answers = [process.answer() for process in used]
        timer.cancel()
        failed = [a for a in answers if a not in ("ok", None)]
        if failed:
            raise InterpretError(str(failed[0])[-3000:].strip())
        if None in answers:
            self._log.seek(0)
            tail = self._log.read()[-2000:].decode(errors="replace").strip()
            limit = f"no result in {self._timeout_s:g} s; the process was killed"
            raise InterpretError(f"{limit}\n{tail}")


def interpret(
    source: str,
    kernel: str,
    grid: tuple[int, ...],
    args: Mapping[str, Array | Scalar],
    *,
    timeout_s: float = 60.0,
) -> dict[str, Array]:
    """Run `kernel` once in a process of its own; the arrays as they are afterwards."""
    with TritonMachine(timeout_s=timeout_s) as machine:
        given = {k: machine.share(v) if isinstance(v, np.ndarray) else v for k, v in args.items()}
        machine.run(source, kernel, grid, given)
        return {k: np.array(v) for k, v in given.items() if isinstance(v, np.ndarray)}
