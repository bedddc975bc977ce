"""The other end of a worker: start it, ask it, stop it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from speccc.errors import InputError, SpecccError


class Client:
    """A worker process for one engine. Use as a context manager: leaving it ends the process.

    Raises InputError for what the engine refuses, SpecccError when the process dies.
    """

    def __init__(self, kind: str, path: Path, context: int, threads: int) -> None:
        self.kind = kind
        command = [sys.executable, "-m", "speccc.bench.worker", kind, str(path)]
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [*command, str(context), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env={**os.environ, "TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)},
        )
        try:
            self._read()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def ask(self, op: str, **request: object) -> dict[str, Any]:
        """Send one request and wait for its reply."""
        stdin = self._process.stdin
        if stdin is None:
            raise SpecccError("has no input", where=f"{self.kind} worker")
        try:
            stdin.write(json.dumps({"op": op, **request}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            self._dead()
        return self._read()

    def _read(self) -> dict[str, Any]:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            self._dead()
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            kind = InputError if reply["exit_code"] == InputError.exit_code else SpecccError
            raise kind(reply["error"])
        return reply

    def _dead(self) -> NoReturn:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        raise SpecccError(f"ended with code {code}{last}", where=f"{self.kind} worker")

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
