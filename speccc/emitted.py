"""Runs what `speccc emit` wrote on a real device: the folder's kernels, the model's weights.

python -m speccc.emitted MODEL DIR -p "Why is the sky blue?" -n 64
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speccc.emit import KERNELS, LAUNCH_PLAN, REPORT
from speccc.errors import InputError, SpecccError, UnsupportedError
from speccc.runtime.devices.drivers import DRIVERS, binary_ending, open_driver
from speccc.runtime.devices.gpu_session import GpuSession
from speccc.runtime.devices.gpu_step import Code, Driver
from speccc.runtime.devices.launch_plan import LaunchPlan, read_launch_plan

MOST_JSON = 1 << 26
"""Bytes; ours have thousands."""


def open_emitted(
    model: Path, folder: Path, *, context: int | None = None, driver: Driver | None = None
) -> GpuSession:
    """A session on the first device of the folder's backend, or on `driver`'s.

    InputError when the folder is damaged or of another model; UnsupportedError when a stage that
    the driver loads was not built, or the device or its bindings are not here.
    """
    from speccc.driver import CompileOptions, tunable

    report = _read(folder / REPORT)
    backend, kv = str(report.get("target")).partition(":")[0], str(report.get("kv"))
    if backend not in DRIVERS:
        raise UnsupportedError(f"no driver for {backend}; there are {', '.join(DRIVERS)}")
    subject = tunable(model, CompileOptions(kv=kv))
    plan = read_launch_plan(_read(folder / LAUNCH_PLAN), str(folder / LAUNCH_PLAN))
    _check_model(model, folder, report)
    lost = [b.name for b in subject.step.bufs if b.name not in plan.buffers]
    if lost:
        raise InputError(f"knows no buffer {lost[0]}: emit it again", where=str(folder))
    codes = _codes(folder, plan, backend)
    return GpuSession(
        subject.step,
        driver or open_driver(backend),
        plan,
        codes,
        subject.weights,
        subject.vectors,
        context=min(context or subject.most_context, subject.most_context),
    )


def _check_model(model: Path, folder: Path, report: Mapping[str, Any]) -> None:
    from speccc.ir.frontends import open_model

    known = report.get("model")
    found = known.get("fingerprint") if isinstance(known, dict) else None
    if found != open_model(model).fingerprint():
        raise InputError(f"was emitted for another model than {model}", where=str(folder))


def _codes(folder: Path, plan: LaunchPlan, backend: str) -> dict[str, Code]:
    ending = binary_ending(backend)
    out: dict[str, Code] = {}
    for name, entry in plan.entries.items():
        path = folder / KERNELS / f"{name}.{ending}"
        # A name is a part of a path here: it may not lead out of the folder.
        if path.parent != folder / KERNELS or not path.is_file():
            raise UnsupportedError(f"kernel {name} has no {ending} file", where=str(folder))
        told = path.with_suffix(".json")
        shared = _read(told).get("shared_bytes", 0) if told.is_file() else 0
        out[name] = Code(path.read_bytes(), entry, int(shared))
    return out


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError("no such file; is this a folder of `speccc emit`?", where=str(path))
    if path.stat().st_size > MOST_JSON:
        raise InputError("is too large to be ours", where=str(path))
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):
        raise InputError("is not JSON: emit it again", where=str(path)) from None
    if not isinstance(value, dict):
        raise InputError("holds no object: emit it again", where=str(path))
    return value


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
