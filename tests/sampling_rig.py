"""What every device must do for sampling: the largest logits in order, and so the CPU's text."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import numpy as np
from cpu_rig import Spec, compiled, same_bits
from table_session import ScriptedDrafter, TableTokens
from test_numerics import tokens_of

from speccc.runtime.controller import FixedController
from speccc.runtime.generate import Generation, collect, generate
from speccc.runtime.sampling import SamplingParams
from speccc.runtime.session import StepSession

LETTERS = TableTokens([bytes([n % 256]) for n in range(300)])
SAMPLING = SamplingParams(0.9, 8, 0.95, 0.02, seed=11)
COUNT = 8


@dataclass(frozen=True)
class Sampled:
    """A device's session of a tiny model beside the CPU's."""

    device: StepSession
    spec: Spec

    def check(self) -> None:
        """The device's session is emptied before and after."""
        cpu = compiled(self.spec).session(context=self.device.context)
        assert isinstance(cpu, StepSession)
        self.device.truncate(0)
        self._same_tops(cpu)
        self._same_text(cpu)
        self.device.truncate(0)

    def _same_tops(self, cpu: StepSession) -> None:
        """Of a chain and of a tree; then all logits of a row, and picks."""
        tokens, tree = tokens_of(self.spec.tiny, 12), [-1, 0, 0, -1]
        assert self.device.most_top == 64
        for part, k, parents in ((tokens[:5], 3, None), (tokens[5:9], 12, tree)):
            logits = cpu.forward(part, parents=parents)
            cpu.truncate(cpu.length - len(part))
            ours, theirs = (s.top(part, k, parents=parents) for s in (self.device, cpu))
            assert same_bits(ours.values, np.sort(logits, axis=1)[:, : -k - 1 : -1])
            assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
        for s in (self.device, cpu):
            s.keep([0, 2])
        assert same_bits(self.device.forward(tokens[9:10]), cpu.forward(tokens[9:10]))
        assert same_bits(self.device.pick(tokens[10:]), cpu.pick(tokens[10:]))

    def _same_text(self, cpu: StepSession) -> None:
        """Plain, with a chain of drafts and with a tree; no row of logits leaves the device."""
        want = self._generated(cpu).tokens
        with mock.patch.object(self.device, "forward", side_effect=AssertionError):
            assert self._generated(self.device).tokens == want
            for branches in (0, 1):
                done = self._generated(
                    self.device,
                    ScriptedDrafter(want, lambda at: at in (2, 5), self.spec.tiny.vocab, branches),
                )
                assert done.tokens == want
                assert done.stats.rounds < COUNT

    def _generated(
        self, session: StepSession, drafter: ScriptedDrafter | None = None
    ) -> Generation:
        session.truncate(0)
        options = {"max_tokens": COUNT, "drafter": drafter, "controller": FixedController(4)}
        prompt = tokens_of(self.spec.tiny, 4)
        return collect(generate(session, LETTERS, prompt, sampling=SAMPLING, **options))
