"""`speccc emit`: a model's kernels for a GPU, as source, built code and a launch plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from speccc.cli import output
from speccc.cli.compile import (
    KV_TYPES,
    activations_option,
    attention_option,
    one_model,
    own_name,
    weights_option,
)
from speccc.cli.spelling import Command
from speccc.compiled import model_file

EPILOG = """\b
Examples:
  speccc emit model.gguf --target cuda:sm_90 -o kernels/
  speccc emit model.gguf --target vulkan:rdna3 -o kernels/ --strict
  speccc emit ./hf-folder --target metal --kv i8 --json
  speccc emit --list
"""


@click.command("emit", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="MODEL", help="The same as the argument.")
@click.option("--target", metavar="T", help="What to emit for, as cuda:sm_90 or vulkan:rdna3.")
@click.option("-o", "folder", metavar="DIR", help="Folder to write [default: MODEL-TARGET].")
@click.option("--kv", type=click.Choice(KV_TYPES), default="f16", show_default=True,
              help="Number format of the KV cache.")  # fmt: skip
@weights_option
@activations_option
@attention_option
@click.option("--strict", is_flag=True, help="Fail when a tool of the target is missing here.")
@click.option(
    "--list", "list_all", is_flag=True, help="List the targets and what is known of them."
)
@output.json_option
def command(
    model: str | None,
    model_flag: str | None,
    target: str | None,
    folder: str | None,
    kv: str,
    weights: str | None,
    activations: str,
    attention: str,
    strict: bool,
    list_all: bool,
    as_json: bool,
) -> None:
    """Emit MODEL's kernels (a GGUF file or a Hugging Face folder) for a GPU.

    Sources, every stage that can be built here, the launch plan and a report, in one folder.
    """
    if list_all:
        list_targets(as_json)
        return
    source = model_file(Path(output.exists(one_model(model, model_flag))))
    if not target:
        raise click.UsageError("no target given; name one with --target (--list shows them)")
    if target.partition(":")[0] == "cpu":
        hint = "`speccc compile` makes the CPU's code"
        raise click.UsageError(f"--target {target}: emit is for GPUs (--list shows them); {hint}")
    from speccc.emit import EmitOptions, emit_to
    from speccc.emit_folder import emit_destination
    from speccc.targets import registry

    if folder == "":
        raise click.UsageError("-o is empty; name a folder")
    made = registry.target(target)
    to = Path(folder or f"{own_name(source)}-{made.name.replace(':', '-')}")
    emit_destination(to)
    with output.progress() as progress:
        options = EmitOptions(kv, strict, weights, activations, attention)
        report = emit_to(source, made, to, options, progress)
    if as_json:
        output.print_json({"folder": str(to), "report": report})
        return
    print_report(report)
    for ext, why in _table(report["missing"]).items():
        output.note(f"note: no {ext}: {why}")
    click.echo(str(to))


def print_report(report: Mapping[str, object]) -> None:
    """The kernels in a table, then what a step asks of memory and how many launches it takes."""
    rows = [_kernel(k) for k in _sequence(report["kernels"])]
    output.table(rows, ("kernel", "registers", "spills", "shared", "matrix instructions"))
    steps = _sequence(report["traffic"])
    context = steps[0]["context"] if steps else 0
    header = ("rows", "weights", "asked for", "cache", "asked for", "inside the step")
    output.table([_moved(s) for s in steps], header, f"Bytes moved, {context} tokens in the cache")
    click.echo(f"launches per step: {launches(report)}")


def launches(report: Mapping[str, object]) -> str:
    """Of a text's first step, and of one in a long context where those are others."""
    first, most = report["launches_of_first_step"], report["launches_per_step"]
    return f"{first}" if first == most else f"{first} to {most}"


def _moved(step: Mapping[str, object]) -> tuple[object, ...]:
    """What must move beside what is asked for; the rest fits a cache and need not move at all."""
    needed, asked = _table(step["needed"]), dict(_table(step["asked"]))
    pairs = [(needed[role], asked.pop(role)) for role in ("weights", "state")]
    return (step["rows"], *(output.size(n) for pair in pairs for n in pair),
            output.size(sum(asked.values())))  # fmt: skip


def _kernel(kernel: Mapping[str, object]) -> tuple[object, ...]:
    counts = ", ".join(f"{n} {name}" for name, n in _table(kernel["instructions"]).items())
    figures = (kernel[name] for name in ("registers", "spills", "shared_bytes"))
    return (kernel["name"], *("-" if n is None else n for n in figures), counts or "-")


def _table(value: object) -> Mapping[str, int]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[Mapping[str, object]]:
    return value if isinstance(value, Sequence) else ()


def list_targets(as_json: bool) -> None:
    """Every target there is code for, with its matrix instructions and bandwidth."""
    from speccc.emit import profile_document
    from speccc.targets.devices import profile
    from speccc.targets.registry import target_names

    profiles = [profile(name) for name in target_names()]
    if as_json:
        output.print_json([profile_document(p) for p in profiles])
        return
    rows = []
    for p in profiles:
        product, speed = (p.device.title, p.device.bandwidth) if p.device else (str(p.arch), None)
        shapes = [str(m) for m in p.arch.matrix.value if m.a == "i8"] if p.arch.matrix else []
        first = shapes[0] if shapes else "-"
        rows.append((p.name, product, "-" if speed is None else f"{speed.value:g}", first))
    output.table(rows, ("target", "device", "GB/s", "int8 matrix instruction"))
