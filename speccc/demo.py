"""`make demo`: SmolLM2 compiled for this CPU answers three prompts, plain and speculative.

Both texts are generated and their tokens compared; the exit code is 1 if any differ.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.console import Console

from speccc import compiled, models
from speccc.api import Model
from speccc.bench.tasks import TASKS, Task
from speccc.cli import output
from speccc.doctor import cpu_name
from speccc.errors import SpecccError
from speccc.runtime.generate import Generation


@dataclass(frozen=True, slots=True)
class Answer:
    """One task, answered without and with speculation."""

    task: Task
    plain: Generation
    drafted: Generation

    @property
    def identical(self) -> bool:
        """Whether both runs gave the same tokens."""
        return self.plain.tokens == self.drafted.tokens


def answer(model: Model, task: Task) -> Answer:
    """Generates a task's text twice, each in a session of its own."""
    tokens = model.chat_tokens([{"role": "user", "content": task.prompt}])
    plain, drafted = (
        model.generate(tokens, max_tokens=task.tokens, drafter=drafter)
        for drafter in ("none", "ngram")
    )
    return Answer(task, plain, drafted)


def show(console: Console, a: Answer) -> None:
    """Prints a task, its text and its figures."""
    console.rule(f"{a.task.title}: {a.task.name}", align="left")
    console.print(a.task.prompt, style="dim", markup=False, highlight=False)
    console.print()
    console.print(a.drafted.text, markup=False, highlight=False)
    console.print()
    plain, fast = a.plain.stats.decode_rate, a.drafted.stats.decode_rate
    console.print(
        f"plain {plain:.0f} tokens/s | speculative {fast:.0f} tokens/s ({fast / plain:.2f}x) | "
        f"acceptance length {a.drafted.stats.acceptance_length:.2f} | "
        f"identical: {'yes' if a.identical else 'NO'}",
        markup=False,
        highlight=False,
    )


def main() -> int:
    """Runs the demo; the exit code."""
    console = Console(soft_wrap=True)
    with output.progress() as report:
        path = models.smollm2(lambda done, total: report("download SmolLM2", done, total))
        begun = time.perf_counter()
        model = compiled.cached_model(path, compiled.Options(), report)
    seconds = time.perf_counter() - begun
    console.print(
        f"{path.name} on {cpu_name()} ({model.manifest['isa']}), ready in {seconds:.1f} s"
    )
    answers = [answer(model, task) for task in TASKS]
    for a in answers:
        show(console, a)
    same = all(a.identical for a in answers)
    console.rule()
    console.print(
        f"identical: {'yes' if same else 'NO'}, all {len(answers)} texts compared token by token"
    )
    return 0 if same else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecccError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
