"""One engine in a process of its own: JSON lines in, JSON lines out.

`python -m speccc.bench.worker KIND FILE CONTEXT THREADS`; a request is {"op": name, ...}, a reply
is its result or {"error": text}. Whatever the engine prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from speccc.bench.engine import Engine, Float32Engine, SpecccEngine, row_logits
from speccc.bench.llama import LlamaEngine
from speccc.errors import SpecccError
from speccc.runtime.protocols import PickSession, Session

ENGINES: dict[str, Callable[[Path, int, int], Engine]] = {
    "speccc": SpecccEngine,
    "llama.cpp": LlamaEngine,
    "float32": Float32Engine,
}

WARM_UP_S = 0.05
"""After a second of sleep a 2-core virtual machine took 20 to 30 ms to reach its pace, 15 % up."""

Request = Mapping[str, Any]
Reply = dict[str, object]


class Worker:
    """The operations, over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: Session | None = None

    def answer(self, request: Request) -> Reply:
        """One request's reply."""
        operation: Callable[[Request], Reply] = getattr(self, f"do_{request['op']}")
        return operation(request)

    def do_facts(self, request: Request) -> Reply:
        """Name, version and settings of the engine."""
        return self._engine.facts()

    def do_encode(self, request: Request) -> Reply:
        """Tokens of a text or of a chat's first message."""
        encode = self._engine.encode_chat if request["chat"] else self._engine.encode
        return {"tokens": encode(request["text"])}

    def do_verify(self, request: Request) -> Reply:
        """Milliseconds of each of `repeat` passes over `width` tokens behind `depth` others.

        A pass gives what greedy verification needs: every row's pick, or else its logits. Before
        them passes run untimed for `WARM_UP_S`, at least one: the threads have slept, the caches
        hold what the other engine read, and its threads may still spin.
        """
        tokens, width, depth = request["tokens"], request["width"], request["depth"]
        if self._session is None:
            self._session = self._engine.session()
        session = self._session
        self._fill(session, tokens, depth)
        verify = session.pick if isinstance(session, PickSession) else session.forward
        times: list[float] = []
        begun, ready = time.perf_counter(), False
        while len(times) < request["repeat"]:
            begin = time.perf_counter()
            verify(tokens[depth : depth + width])
            end = time.perf_counter()
            session.truncate(depth)
            times += [1000 * (end - begin)] if ready else []
            ready = ready or end - begun >= WARM_UP_S
        return {"ms": times}

    def _fill(self, session: Session, tokens: list[int], depth: int) -> None:
        if session.length > depth:
            session.truncate(depth)
        while session.length < depth:
            at = session.length
            session.forward(tokens[at : min(at + 32, depth)])

    def do_generate(self, request: Request) -> Reply:
        """Greedy text and what it cost."""
        self._session = None  # an engine may keep one context only
        cost = {int(width): ms for width, ms in request.get("cost", {}).items()}
        tokens, count = request["tokens"], request["count"]
        done = self._engine.generate(tokens, count, request["drafter"], cost)
        return {
            "tokens": list(done.tokens),
            "text": done.text,
            "finish_reason": done.finish_reason,
            "prefill_tok_s": done.stats.prefill_rate,
            "tok_s": done.stats.decode_rate,
            "acceptance_length": done.stats.acceptance_length,
            "acceptance_rate": done.stats.acceptance_rate,
            "tokens_per_round": done.stats.tokens_per_round,
        }

    def do_logits(self, request: Request) -> Reply:
        """Write f32 logits [n, vocab] of a text's tokens to a .npy file."""
        self._session = None
        rows = row_logits(self._engine, request["tokens"])
        np.save(request["path"], rows)
        return {"rows": len(rows)}

    def do_memory(self, request: Request) -> Reply:
        """Peak resident memory of this process in bytes (VmHWM)."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return {"peak_memory_bytes": 1024 * int(line.split()[1])}
        return {"peak_memory_bytes": None}


def serve(worker: Worker, requests: TextIO, replies: TextIO) -> None:
    """Answer requests until their stream ends."""
    for line in requests:
        try:
            reply = worker.answer(json.loads(line))
        except SpecccError as error:
            reply = {"error": str(error), "exit_code": error.exit_code}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}", "exit_code": 1}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Build the engine the arguments name, say so, then serve."""
    kind, path, context, threads = sys.argv[1:5]
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # native code prints where it likes
    try:
        worker = Worker(ENGINES[kind](Path(path), int(context), int(threads)))
    except SpecccError as error:
        replies.write(json.dumps({"error": str(error), "exit_code": error.exit_code}) + "\n")
        return
    replies.write("{}\n")
    replies.flush()
    serve(worker, sys.stdin, replies)


if __name__ == "__main__":
    main()
