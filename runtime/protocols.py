"""What the loop asks of a session and of a tokenizer: nothing else of theirs is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Picks = npt.NDArray[np.int32]


class Tops(NamedTuple):
    """The k largest logits of each row, the larger first, of equals the lower token: f32 and i32
    [m, k]. A NaN counts as the largest. A value of -infinity has no token."""

    values: Logits
    tokens: Picks


class Session(Protocol):
    """One context of a target model: a KV cache that grows by `forward` and is cut back at will."""

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""

    @property
    def context(self) -> int:
        """The most tokens the KV cache can hold."""

    def forward(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Logits:
        """Append m tokens; float32 logits [m, vocab], row i predicting what follows token i.

        `parents[i]` is the index of token i's parent among these tokens, or -1 for the end of the
        context; without it token i follows token i - 1. After a call with `parents`, `keep` or
        `truncate` must come before the next `forward`.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Of the rows of the last `forward(parents=...)` keep one path, root first."""

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on."""


@runtime_checkable
class PrefillSession(Protocol):
    """A session that can append tokens without computing their logits."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append tokens; the state afterwards is bit for bit the one `forward` leaves."""


@runtime_checkable
class PickSession(Protocol):
    """A session that can choose greedily by itself, which spares the logits."""

    def pick(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Picks:
        """Append tokens as `forward` does; i32 [m], each argmax, -1 where it is not finite."""


@runtime_checkable
class TopSession(Protocol):
    """A session that can find the largest logits by itself, which spares reading all of them."""

    @property
    def most_top(self) -> int:
        """The most that `top` gives of a row, fewer than all; 0 for a session that cannot."""

    def top(self, tokens: Sequence[int], k: int, *, parents: Sequence[int] | None = None) -> Tops:
        """Append tokens as `forward` does; the k largest logits of each row."""


class TokenBytes(Protocol):
    """The one thing the loop needs of a tokenizer."""

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes a token adds to the text; empty for control tokens."""
