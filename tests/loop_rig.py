"""What the tests of the loop share: a small vocabulary, all kinds of drafter, plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from table_session import (
    ScriptedDrafter,
    Table,
    TableSession,
    TableTokens,
)

from speccc.runtime.controller import Controller
from speccc.runtime.drafter import Drafter
from speccc.runtime.generate import Generation, collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.sampling import SamplingParams, picker

VOCAB = 12
LETTERS = TableTokens([bytes([97 + i]) for i in range(VOCAB)])
AWKWARD = TableTokens(b"a|b|ab||ba|\xf0\x9f|\xa6\x9c|\xc3\xa9|c|ca|\xc3| ".split(b"|"))
PROMPT = [1, 2, 3, 1, 2]


def run(
    table: Table,
    drafter: Drafter | None = None,
    controller: Controller | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    tokenizer: TableTokens = LETTERS,
    max_tokens: int | None = 40,
    sampling: SamplingParams | None = None,
    stops: Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    context: int = 4096,
    chunk: int = 64,
    log_probs: bool = False,
) -> tuple[Generation, TableSession]:
    session = TableSession(table, context)
    pieces = generate(
        session, tokenizer, prompt, max_tokens=max_tokens, drafter=drafter, controller=controller,
        sampling=sampling or SamplingParams(), stop_strings=stops, stop_ids=stop_ids,
        prefill_chunk=chunk, log_probs=log_probs,
    )  # fmt: skip
    return collect(pieces), session


def plain_loop(
    table: Table, prompt: Sequence[int], count: int, sampling: SamplingParams
) -> list[int]:
    """Decoding by its definition, without a session."""
    history = list(prompt)
    pick = picker(sampling)
    for _ in range(count):
        history.append(pick(table(tuple(history)), len(history)))
    return history[len(prompt) :]


SAMPLINGS = [SamplingParams(), SamplingParams(0.8, seed=4), SamplingParams(1.2, 6, 0.9, 0.05, 7)]
DRAFTERS: dict[str, Callable[[Sequence[int]], Drafter]] = {
    "ngram": lambda plain: NgramDrafter(1, 3),
    "right": lambda plain: ScriptedDrafter(plain, vocab=VOCAB),
    "wrong": lambda plain: ScriptedDrafter(plain, lambda at: True, VOCAB),
    "half": lambda plain: ScriptedDrafter(plain, lambda at: at * 7 % 5 < 2, VOCAB),
    "tree": lambda plain: ScriptedDrafter(plain, vocab=VOCAB, branches=2),
    "half tree": lambda plain: ScriptedDrafter(plain, lambda at: at * 7 % 5 < 2, VOCAB, branches=1),
}
