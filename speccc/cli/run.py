"""`speccc run`: text from a model, through the draft-verify loop."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
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
    print_passes,
    print_plan,
    refuse_given,
    weights_option,
)
from speccc.cli.numbers import Finite
from speccc.cli.spelling import Command, spec_type
from speccc.errors import InputError

if TYPE_CHECKING:
    from speccc.api import Model
    from speccc.runtime.drafter import Drafter
    from speccc.runtime.generate import Generation
    from speccc.runtime.stats import Stats
    from speccc.runtime.stream_text import Piece

EPILOG = """\b
Examples:
  speccc run -m model.gguf -p "Why is the sky blue?"
  speccc run -m model.speccc -f prompt.txt --temp 0.7 --top-p 0.9 --seed 42
  speccc run -m model.gguf --raw -p "def fib(n):" -n 64 --stop $'\\n\\n'
  git diff | speccc run -m model.gguf -sys "Write a commit message." --json
"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling flags."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the model, and what a session may take for it."""

    text: str
    system: str | None
    chat: bool
    raw: bool
    count: int
    stops: tuple[str, ...]
    drafter: Drafter | str
    context: int | None
    threads: int | None
    sampling: Sampling


@click.command("run", cls=Command, epilog=EPILOG)
@click.argument("model", required=False)
@click.option("-m", "--model", "model_flag", metavar="FILE", help="Model file or artifact.")
@click.option("-p", "--prompt", help="The prompt [default: standard input].")
@click.option("-f", "--file", "prompt_file", metavar="FILE", help="Read the prompt from a file.")
@click.option("-sys", "--system-prompt", "system", help="System message of the chat.")
@click.option("-n", "--predict", "--n-predict", "count", type=click.IntRange(-1), default=512,
              show_default=True,
              help="Most tokens to generate; -1: until the context is full.")  # fmt: skip
@click.option("-c", "--ctx-size", "context", type=click.IntRange(1), metavar="N",
              help="Most tokens of context [default: the model's].")  # fmt: skip
@click.option("-t", "--threads", type=click.IntRange(1), metavar="N",
              help="Threads [default: one a core].")  # fmt: skip
@click.option("--temp", "--temperature", "temperature", type=Finite(0), default=0.0,
              show_default=True, help="Temperature; 0 is greedy.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True,
              help="Keep the k likeliest tokens; 0 keeps all.")  # fmt: skip
@click.option("--top-p", type=Finite(0, 1), default=1.0, show_default=True,
              help="Keep the likeliest tokens of total probability p.")  # fmt: skip
@click.option("--min-p", type=Finite(0, 1), default=0.0, show_default=True,
              help="Keep tokens of at least this share of the best.")  # fmt: skip
@click.option("-s", "--seed", type=int, default=0, show_default=True,
              help="One seed gives one text; -1 draws one.")  # fmt: skip
@click.option("--spec-type", callback=spec_type, metavar="none|ngram", default="ngram",
              show_default=True,
              help="How to draft: none or ngram. The text is the same.")  # fmt: skip
@click.option("--spec-draft-n-max", "draft_max", type=click.IntRange(0), metavar="K",
              help="Most tokens to draft in a round; 0 drafts none.")  # fmt: skip
@click.option("--stop", "stops", multiple=True, help="End at this text; may be repeated.")
@click.option("-cnv", "--chat", "--conversation", "chat", is_flag=True,
              help="Use the model's chat template [default: when it has one].")  # fmt: skip
@click.option("--raw", is_flag=True, help="The prompt is plain text: no template.")
@click.option("--target", default="cpu", show_default=True,
              help="What to compile a model file for: cpu, cuda, rocm, vulkan, sycl or metal, or "
                   "one's DEVICE as vulkan:rdna3.")  # fmt: skip
@click.option("--isa", type=click.Choice(ISAS), default="auto", show_default=True,
              help="Instruction set to compile a model file for.")  # fmt: skip
@click.option("--kv", type=click.Choice(KV_TYPES), default="f16", show_default=True,
              help="KV format to compile a model file for.")  # fmt: skip
@weights_option
@activations_option
@attention_option
@click.option("-v", "--verbose", is_flag=True, help="Show compile passes, memory and statistics.")
@output.json_option
def command(
    model: str | None,
    model_flag: str | None,
    prompt: str | None,
    prompt_file: str | None,
    system: str | None,
    count: int,
    context: int | None,
    threads: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    spec_type: str,
    draft_max: int | None,
    stops: Sequence[str],
    chat: bool,
    raw: bool,
    target: str,
    isa: str,
    kv: str,
    weights: str | None,
    activations: str,
    attention: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Generate text. A model file is compiled once and kept in the user's cache."""
    path = Path(output.exists(one_model(model, model_flag)))
    refuse_given(path)
    if raw and (chat or system is not None):
        raise click.UsageError("--raw means no chat; drop it or --chat and -sys")
    drawn = secrets.randbits(31) if seed < 0 else seed
    request = Request(
        _prompt(prompt, prompt_file), system, chat, raw, count, tuple(stops),
        _drafter(spec_type, draft_max), context, threads,
        Sampling(temperature, top_k, top_p, min_p, drawn),
    )  # fmt: skip
    options = compiled.Options(target, isa, kv, context, weights, activations, attention)
    _run(path, options, request, verbose=verbose, as_json=as_json)


