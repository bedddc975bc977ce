"""`speccc bench`: speed and quality of a model on this machine, alone or beside llama.cpp."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from speccc import compiled
from speccc.cli import output
from speccc.cli.compile import ISAS, KV_TYPES, one_model
from speccc.cli.spelling import Command
from speccc.errors import InputError

if TYPE_CHECKING:
    from speccc.bench.client import Client
    from speccc.bench.measure import EngineResult
    from speccc.bench.quality import Quality

EPILOG = """\b
Examples:
  speccc bench model.gguf --json
  speccc bench model.gguf --against llama.cpp
  speccc bench model.gguf --quality --against llama.cpp --json
"""


@click.command("bench", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="FILE", help="The same as the argument.")
@click.option("--against", type=click.Choice(["llama.cpp"]),
              help="Measure this engine too, in alternating rounds.")  # fmt: skip
@click.option("--quality", is_flag=True, help="Compare logits with float32's instead of speed.")
@click.option("--text", "text_file", metavar="FILE", help="Text to measure on [default: ours].")
@click.option("-t", "--threads", type=click.IntRange(1), metavar="N",
              help="Threads of every engine [default: one a core].")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True,
              help="Alternating rounds; medians are over them.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1), default=256, show_default=True,
              help="Tokens of context under each verify pass.")  # fmt: skip
@click.option("--isa", type=click.Choice(ISAS), default="auto", show_default=True,
              help="Instruction set to compile a model file for.")  # fmt: skip
@click.option("--kv", type=click.Choice(KV_TYPES), default="f16", show_default=True,
              help="KV format to compile a model file for.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show the settings as well.")
@output.json_option
def command(
    model: str | None,
    model_flag: str | None,
    against: str | None,
    quality: bool,
    text_file: str | None,
    threads: int | None,
    rounds: int,
    depth: int,
    isa: str,
    kv: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Measure verify cost by width, prefill, plain and speculative speed, and peak memory."""
    from speccc.bench.measure import Settings, measure
    from speccc.bench.quality import measure_quality
    from speccc.bench.text import bench_text

    path = Path(output.exists(one_model(model, model_flag)))
    text = bench_text(None if text_file is None else Path(text_file))
    settings = Settings(rounds=rounds, depth=depth)
    count = threads or cores()
    busy = load() or 0.0
    if busy > 0.5 and not quality:
        output.note(f"note: {busy:.1f} other processes want the {cores()} cores; times will suffer")
    with ExitStack() as stack, output.progress() as report:
        engines = _engines(stack, path, compiled.Options(isa=isa, kv=kv), against, settings.context,
                           count, report)  # fmt: skip
        tokens = engines[0].ask("encode", text=text, chat=False)["tokens"]
        document: dict[str, object] = {"device": device(count), "model": path.name}
        if quality:
            reference = _client(stack, "float32", path, settings.context, count)
            scores = measure_quality(reference, engines, tokens, report)
            document["quality"] = {kind: score.document() for kind, score in scores.items()}
        else:
            results = measure(engines, tokens, settings, report)
            document |= results[0].document()
            document["against"] = {
                engine.kind: result.document()
                for engine, result in zip(engines[1:], results[1:], strict=True)
            }
            document["settings"] = {"rounds": rounds, "depth": depth, "context": settings.context}
    if as_json:
        output.print_json(document)
    elif quality:
        _print_quality(scores)
    else:
        _print_speed({e.kind: r for e, r in zip(engines, results, strict=True)})
    if verbose and not as_json:
        output.note(f"{document['device']} {document.get('settings', '')}")


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """Processes that want a core, over the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def device(threads: int) -> dict[str, object]:
    """What the numbers were measured on."""
    import platform

    from speccc.doctor import cpu_name

    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": threads,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": load(),
    }


def _engines(
    stack: ExitStack,
    path: Path,
    options: compiled.Options,
    against: str | None,
    context: int,
    threads: int,
    report: output.Report,
) -> list[Client]:
    artifact = path
    if not compiled.is_artifact(path):
        artifact = compiled.cached_model(path, options, report).path
    elif against:
        raise InputError(f"{against} cannot read an artifact; give the GGUF file", where=str(path))
    engines = [_client(stack, "speccc", artifact, context, threads)]
    if against:
        engines.append(_client(stack, against, path, context, threads))
    return engines


def _client(stack: ExitStack, kind: str, path: Path, context: int, threads: int) -> Client:
    from speccc.bench.client import Client

    return stack.enter_context(Client(kind, path, context, threads))


def _print_speed(results: dict[str, EngineResult]) -> None:
    first = next(iter(results.values()))
    verify = [
        (f"verify {width}", *(f"{result.verify_ms[width]:.2f}" for result in results.values()))
        for width in first.verify_ms
    ]
    output.table(verify, ("ms", *results))
    rates: list[tuple[str, ...]] = [
        ("prefill", *(f"{result.prefill_tok_s:.1f}" for result in results.values()))
    ]
    for name in first.tasks:
        tasks = [result.tasks[name] for result in results.values()]
        rates += [
            (f"{name}: plain", *(f"{task.plain_tok_s:.1f}" for task in tasks)),
            (f"{name}: speculative", *(f"{task.speculative_tok_s:.1f}" for task in tasks)),
            (f"{name}: acceptance length", *(f"{task.acceptance_length:.2f}" for task in tasks)),
            (f"{name}: identical", *("yes" if task.identical else "no" for task in tasks)),
        ]
    memory = (output.size(result.peak_memory_bytes or 0) for result in results.values())
    output.table([*rates, ("peak memory", *memory)], ("tok/s", *results))


def _print_quality(scores: dict[str, Quality]) -> None:
    rows = [
        (kind, f"{q.top1_agreement:.4f}", f"{q.mean_kl:.6f}", f"{q.max_kl:.4f}",
         f"{q.perplexity:.3f}")
        for kind, q in scores.items()
    ]  # fmt: skip
    output.table(rows, ("engine", "top-1", "mean KL", "max KL", "perplexity"))
