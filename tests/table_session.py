"""A target model given by a table: the one stand-in the loop's tests use.

`TableSession` follows the session protocol to the letter and raises on every misuse of it, so a
loop that passes with it asks nothing a real session does not promise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from speccc.runtime.drafter import Draft
from speccc.runtime.protocols import Logits

Table = Callable[[tuple[int, ...]], Logits]


def hashed_table(vocab: int, order: int, salt: int = 0, scale: float = 2.0) -> Table:
    """Logits drawn from a hash of the last `order` tokens: repeats itself, so lookups can hit."""
    seen: dict[tuple[int, ...], Logits] = {}

    def table(history: tuple[int, ...]) -> Logits:
        key = history[-order:]
        if key not in seen:
            seed = zlib.crc32(repr((salt, key)).encode())
            values = np.random.default_rng(seed).normal(0.0, scale, vocab)
            seen[key] = values.astype(np.float32)
        return seen[key]

    return table


def literal_table(rows: dict[tuple[int, ...], Sequence[float]], default: Sequence[float]) -> Table:
    """Logits by the longest listed end of the history."""

    longest = max(map(len, rows), default=0)

    def table(history: tuple[int, ...]) -> Logits:
        for size in range(min(longest, len(history)), 0, -1):
            if history[-size:] in rows:
                return np.asarray(rows[history[-size:]], dtype=np.float32)
        return np.asarray(default, dtype=np.float32)

    return table


def fixed_text(tokens: Sequence[int], prompt: int, vocab: int) -> Table:
    """A target whose greedy output after a prompt of `prompt` tokens is `tokens`, then 0s."""

    def table(history: tuple[int, ...]) -> Logits:
        at = len(history) - prompt
        row = np.zeros(vocab, dtype=np.float32)
        row[tokens[at] if 0 <= at < len(tokens) else 0] = 1.0
        return row

    return table


class TableSession:
    """The session protocol over a table."""

    def __init__(self, table: Table, context: int = 4096) -> None:
        self.table = table
        self.context = context
        self.history: list[int] = []
        self.widths: list[int] = []
        self.fail_at: dict[str, int] = {}  # method -> how many more calls until it raises
        self._tree: tuple[int, tuple[int, ...]] | None = None

    @property
    def length(self) -> int:
        return len(self.history)

    def forward(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Logits:
        self._maybe_fail("forward")
        base = len(self.history)
        if self._tree is not None:
            raise RuntimeError("a tree awaits keep or truncate")
        if not tokens or base + len(tokens) > self.context:
            raise RuntimeError(f"{len(tokens)} tokens at {base} of {self.context}")
        links = tuple(range(-1, len(tokens) - 1)) if parents is None else tuple(parents)
        paths: list[tuple[int, ...]] = []
        for row, parent in enumerate(links):
            if not -1 <= parent < row:
                raise RuntimeError(f"row {row} has parent {parent}")
            before = paths[parent] if parent >= 0 else tuple(self.history)
            paths.append((*before, tokens[row]))
        self.history += tokens
        self.widths.append(len(tokens))
        self._tree = None if parents is None else (base, links)
        self._maybe_fail("late forward")
        return np.stack([self.table(path) for path in paths])

    def keep(self, rows: Sequence[int]) -> None:
        self._maybe_fail("keep")
        if self._tree is None:
            raise RuntimeError("keep without a tree")
        base, links = self._tree
        if [links[row] for row in rows] != [-1, *rows[:-1]]:
            raise RuntimeError(f"{list(rows)} is not a path of {links}")
        self.history[base:] = [self.history[base + row] for row in rows]
        self._tree = None

    def truncate(self, length: int) -> None:
        self._maybe_fail("truncate")
        if not 0 <= length <= len(self.history):
            raise RuntimeError(f"cannot truncate {len(self.history)} to {length}")
        del self.history[length:]
        self._tree = None

    def _maybe_fail(self, method: str) -> None:
        if method in self.fail_at:
            self.fail_at[method] -= 1
            if self.fail_at[method] < 0:
                del self.fail_at[method]
                raise ZeroDivisionError(method)


@dataclass(frozen=True)
class TableTokens:
    """token -> bytes, given by a list."""

    pieces: Sequence[bytes]

    def token_bytes(self, token: int, /) -> bytes:
        return self.pieces[token]


@dataclass
class ScriptedDrafter:
    """Knows the plain output and says it, wrong where `wrong(output position)` says so.

    With `branches` each true token gets that many wrong siblings before it, as a tree. It is its
    own drafting, and checks that it hears of every committed token exactly once.
    """

    output: Sequence[int]
    wrong: Callable[[int], bool] = lambda at: False
    vocab: int = 1 << 30
    branches: int = 0
    name: str = "scripted"
    known: list[int] = field(default_factory=list)
    prompt: int = 0

    def start(self, prompt: Sequence[int]) -> ScriptedDrafter:
        self.known, self.prompt = list(prompt), len(prompt)
        return self

    def observe(self, tokens: Sequence[int]) -> None:
        self.known += tokens

    def propose(self, context: Sequence[int], k: int) -> Draft:
        assert self.known == list(context)
        at = len(context) - self.prompt
        said = [
            (token + 1) % self.vocab if self.wrong(at + i) else token
            for i, token in enumerate(self.output[at : at + k])
        ]
        return self._tree(said, k) if self.branches else Draft(tuple(said))

    def _tree(self, said: Sequence[int], k: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in said:
            for sibling in range(self.branches, -1, -1):
                tokens.append((token + sibling) % self.vocab)
                parents.append(parent)
            parent = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents)).cut(k)
