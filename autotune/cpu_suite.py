"""The host CPU's step as a suite: candidates are compiled whole and run as sessions run them."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import numpy as np

from speccc.autotune import golden
from speccc.autotune.cpu_job import PROMPT, WIDTHS, CpuJob
from speccc.autotune.facts import Facts
from speccc.autotune.step_space import step_space
from speccc.errors import InputError
from speccc.ir.plan import Array, Plan, phases
from speccc.ir.schedule import Schedule, Schedules
from speccc.ir.tile import Kernel
from speccc.passes.plan_memory import Arena, PlanMemory
from speccc.runtime.cores import cores
from speccc.runtime.session import CpuSession
from speccc.targets.cpu.built import Built
from speccc.targets.cpu.isa import by_name
from speccc.targets.cpu.kernel_function import KernelFunction, kernel_function
from speccc.targets.cpu.object_store import MemoryObjects
from speccc.targets.cpu.target import CpuTarget

CHECK = (13, 8, 7, 6, 5, 4, 3, 2, 1, 16)
"""Rows of the steps of the check case: every height of a row tile, past the edge of a KV tile."""


class CpuCandidate:
    """A built step in a session of its own."""

    def __init__(self, built: Built, session: CpuSession) -> None:
        """The session runs the code on all threads."""
        self.code, self.session = built, session

    def bits(self) -> bytes:
        """Logits and picks of a text fed in steps of many widths."""
        return _hash(self.session, _fitting(self.session.context))

    def run(self, m: int) -> float:
        """One step of m rows after a prompt."""
        prompt = min(PROMPT, self.session.context - max(WIDTHS))
        if self.session.length != prompt:
            self.session.truncate(0)
            self.session.prefill(_tokens(0, prompt, self.session.vocab))
        ids = _tokens(prompt, m, self.session.vocab)
        begun = time.perf_counter()
        self.session.pick(ids)
        spent = time.perf_counter() - begun
        self.session.truncate(prompt)
        return spent


class CpuSuite:
    """Builds and judges the schedules of one step."""

    widths = WIDTHS

    def __init__(self, job: CpuJob) -> None:
        """Maps the weights; nothing is built yet."""
        self.job = job
        self.target = CpuTarget(by_name(job.isa), jobs=cores())
        self.space = step_space(job.plan, self.target.isa)
        # TVM takes no read-only arrays; copy on write, and nobody writes.
        self.weights = np.memmap(job.weights, np.uint8, "c")
        self.vectors = np.memmap(job.vectors, np.float32, "c")
        # A kernel whose schedule stays is neither rendered nor built again.
        self.objects = job.objects or MemoryObjects()
        self.functions: dict[tuple[Kernel, Schedule], KernelFunction] = {}

    def build(self, config: Facts) -> CpuCandidate:
        """InputError for a configuration that the space does not have."""
        reason = self.space.why_not(config)
        if reason is not None:
            raise InputError(reason)
        code = self._code(self.job.plan, self.job.arena, self.space.schedules(config))
        if self.job.default_key and not config:
            self.objects.put(self.job.default_key, code.to_bytes())
        return CpuCandidate(code, self._session(code, self.job.threads))

    def golden(self, default: CpuCandidate, bits: bytes) -> str:
        """One layer against the NumPy machine; then the whole step, token by token on one thread,
        against itself in wider steps on all: a token's logits do not depend on its company."""
        small = golden.one_layer(self.job.plan)
        code = self._code(small, PlanMemory(self.job.bounds).run(small), {})
        arrays: dict[str, Array] = {"weights": self.weights, "vectors": self.vectors}
        reason = golden.differs(small, code, arrays)
        if reason:
            return reason
        alone = self._session(default.code, 1)
        if _by_token(alone, sum(_fitting(self.job.context))) != bits:
            return "a token's logits depend on how many are computed with it"
        return ""

    def _code(self, plan: Plan, arena: Arena, schedules: Schedules) -> Built:
        functions = {
            kernel: self._function(kernel, schedules.get(kernel.name, Schedule()))
            for kernel in phases(plan.body)
        }
        rendered = self.target.assemble(plan, arena, functions)
        library = self.target.library(rendered, self.objects)
        return Built(rendered.signature, rendered.source, library)

    def _function(self, kernel: Kernel, schedule: Schedule) -> KernelFunction:
        key = (kernel, schedule)
        if key not in self.functions:
            self.functions[key] = kernel_function(
                self.target.isa, kernel, self.job.bounds, schedule
            )
        return self.functions[key]

    def _session(self, code: Built, threads: int) -> CpuSession:
        signature = code.signature
        spec = replace(
            self.job.step,
            arena=signature.arena,
            scratch=dict(signature.scratch),
            sizes=signature.sizes,
        )
        library = np.frombuffer(code.library, np.uint8)
        return CpuSession(
            spec, library, self.weights, self.vectors, context=self.job.context, threads=threads
        )


def suite(payload: object) -> CpuSuite:
    """The suite of a `CpuJob`."""
    if not isinstance(payload, CpuJob):
        raise InputError(f"a CPU job is needed, not {type(payload).__name__}")
    return CpuSuite(payload)


def _hash(session: CpuSession, widths: list[int]) -> bytes:
    """SHA-256 of the logits and picks of a text in steps of these widths, row by row."""
    logits, picks = hashlib.sha256(), hashlib.sha256()
    session.truncate(0)
    for width in widths:
        begun = session.length
        ids = _tokens(begun, width, session.vocab)
        logits.update(np.ascontiguousarray(session.forward(ids)).tobytes())
        session.truncate(begun)
        picks.update(session.pick(ids).tobytes())
    return logits.digest() + picks.digest()


def _by_token(session: CpuSession, count: int) -> bytes:
    """The same hash of a text fed token by token, each pick read off the logits."""
    logits, picks = hashlib.sha256(), hashlib.sha256()
    session.truncate(0)
    for token in _tokens(0, count, session.vocab):
        (row,) = session.forward([token])
        logits.update(row.tobytes())
        top = int(row.argmax())  # the first NaN, if there is one
        picks.update(np.int32(top if np.isfinite(row[top]) else -1).tobytes())
    return logits.digest() + picks.digest()


def _fitting(room: int) -> list[int]:
    """The widths of the check case that fit one after the other."""
    kept: list[int] = []
    for width in CHECK:
        if sum(kept) + width > room:
            break
        kept.append(width)
    return kept


def _tokens(start: int, count: int, vocab: int) -> list[int]:
    """Tokens of a fixed, varied text from a position on."""
    return [(place * 7919 + 13) % vocab for place in range(start, start + count)]
