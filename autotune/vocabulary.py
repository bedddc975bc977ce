"""The kernels that are measured and the names of their choices: all an import may speak of."""

from __future__ import annotations

from collections.abc import Mapping

from speccc.autotune.record import Record
from speccc.errors import InputError

Vocabulary = Mapping[str, frozenset[str]]

CHOICES = frozenset(
    {
        "rows",  # rows of activations held in registers
        "panels",  # weight panels a worker takes at once
        "unroll",  # blocks of K unrolled
        "prefetch",  # bytes of weights fetched ahead
        "far",  # bytes of weights fetched ahead into the second cache
        "deal",  # how a phase's units are dealt to workers
        "kv_tile",  # positions of one KV tile, within the numeric class
        "columns",  # how the rows of a step are split into passes
        "spin",  # microseconds a waiting worker spins before it sleeps
    }
)

VOCABULARY: Vocabulary = {
    "step": CHOICES,  # the whole verification step, one launch
    "matmul": CHOICES,
    "attention": CHOICES,
    "head": CHOICES,
    "verify": frozenset(),  # T(m) of the step as it was compiled: there is nothing to choose
}
"""Kernel -> names of its choices. A kernel of which records are kept gets a row here."""


def check_known(record: Record, vocabulary: Vocabulary) -> None:
    """InputError when the record's kernel or a choice of its configuration is unknown.

    A step's choices are those of its kernels, `kernel.choice`; which kernels it has is known when
    it is tuned.
    """
    kernel = record.key.kernel
    if kernel not in vocabulary:
        raise InputError(
            f"unknown kernel {kernel!r}; known: {', '.join(sorted(vocabulary))}", where="key.kernel"
        )
    known = vocabulary[kernel]
    unknown = sorted(name for name, _ in record.config if name.rpartition(".")[2] not in known)
    if unknown:
        raise InputError(f"kernel {kernel} has no choice {unknown[0]!r}", where="config")
