"""A model's step built for every architecture: a table of what came out, in Markdown.

python benchmarks/target_matrix.py MODEL [TARGET ...] [--weights FORMAT] [--activations CLASS]

Needs the targets' tools (`speccc doctor -v`); a stage without its tool is named in the last column.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speccc.cli.emit import launches
from speccc.emit import EmitOptions, emit_to
from speccc.errors import SpecccError
from speccc.ir.frontends.open import check_place
from speccc.targets.devices import PROFILES
from speccc.targets.registry import target, target_names

HEADER = (
    "target",
    "kernels",
    "launches",
    "matrix instructions",
    "registers",
    "spills",
    "stack",
    "shared",
    "s",
    "stages",
)


def row(name: str, model: Path, options: EmitOptions) -> tuple[str, ...]:
    """One target's line; of figures by kernel the largest."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report: Mapping[str, Any] = emit_to(model, target(name), Path(folder, "out"), options)
    took = time.perf_counter() - began
    kernels = report["kernels"]
    counts = ", ".join(f"{n} `{op}`" for op, n in report["instructions"].items())
    stages = dict.fromkeys(ext for k in kernels for ext in k["files"])
    lost = [f"no {ext}" for ext in report["missing"]]
    return (
        f"`{name}`",
        str(len(kernels)),
        launches(report),
        counts or "-",
        *(
            _largest(kernels, field)
            for field in ("registers", "spills", "stack_bytes", "shared_bytes")
        ),
        f"{took:.0f}",
        ", ".join([*stages, *lost]),
    )


def _largest(kernels: list[Mapping[str, Any]], field: str) -> str:
    known = [k[field] for k in kernels if k[field] is not None]
    return str(max(known)) if known else "-"


def main() -> None:
    """Prints the table line by line, since a whole one takes minutes."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("targets", nargs="*", default=[])
    parser.add_argument("--weights")
    parser.add_argument("--activations", default="int8")
    given = parser.parse_args()
    options = EmitOptions(weights=given.weights, activations=given.activations)
    names = given.targets or [n for n in target_names() if PROFILES[n].device is None]
    check_place(given.model)
    for name in names:
        target(name)
    for cells in (HEADER, ("---",) * len(HEADER)):
        print(f"| {' | '.join(cells)} |", flush=True)
    for name in names:
        print(f"| {' | '.join(row(name, given.model, options))} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except SpecccError as error:
        sys.exit(f"error: {error}")
