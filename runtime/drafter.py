"""What a drafter is: a shareable recipe (`Drafter`) that starts one `Drafting` for each request.

A drafting knows the committed tokens and nothing of the target: it never holds or changes the
session, and it hears of tokens only once they are committed, so that a failed or rejected round has
nothing to undo in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from speccc.errors import SpecccError


class Grade(NamedTuple):
    """How far a guess is to be trusted: guesses with one `key` hold equally often.

    `chance` is how often, given that the parent holds, as far as the drafter knows beforehand; the
    controller goes on from there with what it sees.
    """

    key: int
    chance: float


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens: a chain, or a tree when `parents` is given.

    `parents[i]` < i is the index of token i's parent here, or -1 for the last committed token.
    `grades` has one entry a token; without it the controller goes by the depth.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    grades: tuple[Grade, ...] | None = None

    def __post_init__(self) -> None:
        if self.grades is not None and len(self.grades) != len(self.tokens):
            raise SpecccError("each token needs a grade", where="draft")
        if self.parents is None:
            return
        if len(self.parents) != len(self.tokens) or any(
            not -1 <= parent < node for node, parent in enumerate(self.parents)
        ):
            raise SpecccError("each token needs a parent that comes before it", where="draft")

    def cut(self, count: int) -> Draft:
        """The first `count` tokens; a prefix of a tree is a tree, as parents come first."""
        if count >= len(self.tokens):
            return self
        parents = None if self.parents is None else self.parents[:count]
        grades = None if self.grades is None else self.grades[:count]
        return Draft(self.tokens[:count], parents, grades)

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return len(self.tokens) if self.parents is None else max(self.depths(), default=0)

    def depths(self) -> Sequence[int]:
        """Distance of each token from the last committed one; 1 for the first."""
        if self.parents is None:
            return range(1, len(self.tokens) + 1)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths


NOTHING = Draft(())


class Drafting(Protocol):
    """The drafter's side of one request."""

    def propose(self, context: Sequence[int], k: int) -> Draft:
        """At most k guesses of what follows `context`, all the committed tokens; k >= 1."""

    def observe(self, tokens: Sequence[int]) -> None:
        """`tokens` were committed after those known so far."""


class Drafter(Protocol):
    """A recipe for guessing: immutable, so that requests and threads may share it."""

    @property
    def name(self) -> str:
        """What the user types to choose it."""

    def start(self, prompt: Sequence[int]) -> Drafting:
        """A fresh drafting that knows the prompt and nothing of other requests."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round decided: the tokens to commit and the draft's nodes among them.

    `tokens` has one more than `nodes`: the last is the target's own.
    """

    tokens: tuple[int, ...]
    nodes: tuple[int, ...]


Sample = Callable[[int, int], int]
"""(row of the verify pass, tokens accepted so far in this round) -> the target's token there."""


def accept_exact(draft: Draft, sample: Sample) -> Verdict:
    """Walk the draft: take the target's token at each row, go on to the child that equals it.

    Row 0 is the last committed token, row i + 1 the draft's token i. Rows off the path are never
    sampled. Lossless for any sampler whose pick depends on the row and the position alone.
    """
    tokens: list[int] = []
    nodes: list[int] = []
    children = None if draft.parents is None else _children(draft.tokens, draft.parents)
    row = 0
    while True:
        token = sample(row, len(tokens))
        tokens.append(token)
        if children is not None:
            node = children.get((row - 1, token))
        else:
            node = row if row < len(draft.tokens) and draft.tokens[row] == token else None
        if node is None:
            return Verdict(tuple(tokens), tuple(nodes))
        nodes.append(node)
        row = node + 1


def _children(tokens: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for node, edge in enumerate(zip(parents, tokens, strict=True)):
        found.setdefault(edge, node)
    return found
