"""What the tests of Triton texts share: plans run by the interpreter, one step or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cpu_rig import Spec
from emulation.triton_interpret import TritonMachine
from test_numerics import PlanSession

from speccc.ir.expr import Var
from speccc.ir.plan import Plan
from speccc.ir.tile import Buf
from speccc.ir.types import DTYPES
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.step import BARRIER, WORDS, StepText, render_step

Array = npt.NDArray[np.generic]
MOST = 64
"""The bound of every size of a plan in these tests, as far as a worker's memory goes."""


def rendered(plan: Plan, shape: Shape | None = None) -> StepText:
    """A plan's text; its tiles are wide even where there is little to do."""
    bufs = tuple(b.buf for b in plan.bufs)
    limits = dict.fromkeys(plan.sizes, MOST)
    return render_step(plan, bufs, shape or Shape(fill=1), limits, "the interpreter")


@dataclass
class Stepper:
    """A step under the interpreter, with its barrier and its workers' memory, full of garbage."""

    machine: TritonMachine
    text: StepText
    workers: int = 1
    own: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for t, n in self.text.own.items():
            garbage = np.full(n * self.workers, 0x55, np.uint8).astype(DTYPES[t].numpy)
            self.own[f"scratch_{t}"] = self.machine.share(garbage)
        if self.text.barriers:
            self.own[BARRIER] = self.machine.empty((WORDS,), np.int64)

    def run(self, bufs: Mapping[Buf, Array], sizes: Mapping[Var, int]) -> None:
        """One step in place on the machine's arrays."""
        args: dict[str, Array | int | float | bool] = dict(self.own)
        args |= {self.text.args[b]: a for b, a in bufs.items()}
        args |= {self.text.args[v]: int(sizes[v]) for v in self.text.scalars}
        kernel = self.text.kernel
        self.machine.run(kernel.source, kernel.name, (self.workers,), args)


def stepped(
    machine: TritonMachine,
    text: StepText,
    arrays: Mapping[Buf, Array],
    sizes: Mapping[Var, int],
    workers: int = 1,
) -> dict[Buf, Array]:
    """The arrays after one step on copies of them."""
    own = {b: machine.share(a) for b, a in arrays.items()}
    Stepper(machine, text, workers).run(own, sizes)
    return own


def golden_tokens(spec: Spec, folder: Path, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What a model says after a prompt, by the golden machine without drafts."""
    golden, said = PlanSession(spec, folder), list(prompt)
    logits = golden.forward(prompt)
    while len(said) < len(prompt) + count:
        said.append(int(logits[-1].argmax()))
        logits = golden.forward(said[-1:])
    return tuple(said[len(prompt) :])
