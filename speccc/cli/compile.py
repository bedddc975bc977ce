"""`speccc compile`: a model file to one artifact."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from speccc.cli import output
from speccc.cli.numbers import Finite
from speccc.cli.spelling import Command
from speccc.compiled import is_artifact, model_file
from speccc.errors import InputError
from speccc.quick_import import without_torch
from speccc.rare_collections import rare_collections
from speccc.runtime.destination import artifact_destination

ISAS = ("auto", "avx512vnni", "avxvnni", "avx2", "dotprod", "portable")
KV_TYPES = ("f16", "i8", "f32")
ACTIVATIONS = ("int8", "nvfp4", "f16", "bf16", "fp8")
ATTENTION = ("f32", "f16")
COMPILER = ("isa", "kv", "weights", "activations", "attention", "target")
"""Flags of other commands that only matter when a model is compiled."""
WEIGHTS = ("q4_0", "q4_1", "q8_0", "mxfp4", "nvfp4", "fp8", "f16", "bf16")
weights_option = click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    help="Store the layers' matrices in this format [default: the model's].",
)
activations_option = click.option(
    "--activations",
    type=click.Choice(ACTIVATIONS),
    default="int8",
    show_default=True,
    help="How activations are quantised for weights that take it.",
)
attention_option = click.option(
    "--attention",
    type=click.Choice(ATTENTION),
    default="f32",
    show_default=True,
    help="What attention multiplies: f16 is for a GPU's matrix engines and a cache of f16.",
)

EPILOG = """\b
Examples:
  speccc compile model.gguf -o model.speccc
  speccc compile model.gguf -c 4096 --kv i8 --isa avx2 -v
  speccc compile model.gguf --tune 60
  speccc compile model.gguf --weights nvfp4 -o model-nvfp4.speccc
  speccc compile model.gguf --weights nvfp4 --activations nvfp4
  speccc compile model.gguf --target cuda:sm_90 --attention f16 -o model-sm_90.speccc
  speccc compile ./hf-folder -o model.speccc --dump stages/
"""


@click.command("compile", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="MODEL", help="The same as the argument.")
@click.option("-o", "artifact", metavar="FILE", help="Artifact to write [default: MODEL.speccc].")
@click.option("--target", default="cpu", show_default=True,
              help="What to compile for: cpu, cuda, rocm, vulkan, sycl or metal, or one's DEVICE "
                   "as cuda:sm_90; no device is needed.")  # fmt: skip
@click.option("--isa", type=click.Choice(ISAS), default="auto", show_default=True,
              help="Instruction set; auto is the best this CPU has.")  # fmt: skip
@click.option("-c", "--ctx-size", "context", type=click.IntRange(1), metavar="N",
              help="Most tokens of context [default: the model's].")  # fmt: skip
@click.option("--kv", type=click.Choice(KV_TYPES), default="f16", show_default=True,
              help="Number format of the KV cache.")  # fmt: skip
@weights_option
@activations_option
@attention_option
@click.option("--tune", "tune_seconds", type=Finite(0), default=10.0,
              metavar="SECONDS", show_default=True,
              help="Time to find schedules if none are known here yet; 0 for none.")  # fmt: skip
@click.option("--dump", metavar="DIR", help="Write the IR after each pass and every kernel there.")
@click.option("-v", "--verbose", is_flag=True, help="Show the time each pass took.")
@output.json_option
def command(
    model: str | None,
    model_flag: str | None,
    artifact: str | None,
    target: str,
    isa: str,
    context: int | None,
    kv: str,
    weights: str | None,
    activations: str,
    attention: str,
    tune_seconds: float,
    dump: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Compile MODEL (a GGUF file or a Hugging Face folder) into one artifact file."""
    source = model_file(Path(output.exists(one_model(model, model_flag))))
    if artifact == "":
        raise click.UsageError("-o is empty; name a file")
    to = Path(artifact or f"{own_name(source)}.speccc")
    artifact_destination(to, source)
    from speccc.driver import CompileOptions, compile_to

    options = CompileOptions(
        target=target,
        isa=isa,
        kv=kv,
        context=context,
        dump=None if dump is None else Path(dump),
        tune_seconds=tune_seconds,
        weights=weights,
        activations=activations,
        attention=attention,
    )
    with output.progress() as report, without_torch(), rare_collections():
        manifest = compile_to(source, to, options, report)
    if as_json:
        output.print_json({"artifact": str(to), "bytes": to.stat().st_size, "manifest": manifest})
        return
    if verbose:
        print_passes(manifest)
    print_plan(manifest)
    for text in manifest["notes"]:
        output.note(f"note: {text}")
    expected = manifest["verify_cost"].get("source")
    if expected is not None:
        output.note(f"note: T(m) is {expected}")
    click.echo(f"{to}: {output.size(to.stat().st_size)}")


def one_model(argument: str | None, flag: str | None) -> str:
    """The model given as argument or with -m, once."""
    if argument and flag and argument != flag:
        raise click.UsageError(f"two models given, {argument} and {flag}; give one")
    model = argument or flag
    if not model:
        raise click.UsageError("no model given; name a GGUF file, a model folder or an artifact")
    return model


def refuse_given(path: Path) -> None:
    """InputError for an artifact beside a flag of the compiler, with the default's value even."""
    given = click.get_current_context().get_parameter_source
    typed = [f for f in COMPILER if given(f) is ParameterSource.COMMANDLINE]
    if typed and is_artifact(path):
        raise InputError(
            f"is compiled already; --{typed[0]} goes to `speccc compile`", where=str(path)
        )


def own_name(model: Path) -> str:
    """What outputs are called after: the path's own name, as links lead to names of hashes.

    Only `.` and `..` have none and are followed. A file's ending is dropped, a folder has none.
    """
    named = model if model.name not in ("", "..") else model.resolve()
    return named.name if named.is_dir() else named.stem


def print_passes(manifest: dict[str, object]) -> None:
    """The time each pass took, in the order they ran."""
    times = manifest.get("pass_times")
    if isinstance(times, dict):
        output.table([(name, _ms(value)) for name, value in times.items()], ("pass", "ms"))


def print_plan(manifest: dict[str, object]) -> None:
    """The memory plan and what it means for the context."""
    plan = manifest.get("memory_plan")
    if isinstance(plan, dict):
        rows = [(name.replace("_", " "), _amount(name, value)) for name, value in plan.items()]
        output.table(rows, ("memory", ""))


def _ms(seconds: object) -> str:
    return f"{1000 * seconds:.1f}" if isinstance(seconds, int | float) else str(seconds)


def _amount(name: str, value: object) -> str:
    counted = name == "threads" or name.endswith("_tokens")
    return str(value) if counted or not isinstance(value, int) else output.size(value)
