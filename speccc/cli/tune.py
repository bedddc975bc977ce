"""`speccc tune`: the fastest schedules of a model's step on this machine, into the tuning cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from speccc.cli import output
from speccc.cli.compile import (
    ISAS,
    KV_TYPES,
    activations_option,
    attention_option,
    one_model,
    weights_option,
)
from speccc.cli.numbers import Finite
from speccc.cli.spelling import Command
from speccc.compiled import model_file
from speccc.errors import UnsupportedError
from speccc.quick_import import without_torch
from speccc.runtime.destination import artifact_destination

if TYPE_CHECKING:
    from speccc.autotune.tuner import Problem, Tuned

EPILOG = """\b
Examples:
  speccc tune model.gguf
  speccc tune model.gguf --budget 300 -o model.speccc
  speccc tune ./hf-folder --kv i8 --json
"""


@click.command("tune", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="MODEL", help="The same as the argument.")
@click.option("--budget", type=Finite(0, min_open=True), default=60.0,
              metavar="SECONDS", show_default=True,
              help="Time to spend; goes on where it stopped.")  # fmt: skip
@click.option("-o", "artifact", metavar="FILE", help="Compile into this artifact afterwards.")
@click.option("--isa", type=click.Choice(ISAS), default="auto", show_default=True,
              help="Instruction set; auto is the best this CPU has.")  # fmt: skip
@click.option("--kv", type=click.Choice(KV_TYPES), default="f16", show_default=True,
              help="Number format of the KV cache.")  # fmt: skip
@weights_option
@activations_option
@attention_option
@output.json_option
def command(
    model: str | None,
    model_flag: str | None,
    budget: float,
    artifact: str | None,
    isa: str,
    kv: str,
    weights: str | None,
    activations: str,
    attention: str,
    as_json: bool,
) -> None:
    """Measure schedules for MODEL (a GGUF file or a Hugging Face folder) and keep the results.

    `speccc compile` uses what was found. Every candidate must give the untuned step's bits.
    """
    source = model_file(Path(output.exists(one_model(model, model_flag))))
    if artifact is not None:
        artifact_destination(Path(artifact), source)
    from speccc.driver import CompileOptions, compile_to, tunable
    from speccc.targets.cpu.isa import by_name, runs_here
    from speccc.tuning import told, tune_here

    if not runs_here(by_name(isa)):
        raise UnsupportedError(f"--isa {isa}: this CPU cannot run it: tune on one that can")
    options = CompileOptions(
        isa=isa, kv=kv, weights=weights, activations=activations, attention=attention
    )
    with output.progress() as report, without_torch():
        problem, done = tune_here(tunable(source, options, report), budget, told(report))
        if artifact is not None:
            compile_to(source, Path(artifact), options, report)
    if as_json:
        output.print_json(document(problem, done, artifact))
        return
    show(problem, done)
    if artifact is not None:
        click.echo(f"{artifact}: {output.size(Path(artifact).stat().st_size)}")


def document(problem: Problem, done: Tuned, artifact: str | None) -> dict[str, object]:
    """What was found, for programs."""
    return {
        "ratio": done.choice.ratio,
        "config": dict(done.choice.config),
        "widths": list(problem.keys),
        "tried": done.tried,
        "outcomes": dict(done.outcomes),
        "seconds": round(done.seconds, 3),
        "exhausted": done.exhausted,
        "device": next(iter(problem.keys.values())).device.name,
        "artifact": artifact,
    }


def show(problem: Problem, done: Tuned) -> None:
    """What was found, for people."""
    config = done.choice.config
    if config:
        output.table([(name, value) for name, value in config], ("choice", "value"))
    said = ", ".join(f"{n} {outcome}" for outcome, n in done.outcomes.items()) or "nothing new"
    end = "nothing is left to try" if done.exhausted else "more time may find more"
    click.echo(f"tried {done.tried} in {done.seconds:.1f} s ({said}); {end}")
    if not config:
        click.echo("nothing is clearly faster than the untuned step")
        return
    widths = ", ".join(str(m) for m in problem.keys)
    click.echo(f"{done.choice.ratio:.3f} of the untuned time, mean over m = {widths}")
