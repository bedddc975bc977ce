"""Runs what `speccc emit` wrote on a real device: the folder's kernels, the model's weights.

python -m speccc.emitted MODEL DIR -p "Why is the sky blue?" -n 64
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from speccc.emit_folder import REPORT, read_report
from speccc.errors import InputError, SpecccError
from speccc.runtime.devices.built_kernels import FOLDER as KERNELS
from speccc.runtime.devices.built_kernels import read_plan
from speccc.runtime.devices.drivers import binary_ending
from speccc.runtime.devices.gpu_step import Driver
from speccc.runtime.devices.open_session import DeviceSession, open_session
from speccc.runtime.step_spec import check_plan

AGAIN = "emit it again"


def open_emitted(
    model: Path, folder: Path, *, context: int | None = None, driver: Driver | None = None
) -> DeviceSession:
    """A session on the first device of the folder's backend, or on `driver`'s.

    InputError when the folder is damaged or of another model; UnsupportedError when a stage that
    the driver loads was not built, or the device or its bindings are not here.
    """
    from speccc.driver import CompileOptions, tunable

    report = read_report(folder)
    backend, kv = str(report.get("target")).partition(":")[0], str(report.get("kv"))
    binary_ending(backend)
    weights = report.get("weights")
    stored = None if weights is None else str(weights)
    options = CompileOptions(
        str(report.get("target")),
        kv=kv,
        weights=stored,
        activations=str(report.get("activations", "int8")),
        attention=str(report.get("attention", "f32")),
    )
    subject = tunable(model, options)
    _check_model(model, folder, report)
    files = _Folder(folder, _hashes(folder, report))
    try:
        check_plan(subject.step, read_plan(files, str(folder)))
    except ValueError as error:
        raise InputError(f"is damaged ({error}): {AGAIN}", where=str(folder)) from None
    return open_session(
        backend,
        subject.step,
        files,
        subject.weights,
        subject.vectors,
        context=min(context or subject.most_context, subject.most_context),
        where=str(folder),
        driver=driver,
    )


def _hashes(folder: Path, report: Mapping[str, Any]) -> dict[str, str]:
    """Of the kernels' files, by their place in the folder. InputError for another's report."""
    try:
        return {
            f"{KERNELS}/{kernel['name']}.{ext}": str(digest)
            for kernel in report["kernels"]
            for ext, digest in kernel["sha256"].items()
        }
    except (KeyError, TypeError, AttributeError):
        why = f"knows no hashes of the kernels (an older version's?): {AGAIN}"
        raise InputError(why, where=str(folder / REPORT)) from None


class _Folder(Mapping[str, bytes]):
    """A folder's files by their place in it, read when they are asked for.

    InputError for one that is not what its hash says: a driver would give a number at best.
    """

    def __init__(self, folder: Path, hashes: Mapping[str, str]) -> None:
        self.folder, self.hashes = folder, hashes

    def __getitem__(self, name: str) -> bytes:
        path = self.folder / name
        if not path.is_file():
            raise KeyError(name)
        data = path.read_bytes()
        if name in self.hashes and hashlib.sha256(data).hexdigest() != self.hashes[name]:
            where = f"{path} (kernel {path.name.partition('.')[0]})"
            raise InputError(f"is damaged or changed: {AGAIN}", where=where)
        return data

    def __iter__(self) -> Iterator[str]:
        return (p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _check_model(model: Path, folder: Path, report: Mapping[str, Any]) -> None:
    from speccc.ir.frontends import open_model

    known = report.get("model")
    found = known.get("fingerprint") if isinstance(known, dict) else None
    if found != open_model(model).fingerprint():
        raise InputError(f"was emitted for another model than {model}", where=str(folder))


def main(words: list[str]) -> int:
    """Prints greedy text; the exit code as the command line has them."""
    parser = argparse.ArgumentParser(prog="speccc.emitted", description="Run emitted kernels.")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-p", "--prompt", required=True)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-c", "--context", type=int, default=4096)
    given = parser.parse_args(words)
    try:
        _print_text(given)
    except SpecccError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _print_text(given: argparse.Namespace) -> None:
    from speccc.ir.frontends import open_model
    from speccc.runtime.generate import generate
    from speccc.runtime.ngram import NgramDrafter
    from speccc.runtime.tokenizer import Tokenizer

    session = open_emitted(given.model, given.folder, context=given.context)
    tokenizer = Tokenizer(open_model(given.model).tokenizer, str(given.model))
    ids = tokenizer.encode(given.prompt)
    pieces = generate(
        session,
        tokenizer,
        ids,
        max_tokens=given.tokens,
        drafter=NgramDrafter(),
        stop_ids=tokenizer.eos_ids,
    )
    for piece in pieces:
        print(piece.text, end="", flush=True)
    print()
    session.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
