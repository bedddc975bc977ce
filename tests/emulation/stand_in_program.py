"""A program that runs one kernel of a stand-in, launch after launch, in a process of its own."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path


class ProgramError(Exception):
    """The program refused a launch, died, or was killed for being late; it is gone."""


class StandInProgram:
    """Started for its first launch, and again after one that ended it."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        """`timeout_s` bounds each launch."""
        self._path, self._timeout_s = path, timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, data: bytes, size: int) -> bytes:
        """The `size` bytes that the program answers. ProgramError has its last words."""
        process = self._process or self._start()
        late = threading.Timer(self._timeout_s, process.kill)
        late.start()
        try:
            return _answer(process, data, size)
        except (BrokenPipeError, EOFError):
            raise ProgramError(self._last_words()) from None
        finally:
            late.cancel()

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __del__(self) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([self._path], stdin=pipe, stdout=pipe, stderr=pipe)
        return self._process

    def _last_words(self) -> str:
        assert self._process is not None
        said = self._process.communicate()[1].decode(errors="replace").strip()
        status, self._process = self._process.returncode, None
        return said or f"exit status {status}"


def _answer(process: subprocess.Popen[bytes], data: bytes, size: int) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(data)
    process.stdin.flush()
    answer = process.stdout.read(1 + size)  # a dot says that it ran
    if len(answer) <= size:
        raise EOFError
    return answer[1:]
