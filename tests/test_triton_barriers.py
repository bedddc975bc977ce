"""Barriers inside a Triton program: every two accesses that meet are kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_rig import Spec
from models import Tiny
from test_numerics import PlanSession
from triton_barriers import BARRIER, Race, check_barriers, functions
from triton_rig import rendered

from speccc.targets.triton.schedule import Shape

SPECS = {
    "q4_1, kv i8": Spec(Tiny(seed=2, layers=1), "q4_1", "i8"),
    "f16, kv f16": Spec(Tiny(seed=4, layers=1), "f16"),
}


def source(spec: Spec, folder: Path, fill: int) -> str:
    plan = PlanSession(spec, folder, slots=16).lowered.plan
    return rendered(plan, Shape(fill=fill)).kernel.source


@pytest.mark.parametrize("which", SPECS)
@pytest.mark.parametrize("fill", [1, 64])
def test_no_accesses_meet(which: str, fill: int, tmp_path: Path) -> None:
    """In every phase of a model, for wide tiles and narrow ones."""
    for lines in functions(source(SPECS[which], tmp_path, fill)):
        check_barriers(lines)


def test_a_missing_barrier_is_found(tmp_path: Path) -> None:
    """Without any barriers each phase that keeps something in memory has a race; with one less
    in its softmax or its prologue there is one too."""
    bodies = list(functions(source(SPECS["q4_1, kv i8"], tmp_path, 1)))
    bare = [[line for line in body if line.strip() != BARRIER] for body in bodies]
    racing = [body[0] for body in bare if _races(body)]
    assert len(racing) == 6  # qkv, softmax, the attention's output, ffn's two, the head
    needed = [
        _races(body[:n] + body[n + 1 :])
        for body in bodies
        for n, line in enumerate(body)
        if line.strip() == BARRIER
    ]
    assert sum(needed) > 25


def _races(lines: list[str]) -> bool:
    try:
        check_barriers(lines)
    except Race:
        return True
    return False