def _run(
    path: Path, options: compiled.Options, request: Request, *, verbose: bool, as_json: bool
) -> None:
    """The model is opened, asked, and what it says printed."""
    sampling = request.sampling
    with output.progress() as report:
        loaded = compiled.open_any(path, options, report)
        tokens = _tokens(loaded, request)
        session = loaded.session(context=request.context, threads=request.threads)
        pieces = loaded.stream(
            tokens,
            max_tokens=None if request.count < 0 else request.count,
            temperature=sampling.temperature,
            seed=sampling.seed,
            drafter=request.drafter,
            stop=request.stops,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            session=session,
            on_progress=lambda done, total: report("prompt", done, total),
        )
        first, done = _first(pieces)
    if verbose:
        _print_compiler(loaded)
    result = _print(first, pieces, done, quiet=as_json)
    if as_json:
        ran = {"steps": session.steps, "launches_per_step": session.launches}
        output.print_json({**_document(result, sampling, len(tokens)), **ran})
    else:
        output.note(_summary(result.stats))


def _prompt(prompt: str | None, file: str | None) -> str:
    if prompt is not None and file is not None:
        raise click.UsageError("both -p and -f given; give one prompt")
    if prompt is not None:
        return prompt
    if file is None and sys.stdin.isatty():
        raise click.UsageError("no prompt; use -p TEXT, -f FILE or a pipe")
    data = sys.stdin.buffer.read() if file in (None, "-") else Path(str(file)).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = file if file not in (None, "-") else "standard input"
        raise InputError(f"is not UTF-8 at byte {error.start}", where=where) from None


def _tokens(model: Model, request: Request) -> list[int]:
    system = request.system
    chat = request.chat or model.chat_template is not None or system is not None
    if request.raw or not chat:
        return list(model.tokenizer.encode(request.text))
    messages = [{"role": "system", "content": system}] if system is not None else []
    return list(model.chat_tokens([*messages, {"role": "user", "content": request.text}]))


def _drafter(kind: str, most: int | None) -> Drafter | str:
    from speccc.runtime.ngram import NgramDrafter

    if kind == "none" or most == 0:
        return "none"
    return kind if most is None else NgramDrafter(draft_max=most)


def _first(
    pieces: Generator[Piece, None, Generation],
) -> tuple[Piece | None, Generation | None]:
    """Run to the first piece, so that the prompt's bar is gone before text appears."""
    try:
        return next(pieces), None
    except StopIteration as end:
        return None, end.value


def _print(
    first: Piece | None,
    pieces: Generator[Piece, None, Generation],
    done: Generation | None,
    *,
    quiet: bool,
) -> Generation:
    piece = first
    shown = ""
    while done is None:
        if piece is not None and not quiet:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
            shown = piece.text or shown
        try:
            piece = next(pieces)
        except StopIteration as end:
            done = end.value
    if not quiet and not shown.endswith("\n"):
        sys.stdout.write("\n")
    return done


def _print_compiler(model: Model) -> None:
    from contextlib import redirect_stdout

    with redirect_stdout(sys.stderr):
        print_passes(dict(model.manifest))
        print_plan(dict(model.manifest))


def _document(result: Generation, sampling: Sampling, prompt: int) -> dict[str, object]:
    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "seed": sampling.seed,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": len(result.tokens),
            "total_tokens": prompt + len(result.tokens),
        },
        "timings": timings(result.stats),
    }


def timings(stats: Stats) -> dict[str, object]:
    """Statistics under llama.cpp's names, and ours where it has none."""
    prompt = stats.prompt_tokens - stats.cached_tokens
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": 1000 * stats.prefill_seconds,
        "prompt_per_second": stats.prefill_rate,
        "predicted_n": stats.completion_tokens,
        "predicted_ms": 1000 * stats.decode_seconds,
        "predicted_per_second": stats.decode_rate,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "acceptance_length": stats.acceptance_length,
        "acceptance_per_position": list(stats.per_position),
        "acceptance_histogram": list(stats.histogram),
        "rounds": stats.rounds,
        "drafted_rounds": stats.steps,
    }


def _summary(stats: Stats) -> str:
    rate = f", {stats.prefill_rate:.0f} tok/s" if stats.prefill_seconds else ""
    parts = [
        f"prompt {stats.prompt_tokens} tokens{rate}",
        f"generated {stats.completion_tokens} tokens, {stats.decode_rate:.1f} tok/s",
    ]
    if stats.drafted:
        parts.append(
            f"acceptance {stats.acceptance_rate:.2f} ({stats.accepted} of {stats.drafted}), "
            f"mean length {stats.acceptance_length:.2f}"
        )
    return "[" + "; ".join(parts) + "]"
