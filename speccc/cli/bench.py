"""`speccc bench`: speed and quality of a model on this machine, alone or beside llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from speccc import compiled
from speccc.cli import output
from speccc.cli.compile import (
    ISAS,
    KV_TYPES,
    activations_option,
    attention_option,
    one_model,
    refuse_given,
    weights_option,
)
from speccc.cli.numbers import number_list
from speccc.cli.spelling import Command
from speccc.errors import InputError

if TYPE_CHECKING:
    from speccc.bench.client import Client
    from speccc.bench.measure import Settings
    from speccc.cli.bench_report import SpeedReport

EPILOG = """\b
Examples:
  speccc bench model.gguf --json
  speccc bench model.gguf --against llama.cpp --plot cost.png
  speccc bench model.gguf --widths 1,4,8 --context-lengths 64,1024,4096
  speccc bench model.gguf --quality --against llama.cpp --json
  speccc bench model.gguf --quality --weights nvfp4
"""
MOST_ROWS = 64


@click.command("bench", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="FILE", help="The same as the argument.")
@click.option("--against", type=click.Choice(["llama.cpp"]),
              help="Measure this engine too, in alternating rounds.")  # fmt: skip
@click.option("--quality", is_flag=True, help="Compare logits with float32's instead of speed.")
@click.option("--text", "text_file", metavar="FILE", help="Text to measure on [default: ours].")
@click.option("-t", "--threads", type=click.IntRange(1), metavar="N",
              help="Threads of every engine [default: one a core].")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True,
              help="Alternating rounds; medians are over them.")  # fmt: skip
@click.option("--widths", callback=number_list(1, MOST_ROWS), default="1-16,24,32,64",
              show_default=True, metavar="LIST", help="Tokens a verify pass has.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1), default=256, show_default=True,
              help="Tokens of context under each verify pass.")  # fmt: skip
@click.option("--context-lengths", callback=number_list(1, 1 << 20), default="", metavar="LIST",
              help="Also verify 1 and 8 tokens behind contexts this long.")  # fmt: skip
@click.option("--plot", "plot_file", metavar="FILE.png",
              help="Draw verify cost over the machine's limits.")  # fmt: skip
@click.option("--isa", type=click.Choice(ISAS), default="auto", show_default=True,
              help="Instruction set to compile a model file for.")  # fmt: skip
@click.option("--kv", type=click.Choice(KV_TYPES), default="f16", show_default=True,
              help="KV format to compile a model file for.")  # fmt: skip
@weights_option
@activations_option
@attention_option
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
    widths: tuple[int, ...],
    depth: int,
    context_lengths: tuple[int, ...],
    plot_file: str | None,
    isa: str,
    kv: str,
    weights: str | None,
    activations: str,
    attention: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Measure verify cost by width, prefill, plain and speculative speed, and memory."""
    from speccc.bench.machine import device, load, noise_note, stolen_percent, ticks
    from speccc.bench.measure import Settings
    from speccc.bench.plot import check_plot
    from speccc.bench.text import bench_text
    from speccc.runtime.cores import cores

    path = Path(output.exists(one_model(model, model_flag)))
    refuse_given(path)
    text = bench_text(None if text_file is None else Path(text_file))
    if plot_file is not None:
        check_plot(Path(plot_file))
    settings = Settings(rounds=rounds, depth=depth, widths=widths)
    load_before, begun = load(), ticks()
    count = threads or cores()
    with output.progress() as report:
        options = compiled.Options(
            isa=isa, kv=kv, weights=weights, activations=activations, attention=attention
        )
        ours = _artifact(path, options, "--quality" if quality else against, report)
        bench = _Bench(ours, path, against, count, text, report)
        measured = (
            bench.quality(settings) if quality else bench.speed(settings, sorted(context_lengths))
        )
    stolen = stolen_percent(begun, ticks())
    facts = {**device(count, load_before), "stolen_percent": stolen}
    document = {"device": facts, "model": path.name, **measured.document()}
    if plot_file is not None and not isinstance(measured, _Scores):
        _draw(Path(plot_file), measured, facts, path.name)
    if as_json:
        output.print_json(document)
    else:
        measured.show()
    if (note := noise_note(load_before, stolen)) is not None:
        output.note(note)
    if verbose and not as_json:
        output.note(f"{facts} {document.get('settings', '')}")


