"""SmolLM2's picks on the stand-in of Metal against the CPU target's: a step of 1 row and one of 5.

Run as a script: all 30 layers take a minute or more, so it is no test of the suite.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from cpu_rig import compiled_smollm2
from emulation.metal_stand_in import stand_in
from metal_step import MetalModel

from speccc.emit import EmitOptions, read_model
from speccc.models import smollm2
from speccc.targets.registry import target

PROMPT = "The capital of France is"
CONTEXT = 64


def main() -> None:
    """Prints both sides' picks; an error when they differ."""
    path = smollm2()
    cpu = compiled_smollm2()
    tokens = cpu.tokenizer.encode(PROMPT)
    front = read_model(path, EmitOptions(), lambda *_: None, "metal:m4")
    with (
        tempfile.TemporaryDirectory(prefix="speccc-metal-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        ours = MetalModel(front, target("metal:m4"), stand_in(Path(folder))).session(patch, CONTEXT)
        theirs = cpu.session(context=CONTEXT)
        for part in (tokens[:1], [*tokens[1:], *tokens][:5]):
            began = time.perf_counter()
            here, there = ours.pick(part).tolist(), theirs.pick(part).tolist()
            seconds = time.perf_counter() - began
            print(f"{len(part)} rows in {seconds:.0f} s: {here}, the CPU's {there}", flush=True)
            if here != there:
                raise SystemExit("they differ")


if __name__ == "__main__":
    main()
