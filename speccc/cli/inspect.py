"""`speccc inspect`: what a model file or an artifact holds, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from speccc import compiled
from speccc.cli import output
from speccc.cli.compile import one_model
from speccc.cli.spelling import Command

if TYPE_CHECKING:
    from speccc.ir.frontends.source import ModelSource

EPILOG = """\b
Examples:
  speccc inspect model.gguf
  speccc inspect model.gguf --tensors
  speccc inspect model.speccc --json
"""

INTERNALS = ("step", "entries")  # of an artifact's manifest, shown by -v


@click.command("inspect", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="FILE", help="The same as the argument.")
@click.option("--tensors", is_flag=True, help="List the weights of a model file.")
@click.option("-v", "--verbose", is_flag=True, help="Show everything, in full.")
@output.json_option
def command(
    model: str | None, model_flag: str | None, tensors: bool, verbose: bool, as_json: bool
) -> None:
    """Show what MODEL (a model file, a folder or an artifact) holds."""
    path = Path(output.exists(one_model(model, model_flag)))
    if compiled.is_artifact(path):
        from speccc.api import load

        facts: dict[str, object] = {"kind": "artifact", **load(path).manifest}
        hidden = () if verbose else INTERNALS
    else:
        from speccc.ir.frontends.open import open_model

        facts = describe(open_model(path), tensors=tensors)
        hidden = ()
    if as_json:
        output.print_json(facts)
    else:
        shown = {name: value for name, value in facts.items() if name not in hidden}
        output.table(_rows(shown, "", verbose or tensors))


def describe(source: ModelSource, *, tensors: bool = False) -> dict[str, object]:
    """The facts of a model file, ready for JSON."""
    weights = source.weights.values()
    formats = Counter(weight.format.name for weight in weights)
    facts: dict[str, object] = {
        "kind": "model",
        "files": [file.name for file in source.files],
        "config": asdict(source.config),
        "parameters": sum(_elements(weight.shape) for weight in weights),
        "weight_bytes": sum(weight.raw.nbytes for weight in weights),
        "formats": dict(sorted(formats.items())),
        "tokens": source.tokenizer.vocab_size,
        "chat_template": source.chat_template is not None,
        "notes": list(source.notes),
    }
    if tensors:
        facts["tensors"] = {
            weight.name: f"{'x'.join(map(str, weight.shape))} {weight.format.name}"
            for weight in weights
        }
    return facts


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _rows(facts: Mapping[str, object], prefix: str, verbose: bool) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping) and (verbose or len(value) <= 24):
            rows += _rows(value, f"{prefix}{name}.", verbose)
        else:
            rows.append((f"{prefix}{name}", _shown(value, verbose)))
    return rows


def _shown(value: object, verbose: bool) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} entries (-v lists them)"
    if isinstance(value, list | tuple) and not verbose and len(value) > 8:
        return f"{len(value)} entries (-v lists them)"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
