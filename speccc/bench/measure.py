"""Speed of one or more engines: asked in turn, round by round, medians over the rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Protocol

from speccc.bench.tasks import TASKS, Task
from speccc.errors import InputError

WIDTHS = (*range(1, 17), 24, 32, 64)
PROMPT_TOKENS = 512

Report = Callable[[str, int, int], None]
"""(work, done, total)."""


class Asked(Protocol):
    """An engine's worker, as seen from here."""

    kind: str

    def ask(self, op: str, **request: object) -> dict[str, Any]:
        """Send one request and wait for its reply."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`rounds` alternating rounds; `depth` tokens of context under each verify pass."""

    rounds: int = 10
    repeat: int = 5
    depth: int = 256
    widths: tuple[int, ...] = WIDTHS
    tasks: tuple[Task, ...] = TASKS
    prompt_tokens: int = PROMPT_TOKENS

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.repeat < 1:
            raise InputError("rounds and repeats must be 1 or more", where="bench")

    @property
    def context(self) -> int:
        """The context every engine gets, in tokens."""
        longest = max(self.depth + max(self.widths), self.prompt_tokens + 1)
        return max(1024, -(-longest // 64) * 64)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task; `identical` compares the tokens of plain and speculative decoding."""

    plain_tok_s: float
    speculative_tok_s: float
    acceptance_length: float
    tokens_per_round: float
    tokens: int
    identical: bool


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine; times in milliseconds, rates in tokens a second, memory in bytes.

    `verify_quartiles_ms` is the first and the third quartile of what `verify_ms` is the median of.
    """

    facts: dict[str, object]
    verify_ms: dict[int, float]
    verify_quartiles_ms: dict[int, tuple[float, float]]
    prefill_tok_s: float
    plain_tok_s: float
    speculative_tok_s: float
    tasks: dict[str, TaskResult] = field(default_factory=dict)
    identical: bool = True
    peak_memory_bytes: int | None = None

    def document(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


def measure(
    engines: Sequence[Asked],
    tokens: Sequence[int],
    settings: Settings,
    report: Report,
    beside: Callable[[], object] = lambda: None,
) -> list[EngineResult]:
    """Measure the engines in turn; the first encodes the prompts for all.

    `tokens` is a real text of at least `prompt_tokens` tokens. InputError when it is shorter.
    `beside` is called in each round of verify passes that counts, after those of the least width.
    """
    need = max(settings.prompt_tokens, settings.depth + max(settings.widths))
    if len(tokens) < need:
        raise InputError(f"has {len(tokens)} tokens, the bench needs {need}", where="bench text")
    samples = verify_samples(engines, list(tokens), settings, report, beside=beside)
    costs = [{width: median(taken) for width, taken in kept.items()} for kept in samples]
    prefill = _prefill(engines, list(tokens), settings, report)
    runs = _generate(engines, costs, settings, report)
    return [
        _result(engine, kept, prefill[engine.kind], runs[engine.kind])
        for engine, kept in zip(engines, samples, strict=True)
    ]


Samples = dict[int, list[float]]
"""Milliseconds of single passes by width."""


def verify_samples(
    engines: Sequence[Asked],
    tokens: list[int],
    settings: Settings,
    report: Report,
    work: str = "verify cost",
    beside: Callable[[], object] = lambda: None,
) -> list[Samples]:
    """T(m) of each engine; the first round warms up and is not counted."""
    least = min(settings.widths)
    samples: list[Samples] = [defaultdict(list) for _ in engines]
    for turn in range(settings.rounds + 1):
        for width in settings.widths:
            for engine, kept in zip(engines, samples, strict=True):
                request = {"width": width, "depth": settings.depth, "repeat": settings.repeat}
                reply = engine.ask("verify", tokens=tokens, **request)
                if turn:
                    kept[width] += reply["ms"]
            if turn and width == least:
                beside()
        report(work, turn + 1, settings.rounds + 1)
    return samples


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    if len(samples) < 2:
        return samples[0], samples[0]
    first, _, third = quantiles(samples, n=4, method="inclusive")
    return first, third


def _prefill(
    engines: Sequence[Asked], tokens: list[int], settings: Settings, report: Report
) -> dict[str, float]:
    samples: dict[str, list[float]] = defaultdict(list)
    prompt = tokens[: settings.prompt_tokens]
    for turn in range(settings.rounds):
        for engine in engines:
            reply = engine.ask("generate", tokens=prompt, count=1, drafter="none")
            samples[engine.kind].append(reply["prefill_tok_s"])
        report("prefill", turn + 1, settings.rounds)
    return {kind: median(rates) for kind, rates in samples.items()}


Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""Task -> drafter -> replies, one a round."""


def _generate(
    engines: Sequence[Asked],
    costs: Sequence[dict[int, float]],
    settings: Settings,
    report: Report,
) -> dict[str, Runs]:
    runs: dict[str, Runs] = {
        engine.kind: {task.name: {"none": [], "ngram": []} for task in settings.tasks}
        for engine in engines
    }
    done, total = 0, settings.rounds * len(settings.tasks)
    prompts = {
        task.name: engines[0].ask("encode", text=task.prompt, chat=True)["tokens"]
        for task in settings.tasks
    }
    for _ in range(settings.rounds):
        for task in settings.tasks:
            for drafter in ("none", "ngram"):
                for engine, cost in zip(engines, costs, strict=True):
                    reply = engine.ask(
                        "generate",
                        tokens=prompts[task.name],
                        count=task.tokens,
                        drafter=drafter,
                        cost=cost,
                    )
                    runs[engine.kind][task.name][drafter].append(reply)
            done += 1
            report("tasks", done, total)
    return runs


def _result(engine: Asked, samples: Samples, prefill: float, runs: Runs) -> EngineResult:
    tasks = {name: _task(run["none"], run["ngram"]) for name, run in runs.items()}
    return EngineResult(
        facts=engine.ask("facts"),
        verify_ms={width: median(taken) for width, taken in samples.items()},
        verify_quartiles_ms={width: quartiles(taken) for width, taken in samples.items()},
        prefill_tok_s=prefill,
        plain_tok_s=_overall([task.plain_tok_s for task in tasks.values()]),
        speculative_tok_s=_overall([task.speculative_tok_s for task in tasks.values()]),
        tasks=tasks,
        identical=all(task.identical for task in tasks.values()),
        peak_memory_bytes=engine.ask("memory")["peak_memory_bytes"],
    )


def _task(plain: list[dict[str, Any]], drafted: list[dict[str, Any]]) -> TaskResult:
    texts = {(tuple(run["tokens"]), run["finish_reason"]) for run in (*plain, *drafted)}
    return TaskResult(
        plain_tok_s=median(run["tok_s"] for run in plain),
        speculative_tok_s=median(run["tok_s"] for run in drafted),
        acceptance_length=median(run["acceptance_length"] for run in drafted),
        tokens_per_round=median(run["tokens_per_round"] for run in drafted),
        tokens=len(plain[0]["tokens"]),
        identical=len(texts) == 1,
    )


def _overall(rates: Sequence[float]) -> float:
    """Equal numbers of tokens from each task: the harmonic mean of the rates."""
    return len(rates) / sum(1 / rate for rate in rates) if rates and min(rates) > 0 else 0.0
