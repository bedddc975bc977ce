"""A row of logits and a position -> the next token.

Temperature 0 takes the largest logit, the lowest id among equals. Otherwise the filters run in
llama.cpp's order, each on what the one before left, and all on the logits *before* temperature:

1. top-k: the k largest logits (0 or less: all);
2. top-p: the fewest of the largest whose probability reaches p, the one that crosses p included;
3. min-p: those at least `min_p` times as probable as the most probable;
4. temperature, and the pick: argmax((logit - max) / T + Gumbel(seed, position, token)), which draws
   from softmax(logit / T) over the survivors (the Gumbel-max trick).

Among equal logits at a filter's edge the lower ids stay. All arithmetic after the float32 logits is
float64. The pick depends on the row, the parameters and the position alone, so that verification is
by equality and one seed gives one text, however its tokens were batched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError, SpecccError
from speccc.runtime.protocols import Logits, Picks
from speccc.runtime.rng import counters, gumbel, vocab_counters

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Pick = Callable[[Logits, int], int]

GREEDY_BELOW = 1e-6
"""Temperatures under this are 0: no two float32 logits apart could still be swapped by noise."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; the default is greedy. Raises InputError for a value out of range."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise InputError(
                f"must be a number of 0 or more, not {self.temperature}", where="temperature"
            )
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if not 0.0 <= value <= 1.0:
                raise InputError(f"must lie between 0 and 1, not {value}", where=name)

    @property
    def greedy(self) -> bool:
        """Whether the pick is the argmax."""
        return self.temperature < GREEDY_BELOW


GREEDY = SamplingParams()


def picker(params: SamplingParams) -> Pick:
    """The function (row [vocab], absolute position of the token to pick) -> token."""
    if params.greedy:
        return lambda row, _position: pick_greedy(row)
    return lambda row, position: pick_sampled(row, position, params)


def pick_greedy(row: Logits) -> int:
    """The largest logit, the lowest id among equals; NaN or nothing finite is an error."""
    token = int(row.argmax())
    if not math.isfinite(row[token]):  # argmax stops at the first NaN
        raise SpecccError(f"the logits hold {row[token]} at token {token}", where="sampling")
    return token


def known_pick(token: int) -> int:
    """A pick that the step made itself; -1 stands for logits with nothing finite on top."""
    if token < 0:
        raise SpecccError("the largest of the logits is not finite", where="sampling")
    return token


def pick_sampled(row: Logits, position: int, params: SamplingParams) -> int:
    """The pick of the module's text at a temperature above 0."""
    top = float(row[pick_greedy(row)])
    ids = survivors(row, params)
    if ids is None:
        noise = gumbel(params.seed, position, vocab_counters(row.shape[0]))
        return _draw(row, top, noise, params)
    noise = gumbel(params.seed, position, counters(ids))
    return int(ids[_draw(row[ids], top, noise, params)])


def pick_among(values: Logits, tokens: Picks, position: int, params: SamplingParams) -> int:
    """`pick_sampled` from the `params.top_k` largest logits alone, in order (see `Tops`).

    The filters and the draw see the same numbers in the same order, so the token is the same.
    """
    top = float(values[0])
    if not math.isfinite(top):
        raise SpecccError("the largest of the logits is not finite", where="sampling")
    there = tokens[values > -np.inf]
    order = np.argsort(there)
    ids, kept = there[order].astype(np.int64), values[: there.shape[0]][order]
    for keep in _filters(params):
        chosen = keep(kept)
        ids, kept = ids[chosen], kept[chosen]
    noise = gumbel(params.seed, position, counters(ids))
    return int(ids[_draw(kept, top, noise, params)])


def _draw(values: Logits, top: float, noise: Floats, params: SamplingParams) -> int:
    """The index of argmax((value - top) / T + noise)."""
    shifted = values.astype(np.float64)
    shifted -= top
    shifted /= params.temperature
    shifted += noise
    return int(shifted.argmax())


def survivors(row: Logits, params: SamplingParams) -> Ids | None:
    """Ids the filters leave, ascending; None when no filter is on."""
    ids: Ids | None = None
    if 0 < params.top_k < row.shape[0]:
        ids = _largest(row, params.top_k)
    for keep in _filters(params):
        ids = _within(row, ids, keep)
    return ids


def _filters(params: SamplingParams) -> list[Callable[[Logits], Ids]]:
    """The filters behind top-k that are on: logits -> indices of those that stay."""
    out: list[Callable[[Logits], Ids]] = []
    if params.top_p < 1.0:
        out.append(lambda values: _nucleus(values, params.top_p))
    if params.min_p > 0.0:
        out.append(lambda values: _probable(values, params.min_p))
    return out


def log_prob(row: Logits, token: int) -> float:
    """log softmax(row)[token]: the model's own, before temperature and filters."""
    values = row.astype(np.float64)
    values -= values.max()
    return float(values[token] - math.log(np.exp(values).sum()))


def _within(row: Logits, ids: Ids | None, keep: Callable[[Logits], Ids]) -> Ids:
    return keep(row) if ids is None else ids[keep(row[ids])]


def _largest(values: Logits, k: int) -> Ids:
    """Indices of the k largest; barred tokens (-inf) are left out even when fewer remain."""
    near = np.flatnonzero(values >= values.max() - np.float32(8.0))
    if near.shape[0] < k:
        near = np.flatnonzero(values > -np.inf)
    if near.shape[0] <= k:
        return near
    few = values[near]  # the k largest are among these: selecting from all is 10 times slower
    return near[_cut(few, float(np.partition(few, -k)[-k]), k)]


def _nucleus(values: Logits, p: float) -> Ids:
    shifted = values.astype(np.float64)
    shifted -= shifted.max()
    need = p * float(np.exp(shifted).sum())
    for reach in (4.0, 8.0, 16.0, math.inf):  # only the likely part is worth sorting
        ordered = np.sort(values[shifted >= -reach])[::-1]
        mass = np.cumsum(np.exp(ordered.astype(np.float64) - float(ordered[0])))
        if mass[-1] >= need:
            break
    k = min(int(np.searchsorted(mass, need)) + 1, ordered.shape[0])
    return _cut(values, float(ordered[k - 1]), k)


def _probable(values: Logits, min_p: float) -> Ids:
    least = float(values.max()) + math.log(min_p)
    return np.flatnonzero(values.astype(np.float64) >= least)


def _cut(values: Logits, kth: float, k: int) -> Ids:
    """Indices of the k largest of `values`, given the k-th largest: of its equals, the first."""
    above = np.flatnonzero(values > kth)
    equal = np.flatnonzero(values == kth)[: k - above.shape[0]]
    return np.sort(np.concatenate([above, equal]))
