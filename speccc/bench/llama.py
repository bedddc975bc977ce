"""llama.cpp behind the same session interface, by its low-level decode with logits on every row.

Needs the extra `bench` (llama-cpp-python). Drafts come from the same n-gram drafter and the same
controller as ours, so that only the engines differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from speccc.errors import InputError, SpecccError, UnsupportedError
from speccc.runtime.controller import AdaptiveController
from speccc.runtime.generate import Generation, collect, generate
from speccc.runtime.ngram import NgramDrafter
from speccc.runtime.protocols import Logits, Session
from speccc.runtime.round_cost import RoundCost
from speccc.runtime.verify_cost import FLAT_GUESS, VerifyCost

PREFILL_ROWS = 512  # llama.cpp's default micro-batch


def binding() -> Any:
    """The llama_cpp module; UnsupportedError when the extra is not installed."""
    try:
        import llama_cpp
    except ImportError as error:
        raise UnsupportedError(
            f"{error}; pip install 'speccc[bench]'", where="llama-cpp-python"
        ) from None
    return llama_cpp


class LlamaSession:
    """One llama.cpp context. `forward` returns a view that the next call overwrites."""

    def __init__(self, model: Any, context: int, threads: int, vocab: int) -> None:
        self._api = binding()
        params = self._api.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = min(PREFILL_ROWS, context)
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._handle = self._api.llama_init_from_model(model, params)
        if not self._handle:
            raise SpecccError("llama.cpp could not make a context", where="llama.cpp")
        self._memory = self._api.llama_get_memory(self._handle)
        self._batch = self._api.llama_batch_init(params.n_batch, 0, 1)
        self._rows = int(params.n_batch)
        self._vocab = vocab
        self._context = context
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""
        return self._length

    @property
    def context(self) -> int:
        """The most tokens the KV cache can hold."""
        return self._context

    def forward(self, tokens: Sequence[int], *, parents: Sequence[int] | None = None) -> Logits:
        """Append a chain of tokens; float32 logits [m, vocab]."""
        if parents is not None:
            raise UnsupportedError("trees are not measured with llama.cpp")
        self._decode(tokens, logits=True)
        pointer = self._api.llama_get_logits(self._handle)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, (len(tokens), self._vocab))

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append tokens without computing their logits."""
        for start in range(0, len(tokens), self._rows):
            self._decode(tokens[start : start + self._rows], logits=False)

    def _decode(self, tokens: Sequence[int], *, logits: bool) -> None:
        count = len(tokens)
        if count > self._rows or self._length + count > self._context:
            raise InputError(f"{count} tokens do not fit the context", where="llama.cpp")
        batch = self._batch
        batch.n_tokens = count
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._length + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = logits
        code = self._api.llama_decode(self._handle, batch)
        if code:
            raise SpecccError(f"llama_decode gave {code}", where="llama.cpp")
        if not logits:
            self._api.llama_synchronize(self._handle)
        self._length += count

    def keep(self, rows: Sequence[int]) -> None:
        """There are no trees to keep a path of."""
        raise UnsupportedError("trees are not measured with llama.cpp")

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on."""
        if not self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise SpecccError("llama.cpp could not cut its KV cache", where="llama.cpp")
        self._length = length

    def close(self) -> None:
        """Free the context."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._handle)


class LlamaEngine:
    """A GGUF file run by llama.cpp; a second session replaces the first."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        api = binding()
        _silence(api)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = api.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise InputError("llama.cpp cannot load it", where=str(path))
        self._vocab = api.llama_model_get_vocab(self._model)
        self._size = int(api.llama_vocab_n_tokens(self._vocab))
        self._context = context
        self._threads = threads
        self._session: LlamaSession | None = None
        self._costs: RoundCost | None = None

    def facts(self) -> dict[str, object]:
        return {"engine": "llama.cpp", "version": f"llama-cpp-python {version('llama-cpp-python')}"}

    def encode_chat(self, prompt: str) -> list[int]:
        raise UnsupportedError("prompts are encoded once, by our tokenizer")

    def encode(self, text: str) -> list[int]:
        raise UnsupportedError("prompts are encoded once, by our tokenizer")

    def session(self) -> Session:
        if self._session is not None:
            self._session.close()
        self._session = LlamaSession(self._model, self._context, self._threads, self._size)
        return self._session

    def generate(
        self, tokens: Sequence[int], count: int, drafter: str, cost: Mapping[int, float]
    ) -> Generation:
        session = self._session or self.session()
        session.truncate(0)
        known = VerifyCost.from_table(cost) if cost else FLAT_GUESS
        controller = AdaptiveController(known, costs=self._costs)
        self._costs = controller.costs  # kept from request to request, as our own engine does
        return collect(
            generate(
                session,
                self,
                tokens,
                max_tokens=count,
                drafter=NgramDrafter() if drafter == "ngram" else None,
                controller=controller,
                stop_ids=self._stop_ids,
                prefill_chunk=PREFILL_ROWS,
            )
        )

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text; empty for control tokens."""
        buffer = ctypes.create_string_buffer(256)
        api = binding()
        size = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[: max(size, 0)]

    @cached_property
    def _stop_ids(self) -> frozenset[int]:
        ends = binding().llama_vocab_is_eog
        return frozenset(i for i in range(self._size) if ends(self._vocab, i))


def _silence(api: Any) -> None:
    callback = api.llama_log_callback(_ignore)
    _KEPT.append(callback)  # llama.cpp keeps the pointer
    api.llama_log_set(callback, ctypes.c_void_p(0))


def _ignore(level: int, text: bytes, data: object) -> None:
    return None


_KEPT: list[object] = []
