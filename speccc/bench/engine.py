"""What the bench asks of an engine, and our own engine behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speccc.errors import UnsupportedError
from speccc.runtime.generate import Generation
from speccc.runtime.protocols import Session

Cost = Mapping[int, float]
Logits = npt.NDArray[np.float32]
LOGITS_ROWS = 32


class Engine(Protocol):
    """One loaded model."""

    def facts(self) -> dict[str, object]:
        """Name, version and settings, for the report."""

    def encode_chat(self, prompt: str) -> list[int]:
        """A user's message as the tokens of a chat."""

    def encode(self, text: str) -> list[int]:
        """Plain text as tokens."""

    def session(self) -> Session:
        """A fresh context."""

    def generate(self, tokens: Sequence[int], count: int, drafter: str, cost: Cost) -> Generation:
        """Greedy text of at most `count` tokens; `drafter` is "none" or "ngram".

        `cost` is the measured T(m) in milliseconds by width; an engine may know better.
        """


def row_logits(engine: Engine, tokens: Sequence[int]) -> Logits:
    """Logits of every position of a text, f32 [n, vocab], in passes of a few rows."""
    session = engine.session()
    rows = [
        np.array(session.forward(tokens[start : start + LOGITS_ROWS]))
        for start in range(0, len(tokens), LOGITS_ROWS)
    ]
    return np.concatenate(rows)


class SpecccEngine:
    """An artifact run by this project's runtime."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        from speccc.api import load

        self._model = load(path)
        self._context = context
        self._threads = threads

    def facts(self) -> dict[str, object]:
        from importlib.metadata import version

        return {"engine": "speccc", "version": version("speccc"), "isa": self._manifest("isa")}

    def _manifest(self, key: str) -> object:
        return self._model.manifest.get(key)

    def encode_chat(self, prompt: str) -> list[int]:
        if self._model.chat_template is None:
            return self.encode(prompt)
        return list(self._model.chat_tokens([{"role": "user", "content": prompt}]))

    def encode(self, text: str) -> list[int]:
        return list(self._model.tokenizer.encode(text))

    def session(self) -> Session:
        return self._model.session(context=self._context, threads=self._threads)

    def generate(self, tokens: Sequence[int], count: int, drafter: str, cost: Cost) -> Generation:
        return self._model.generate(
            list(tokens),
            max_tokens=count,
            drafter=drafter,
            context=self._context,
            threads=self._threads,
        )


class Float32Engine:
    """The graph interpreter over the dequantised weights: slow, and the yardstick of quality."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        from speccc.ir.frontends.open import open_model

        self._source = open_model(path)
        self._context = context

    def facts(self) -> dict[str, object]:
        return {"engine": "float32"}

    def encode_chat(self, prompt: str) -> list[int]:
        return self.encode(prompt)

    def encode(self, text: str) -> list[int]:
        from speccc.runtime.tokenizer import Tokenizer

        return Tokenizer(self._source.tokenizer, str(self._source.path)).encode(text)

    def session(self) -> Session:
        from speccc.bench.float32 import Float32Session

        return Float32Session(self._source, self._context)

    def generate(self, tokens: Sequence[int], count: int, drafter: str, cost: Cost) -> Generation:
        raise UnsupportedError("the float32 yardstick only computes logits")
