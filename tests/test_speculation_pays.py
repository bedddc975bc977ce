"""The whole loop on a virtual clock: what drafting wins where text repeats, and loses elsewhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from table_session import Table, TableSession, TableTokens, fixed_text

from speccc.runtime.controller import AdaptiveController
from speccc.runtime.generate import Generation, collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.protocols import Logits
from speccc.runtime.verify_cost import FLAT_GUESS, VerifyCost

VOCAB = 64
LETTERS = TableTokens([bytes([32 + i]) for i in range(VOCAB)])
PROMPT = [1, 2, 3]
COSTS = {
    "flat": VerifyCost((1, 16), (2.0, 3.0)),
    "measured": VerifyCost((1, 2, 4, 8, 16), (2.0, 2.2, 2.6, 4.0, 7.5)),
    "steep": VerifyCost((1, 2, 4, 8, 16), (2.0, 3.6, 5.3, 8.6, 15.4)),
}


class Timed(TableSession):
    """A table session whose passes take T(m) ms, `slower` times as long, on its own clock."""

    def __init__(self, table: Table, cost: VerifyCost, slower: float = 1.0) -> None:
        super().__init__(table)
        self.cost, self.slower, self.now = cost, slower, 0.0

    def forward(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Logits:
        self.now += self.slower * self.cost.at(len(tokens)) / 1000
        return super().forward(tokens, parents=parents)


@dataclass(frozen=True)
class Run:
    """A text decoded with drafts, and its speed over plain decoding's."""

    found: Generation
    speedup: float
    widths: tuple[int, ...]


def decode(text: Sequence[int], cost: VerifyCost, believed: VerifyCost, slower: float = 1.0) -> Run:
    session = Timed(fixed_text(text, len(PROMPT), VOCAB), cost, slower)
    found = collect(
        generate(
            session, LETTERS, PROMPT, max_tokens=len(text), drafter=NgramDrafter(),
            controller=AdaptiveController(believed), clock=lambda: session.now,
        )
    )  # fmt: skip
    assert list(found.tokens) == list(text)
    plain = len(text) * slower * cost.at(1) / 1000
    return Run(found, plain / found.stats.decode_seconds, tuple(session.widths[1:]))


def noise(count: int, seed: int, vocab: int = VOCAB) -> list[int]:
    """Tokens without a pattern: every match is by chance, and its guess holds by chance."""
    rng = random.Random(seed)
    return [rng.randrange(1, vocab) for _ in range(count)]


def repeated(count: int, period: int, seed: int) -> list[int]:
    block = noise(period, seed)
    return (block * (count // period + 1))[:count]


def treacherous(count: int) -> list[int]:
    """Each pair of tokens comes back, followed by another token every time."""
    return [token for i in range(count // 3) for token in (7, 8, 9 + i % 50)]


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_text_that_never_repeats_costs_at_most_the_stake_and_a_percent(
    cost: VerifyCost, seed: int
) -> None:
    """The bar is 0.98 of plain decoding; here with 400 tokens, of which 1 is the stake."""
    assert decode(noise(400, seed), cost, cost).speedup >= 1 / (1 + 1 / 400 + 0.01)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_text_that_leads_astray(cost: VerifyCost) -> None:
    """Pairs that always match and never go on the same way."""
    assert decode(treacherous(390), cost, cost).speedup >= 1 / (1 + 1 / 390 + 0.01)


@pytest.mark.parametrize("name", COSTS)
def test_text_that_repeats_is_faster(name: str) -> None:
    """By at least half of what the device could give: 16 tokens in the time of T(16)."""
    cost = COSTS[name]
    found = decode(repeated(600, 40, seed=1), cost, cost)
    assert found.speedup >= 16 * cost.at(1) / cost.at(16) / 2 * 560 / 600


def test_code_then_prose_then_code() -> None:
    """The widths follow the text within a few rounds, both ways."""
    cost = COSTS["measured"]
    code, prose = repeated(200, 20, seed=2), noise(200, seed=3)
    until = [len(decode(part, cost, cost).widths) for part in (code, [*code, *prose])]
    widths = decode([*code, *prose, *code], cost, cost).widths
    drafted = [width - 1 for width in widths[until[0] : until[1]]]
    assert sum(drafted[:20]) <= 20  # a row a round at first
    assert sum(drafted[20:]) <= 0.4 * len(drafted[20:])  # then a third of that
    assert max(widths[until[1] : until[1] + 8]) >= 8  # 8 rounds into the code again


@pytest.mark.parametrize("seed", range(4))
def test_a_guess_that_is_wrong_is_paid_for_once(seed: int) -> None:
    """Nothing was measured and the device is steep: a dozen plain rounds, then 1 % as ever."""
    steep = COSTS["steep"]
    for count in (600, 1800):
        speedup = decode(noise(count, seed), steep, FLAT_GUESS, slower=3.0).speedup
        assert count / speedup - count <= 16 + 0.01 * count
    assert decode(repeated(600, 40, seed=1), steep, FLAT_GUESS, slower=3.0).speedup >= 1.4


def test_speculation_does_not_run_twice_the_same_way_by_luck() -> None:
    """Same text, same clock: same widths."""
    cost = COSTS["measured"]
    text = [*repeated(100, 20, seed=2), *noise(100, seed=3)]
    assert decode(text, cost, cost).widths == decode(text, cost, cost).widths
