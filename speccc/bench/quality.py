"""How far an engine's logits are from the dequantised float32 model's, on real text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from speccc.bench.measure import Asked
from speccc.errors import InputError
from speccc.scratch import Scratch

TOKENS = 512

Floats = npt.NDArray[np.float64]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Quality:
    """Against the reference p, over rows: share of equal argmax, mean KL(p || q) in nats.

    `perplexity` is of the text itself, each row predicting the next token.
    """

    top1_agreement: float
    mean_kl: float
    max_kl: float
    perplexity: float
    rows: int

    def document(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


def log_softmax(logits: npt.NDArray[np.float32]) -> Floats:
    """Row-wise log-probabilities in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def compare(
    reference: npt.NDArray[np.float32],
    logits: npt.NDArray[np.float32],
    tokens: Sequence[int],
) -> Quality:
    """Both f32 [n, vocab] over the same n tokens. InputError when the shapes differ."""
    if reference.shape != logits.shape or len(tokens) != len(logits):
        raise InputError(f"{logits.shape} is not {reference.shape}", where="logits")
    kl, agree, loss = [], [], []
    for row in range(len(tokens)):  # row by row: a whole vocabulary in float64 is large
        p, q = log_softmax(reference[row]), log_softmax(logits[row])
        kl.append(float((np.exp(p) * (p - q)).sum()))
        agree.append(int(reference[row].argmax()) == int(logits[row].argmax()))
        if row + 1 < len(tokens):
            loss.append(-float(q[tokens[row + 1]]))
    return Quality(
        top1_agreement=float(np.mean(agree)),
        mean_kl=float(np.mean(kl)),
        max_kl=max(kl),
        perplexity=float(np.exp(np.mean(loss))) if loss else 1.0,
        rows=len(tokens),
    )


def measure_quality(
    reference: Asked,
    engines: Sequence[Asked],
    tokens: Sequence[int],
    report: Report = lambda work, done, total: None,
) -> dict[str, Quality]:
    """Each engine by kind against the reference, which is compared with itself as well."""
    text = list(tokens[:TOKENS])
    with Scratch() as folder:
        base = _logits(reference, text, folder)
        report("quality", 1, len(engines) + 1)
        out = {reference.kind: compare(base, base, text)}
        for i, engine in enumerate(engines):
            out[engine.kind] = compare(base, _logits(engine, text, folder), text)
            report("quality", i + 2, len(engines) + 1)
        return out


def _logits(engine: Asked, tokens: list[int], folder: Path) -> npt.NDArray[np.float32]:
    path = folder / f"{engine.kind}.npy"
    engine.ask("logits", tokens=tokens, path=str(path))
    rows: npt.NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    return rows