@dataclass(frozen=True)
class _Scores:
    """Quality by engine."""

    scores: dict[str, object]
    rows: list[tuple[str, ...]]

    def document(self) -> dict[str, object]:
        return {"quality": self.scores}

    def show(self) -> None:
        output.table(self.rows, ("engine", "top-1", "mean KL", "max KL", "perplexity"))


@dataclass(frozen=True)
class _Bench:
    """The engines to ask: ours runs `artifact`, the others read `path`."""

    artifact: Path
    path: Path
    against: str | None
    threads: int
    text: str
    report: output.Report

    @contextmanager
    def engines(self, context: int) -> Iterator[list[Client]]:
        """A process for each engine, ours first, that ends with the block."""
        with ExitStack() as stack:
            engines = [self._client(stack, "speccc", self.artifact, context)]
            if self.against:
                engines.append(self._client(stack, self.against, self.path, context))
            yield engines

    def _client(self, stack: ExitStack, kind: str, path: Path, context: int) -> Client:
        from speccc.bench.client import Client

        return stack.enter_context(Client(kind, path, context, self.threads))

    def quality(self, settings: Settings) -> _Scores:
        """Logits beside those of the float32 model."""
        from speccc.bench.quality import measure_quality

        with ExitStack() as stack, self.engines(settings.context) as engines:
            reference = self._client(stack, "float32", self.path, settings.context)
            tokens = engines[0].ask("encode", text=self.text, chat=False)["tokens"]
            scores = measure_quality(reference, engines, tokens, self.report)
        rows: list[tuple[str, ...]] = [
            (kind, f"{q.top1_agreement:.4f}", f"{q.mean_kl:.6f}", f"{q.max_kl:.4f}",
             f"{q.perplexity:.3f}")
            for kind, q in scores.items()
        ]  # fmt: skip
        return _Scores({kind: score.document() for kind, score in scores.items()}, rows)

    def speed(self, settings: Settings, lengths: Sequence[int]) -> SpeedReport:
        """Everything that is a time, and memory."""
        from speccc.bench.ceilings import Ceilings, beside, ceilings
        from speccc.bench.long_context import context_room, measure_contexts
        from speccc.bench.measure import measure
        from speccc.bench.memory import peak_memory
        from speccc.bench.roofline import read_traffic, roofline
        from speccc.cli.bench_report import SpeedReport
        from speccc.runtime.artifact_file import read_entries

        traffic = read_traffic(read_entries(self.artifact).manifest, str(self.artifact))
        moments: list[Ceilings] = []
        with self.engines(settings.context) as engines:
            tokens = engines[0].ask("encode", text=self.text, chat=False)["tokens"]
            results = measure(
                engines,
                tokens,
                settings,
                self.report,
                lambda: moments.append(ceilings(self.threads)),
            )
            kinds = [engine.kind for engine in engines]
        contexts = []
        if lengths:
            with self.engines(context_room(lengths)) as engines:
                contexts = measure_contexts(engines, tokens, lengths, settings, self.report)
        limits = roofline(beside(moments), traffic, results[0].verify_ms, settings.depth)
        return SpeedReport(
            settings={**asdict(settings), "context": settings.context},
            results=dict(zip(kinds, results, strict=True)),
            limits=limits,
            contexts=dict(zip(kinds, contexts, strict=False)),
            memory=peak_memory(self.artifact, threads=self.threads),
        )


def _artifact(
    path: Path, options: compiled.Options, reader: str | None, report: output.Report
) -> Path:
    """Ours to run: the file itself, or what it is compiled to; `reader` reads the model's file."""
    if not compiled.is_artifact(path):
        return compiled.cached_model(path, options, report).path
    if reader:
        raise InputError(f"{reader} cannot read an artifact; give the GGUF file", where=str(path))
    return path


def _draw(path: Path, measured: SpeedReport, facts: dict[str, object], model: str) -> None:
    from speccc.bench.plot import plot

    machine = f"{facts['cpu']}, {facts['threads']} threads, {facts['system']}"
    plot(path, measured.results, measured.limits, f"Cost of verifying m tokens, {model}", machine)
