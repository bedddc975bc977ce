"""A session: one sequence of tokens in a KV cache, extended by steps and cut back at will."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import InputError
from speccc.ir.types import DTYPES
from speccc.runtime.aligned import aligned
from speccc.runtime.cores import cores
from speccc.runtime.devices.cpu import CpuStep
from speccc.runtime.protocols import Tops
from speccc.runtime.rows import Splits, chain, check_path, passes, tree, whole_number, whole_numbers

Logits = npt.NDArray[np.float32]
Picks = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int32]
Array = npt.NDArray[Any]
LANES = 16
TOPS = ("top_values", "top_tokens")


def sizes_of(tiles: int) -> dict[str, int]:
    """The sizes of a call that follow from the number of tiles of 16 slots."""
    return {"slots": tiles * LANES, "tiles": tiles}


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """A RoPE table: radians per position of each pair (0 where a pair does not turn)."""

    name: str
    frequencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BufSpec:
    """A parameter of the step: element type and shape, whose names are sizes of the call; whose it
    is, as `speccc.ir.plan.Role` has it."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    role: str


@dataclass(frozen=True, slots=True)
class StepSpec:
    """How to call the step: its parameters in order, then arena, scratch, sizes and workers.

    `top`: how many of a row's largest logits it can find, in the buffers `TOPS`.
    """

    symbol: str
    bufs: tuple[BufSpec, ...]
    arena: int
    scratch: dict[str, int]
    sizes: tuple[str, ...]
    logits: str
    picks: str
    vocab: int
    max_rows: int
    ropes: tuple[RopeSpec, ...]
    top: int = 0


