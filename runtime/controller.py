"""How many drafted tokens to verify: the number with the most expected tokens per second.

With c(k) the cost of a round that verifies k drafted tokens (in plain rounds, as rounds take them
now) and S_i the chance that token i and all before it hold, the rate of k is
(1 + S_1 + ... + S_k) / c(k); k = 0 is plain decoding and wins ties. In a tree S_i is the product
along the path to node i.

Two accounts bound what drafting can lose, whatever the text does. The ledger holds the time that
drafts have won, less what they have cost; it starts with `stake` plain rounds and gains
`exploration` of one with every round. A draft is only verified if the ledger could pay for it with
none of it held, so at any moment drafting has cost at most `stake` plus that share of the rounds.
And where no length promises more than plain decoding, one token is tried as often as `exploration`
pays for it, and again while it holds, so that a change of the text or of the machine is noticed.
In the same way a plain round is tried now and then where drafting wins but narrowly.

None of this can change the text: with verification by equality a shorter draft is always safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from speccc.errors import InputError
from speccc.runtime.acceptance import Acceptance
from speccc.runtime.drafter import Draft, Grade
from speccc.runtime.round_cost import RoundCost
from speccc.runtime.verify_cost import FLAT_GUESS, VerifyCost


class Controller(Protocol):
    """Chooses draft lengths; may learn across the requests of one session."""

    def limit(self) -> int:
        """The most tokens worth asking the drafter for."""

    def choose(self, draft: Draft) -> int:
        """How many of the draft's tokens to verify, 0 to all."""

    def observe(self, draft: Draft, nodes: Sequence[int], ms: float) -> None:
        """A round: the draft as verified, maybe empty, its nodes that held, and what it took."""


@dataclass(frozen=True, slots=True)
class FixedController:
    """Always k tokens, or as many as the drafter has."""

    k: int

    def __post_init__(self) -> None:
        _check_length(self.k)

    def limit(self) -> int:
        return self.k

    def choose(self, draft: Draft) -> int:
        return min(self.k, len(draft.tokens))

    def observe(self, draft: Draft, nodes: Sequence[int], ms: float) -> None:
        """A fixed length learns nothing."""


CREDIT = 10.0
"""Plain rounds: the most a lucky stretch may leave in the ledger for the next one to lose."""
DOUBT = 1.5
"""Below this rate, in plain decoding's, the cost of a plain round has to be known."""
PLAIN_EVERY = 32
"""Rounds after which it is measured anew: that takes at most (1 - 1 / DOUBT) / 32, 1 %, of all."""


@dataclass(slots=True)
class AdaptiveController:
    """Maximises the expected rate from T(m) and the acceptance seen so far.

    `draft_ms` is the drafter's time per token: 0 for a lookup, whose draft is seen before the
    choice; otherwise `limit` chooses, as the time is spent once the draft is there. `prior` is the
    chance of a first token that comes without a grade. `costs` are those of an earlier request, if
    they are for drafts as long and as dear: a machine stays as it is when the text changes.
    """

    cost: VerifyCost = FLAT_GUESS
    max_draft: int = 15
    draft_ms: float = 0.0
    prior: float = 0.6
    exploration: float = 0.01
    stake: float = 1.0
    acceptance: Acceptance = field(default_factory=Acceptance)
    costs: RoundCost | None = None
    _costs: RoundCost = field(init=False)
    _ledger: float = field(init=False)
    _saved: float = field(default=0.0, init=False)
    _probing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_length(self.max_draft)
        known, most = self.costs, self.max_draft + 1
        if known is None or not known.serves(self.cost, most, self.draft_ms):
            known = RoundCost(self.cost, most, self.draft_ms)
        self._costs = self.costs = known
        self._ledger = self.stake

    @property
    def ledger(self) -> float:
        """What drafts have won less what they have cost, and the allowance, in plain rounds."""
        return self._ledger

    def limit(self) -> int:
        """All of `max_draft` for a free drafter; else what pays for its drafting time too."""
        if self.draft_ms == 0.0 or self.max_draft == 0:
            return self.max_draft
        return self._choose(None, self._by_depth(self.max_draft))

    def choose(self, draft: Draft) -> int:
        most = min(len(draft.tokens), self.max_draft)
        if self.draft_ms or most == 0:
            return most
        return self._choose(draft.parents, self._grades(draft)[:most])

    def observe(self, draft: Draft, nodes: Sequence[int], ms: float) -> None:
        count = len(draft.tokens)
        won = self.exploration
        if 0 < count <= self.max_draft:
            won += len(nodes) - (self._costs.ratios()[count] - 1.0)
        self._ledger = min(self._ledger + won, CREDIT)
        self._saved = CREDIT if self._probing and nodes else self._saved + self.exploration
        self._probing = False
        self._costs.observe(count + 1, ms)
        self.acceptance.observe(draft, self._grades(draft), nodes)

    def _grades(self, draft: Draft) -> Sequence[Grade]:
        if draft.grades is not None:
            return draft.grades
        by_depth = self._by_depth(draft.depth)
        return [by_depth[depth - 1] for depth in draft.depths()]

    def _by_depth(self, deepest: int) -> list[Grade]:
        """Grades by position; one never tested is taken to hold as often as the one before it."""
        grades: list[Grade] = []
        chance = self.prior
        for depth in range(1, deepest + 1):
            grades.append(Grade(-depth, chance))
            chance = self.acceptance.chance(grades[-1])
        return grades

    def _choose(self, parents: Sequence[int] | None, grades: Sequence[Grade]) -> int:
        best, rate = self._best(parents, grades)
        if best:
            doubted = rate < DOUBT and self._costs.plain_age() >= PLAIN_EVERY
            return 0 if doubted else best
        price = self._costs.ratios()[1] - 1.0
        if self._saved < price or self._ledger < price:
            return 0
        self._saved, self._probing = 0.0, True
        return 1

    def _best(self, parents: Sequence[int] | None, grades: Sequence[Grade]) -> tuple[int, float]:
        """The count with the highest rate among those the ledger can pay for, and that rate."""
        ratios, chance = self._costs.ratios(), self.acceptance.chance
        affordable = 1.0 + self._ledger
        best, best_rate, tokens = 0, 1.0, 1.0
        reach: list[float] = []
        for node, grade in enumerate(grades):
            parent = node - 1 if parents is None else parents[node]
            reached = chance(grade) * (reach[parent] if parent >= 0 else 1.0)
            ratio = ratios[node + 1]
            if ratio > affordable:
                break
            reach.append(reached)
            tokens += reached
            if tokens > best_rate * ratio:
                best, best_rate = node + 1, tokens / ratio
        return best, best_rate


def _check_length(k: int) -> None:
    if k < 0:
        raise InputError(f"must be 0 or more, not {k}", where="draft length")