class StepSession(ABC):
    """A `Session` whose device runs whole steps. Not thread-safe; several may share one model.

    What a device adds: running a step, reading its rows, and moving a slot of the cache.
    """

    def __init__(
        self, spec: StepSpec, *, context: int, threads: int, splits: Splits | None = None
    ) -> None:
        """An empty sequence of at most `context` tokens."""
        self.spec, self.context, self.splits = spec, context, splits or {}
        self.threads = threads
        self.length = 0
        self.launches: tuple[int, int] | None = None
        """The fewest and the most kernels that were launched for a step; None before the first."""
        self._parents: tuple[int, ...] = ()
        self._base = 0
        self._tiles = -(-context // LANES)

    @abstractmethod
    def _execute(self, rows: Mapping[str, Ints], sizes: Mapping[str, int]) -> int:
        """Runs a step over the rows of the input buffers; `sizes` but for those of weights.

        Returns how many kernels were launched for it.
        """

    @abstractmethod
    def _result(self, name: str, rows: int) -> Array:
        """The first rows of an output of the last step; the next one may overwrite them."""

    @abstractmethod
    def _move(self, source: int, to: int) -> None:
        """Copies a slot of the cache to another, in every layer."""

    @property
    def steps(self) -> str:
        """How a step runs: `compiled` into one call, `recorded` once and replayed, or `launched`
        one kernel after the other."""
        return "compiled"

    @property
    def vocab(self) -> int:
        """Columns of the logits."""
        return self.spec.vocab

    def forward(
        self,
        tokens: Sequence[int],
        *,
        parents: Sequence[int] | None = None,
        last: int | None = None,
    ) -> Logits:
        """Appends tokens and returns their logits f32 [m, vocab], or of the `last` rows only.

        With `parents` (index among these tokens, -1 for the end of the context) the rows are a
        tree and `keep` chooses one path of it. InputError when they do not fit or do not exist.
        """
        ids = self._checked(tokens)
        count = len(ids) if last is None else whole_number(last, "last")
        if not 0 <= count <= len(ids):
            raise InputError(f"the last {count} rows of {len(ids)} do not exist")
        out = np.empty((count, self.spec.vocab), np.float32)
        for to in self._advance(ids, parents, len(ids) - count, logits=True):
            rows = self._result(self.spec.logits, to.stop - to.start)
            out[to] = rows[:, : self.spec.vocab]
        return out

    def pick(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Picks:
        """Appends tokens as `forward` does; the greedy choice after each, i32 [m].

        That is the lowest id among the largest logits, or -1 where the largest is not finite (a NaN
        counts as the largest). No logits are written.
        """
        ids = self._checked(tokens)
        out = np.empty(len(ids), np.int32)
        for to in self._advance(ids, parents, 0, logits=False):
            out[to] = self._result(self.spec.picks, to.stop - to.start)
        return out

    @property
    def most_top(self) -> int:
        """The most that `top` gives of a row, fewer than all; 0 for a step that cannot."""
        return min(self.spec.top, self.spec.vocab - 1)

    def top(self, tokens: Sequence[int], k: int, *, parents: Sequence[int] | None = None) -> Tops:
        """Appends tokens as `forward` does; the k largest logits after each, f32 and i32 [m, k].

        The larger first, of equals the lower token; a NaN counts as the largest. Where less than k
        are above -infinity the rest has that value, and tokens that mean nothing. InputError
        unless 1 <= k <= `most_top`.
        """
        count = whole_number(k, "k")
        if not 1 <= count <= self.most_top:
            raise InputError(f"the {count} largest logits: this step finds 1 to {self.most_top}")
        ids = self._checked(tokens)
        shape = (len(ids), count)
        out = Tops(np.empty(shape, np.float32), np.empty(shape, np.int32))
        for to in self._advance(ids, parents, 0, logits=True, top=count):
            for name, found in zip(TOPS, out, strict=True):
                found[to] = self._result(name, to.stop - to.start)[:, :count]
        return out

    def prefill(self, tokens: Sequence[int]) -> None:
        """Appends tokens whose logits nobody asks for: the head does not run."""
        ids = self._checked(tokens)
        for _ in self._advance(ids, None, len(ids), logits=False):
            pass
        self._parents = ()

    def _advance(
        self,
        ids: Ints,
        parents: Sequence[int] | None,
        first: int,
        *,
        logits: bool,
        top: int = 0,
    ) -> Iterator[slice]:
        """Runs all rows, the head on rows `first` on; yields where the rows of a step belong."""
        base, limit = self.length, self.spec.max_rows
        if parents is not None:
            links = whole_numbers(parents, "parents")
            if len(links) != len(ids) or len(ids) > limit:
                raise InputError(f"a tree takes one parent a token and at most {limit} tokens")
            depth, path = tree(links.tolist(), limit)
            self._run(ids, depth, path, first, logits=logits, top=top)
            self._base, self._parents = base, tuple(links.tolist())
            yield slice(0, len(ids) - first)
            return
        self._parents = ()
        at = 0
        for taken, width in passes(len(ids), limit, self.splits):
            part = ids[at : at + taken]
            skipped = min(max(first - at, 0), len(part))
            spare = min(width - len(part), self.context - self.length - len(part))
            rows = np.append(part, np.repeat(part[-1:], spare)) if spare else part
            self._run(rows, *chain(len(rows), limit), skipped, logits=logits, top=top)
            self.length -= spare
            if skipped < len(part):
                yield slice(at + skipped - first, at + len(part) - first)
            at += len(part)
        self._base, self._parents = base, tuple(range(-1, len(ids) - 1))

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps one root-to-node path of the last rows and drops the others.

        InputError when `rows` is no such path, or forward was not the last call.
        """
        if not self._parents:
            raise InputError("there are no rows to keep: call forward first")
        check_path(rows, self._parents)
        base = self._base
        for to, row in enumerate(rows):
            if row != to:
                self._move(base + row, base + to)
        self.length = base + len(rows)
        self._parents = ()

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""
        length = whole_number(length, "length")
        if not 0 <= length <= self.length:
            raise InputError(f"cannot cut {self.length} tokens to {length}")
        self.length = length
        self._parents = ()

    def _checked(self, tokens: Sequence[int]) -> Ints:
        ids = whole_numbers(tokens, "tokens")
        if not len(ids):
            raise InputError("no tokens to run")
        if ids.min() < 0 or ids.max() >= self.spec.vocab:
            bad = ids[(ids < 0) | (ids >= self.spec.vocab)][0]
            raise InputError(f"token {bad} is outside the vocabulary of {self.spec.vocab}")
        if self.length + len(ids) > self.context:
            raise InputError(
                f"{self.length} + {len(ids)} tokens do not fit a context of {self.context}: "
                "make the session with a larger one (-c)"
            )
        return ids.astype(np.int32)

    def _run(
        self, ids: Ints, depth: Ints, path: Ints, skipped: int, *, logits: bool, top: int
    ) -> None:
        """One step: rows are appended, the head runs on all but the first `skipped`."""
        m = len(ids)
        rows = {"tokens": ids, "depth": depth, "positions": self.length + depth, "path": path}
        sizes = {
            "m": m,
            "length": self.length,
            **sizes_of(self._tiles),
            "head_first": skipped,
            "head_rows": m - skipped,
            "head_logits": int(logits),
            "head_top": top,
        }
        made = self._execute(rows, sizes)
        fewest, most = self.launches or (made, made)
        self.launches = min(fewest, made), max(most, made)
        self.length += m


class CpuSession(StepSession):
    """A session on the host CPU."""

    def __init__(
        self,
        spec: StepSpec,
        library: Array,
        weights: Array,
        vectors: Array,
        *,
        context: int,
        threads: int | None = None,
        splits: Splits | None = None,
    ) -> None:
        """Allocates the caches and working memory for `context` tokens."""
        super().__init__(spec, context=context, threads=threads or cores(), splits=splits)
        self._arrays = self._allocate(weights, vectors)
        self._step = CpuStep(library, spec.symbol, list(self._arrays.values()))

    def _execute(self, rows: Mapping[str, Ints], sizes: Mapping[str, int]) -> int:
        a, m = self._arrays, sizes["m"]
        for name, values in rows.items():
            a[name][:m] = values
        constants = {"weight_bytes": a["weights"].size, "vector_elements": a["vectors"].size}
        known = {**sizes, **constants}
        self._step([known[name] for name in self.spec.sizes], self.threads)
        return 1

    def _result(self, name: str, rows: int) -> Array:
        return self._arrays[name][:rows]

    def _move(self, source: int, to: int) -> None:
        k, v = self._arrays["k_cache"], self._arrays["v_cache"]
        k[:, :, to // LANES, :, to % LANES] = k[:, :, source // LANES, :, source % LANES]
        v[:, :, :, to] = v[:, :, :, source]
        for name in ("k_scale", "v_scale"):
            if name in self._arrays:
                self._arrays[name][..., to] = self._arrays[name][..., source]

    def _allocate(self, weights: Array, vectors: Array) -> dict[str, Array]:
        """Every array of the call, in the order of the step's parameters."""
        tables = rope_tables(self.spec, self._tiles * LANES)
        given = {"weights": weights, "vectors": vectors, **tables}
        arrays: dict[str, Array] = {}
        for buf, shape in buffer_shapes(self.spec, self._tiles).items():
            made = given.get(buf.name)
            arrays[buf.name] = aligned(shape, DTYPES[buf.dtype].numpy) if made is None else made
        arrays["arena"] = aligned((self.spec.arena,), np.float32)
        for name, size in self.spec.scratch.items():
            arrays[f"scratch_{name}"] = aligned((self.threads * size,), DTYPES[name].numpy)
        return arrays


def results_of(spec: StepSpec, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The outputs that a step of these sizes was run for."""
    if sizes["head_top"]:
        return TOPS
    return (spec.logits,) if sizes["head_logits"] else (spec.picks,)


def buffer_shapes(spec: StepSpec, tiles: int) -> dict[BufSpec, tuple[int, ...]]:
    """The shape of each parameter for a cache of `tiles` tiles; 0 where weights give a size."""
    sizes = {"m": spec.max_rows, **sizes_of(tiles)}
    return {
        buf: tuple(d if isinstance(d, int) else sizes.get(d, 0) for d in buf.shape)
        for buf in spec.bufs
    }


def rope_tables(spec: StepSpec, slots: int) -> dict[str, Array]:
    """Cosines and sines f32 [slots, pairs] by buffer name."""
    out: dict[str, Array] = {}
    positions = np.arange(slots, dtype=np.float64)[:, None]
    for rope in spec.ropes:
        angle = positions * np.asarray(rope.frequencies, np.float64)[None, :]
        for part, values in (("cos", np.cos(angle)), ("sin", np.sin(angle))):
            table = aligned(angle.shape, np.float32)
            table[:] = values
            out[f"{rope.name}_{part}"] = table
    return out
