"""Spaces: defaults are legal, what is enumerated is what is allowed, neighbours are mutual."""

from __future__ import annotations

from dataclasses import fields
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import Tiny
from tune_rig import lowered_tiny

from speccc.errors import VerifyError
from speccc.ir.plan import phases
from speccc.ir.schedule import Schedule
from speccc.ir.space import Choice, Constraint, Flag, Pow2, Space
from speccc.ir.tile import ScaledDot, walk
from speccc.targets.cpu.isa import ISAS
from speccc.targets.cpu.space import _PARAMS, config_of, schedule_of, space

AREA = Constraint("area", "a * b is at most 8", lambda c: int(c["a"]) * int(c["b"]) <= 8)
SMALL = Space(
    (("a", Pow2(1, 8, 4)), ("b", Choice((1, 2, 3), 1)), ("c", Flag(True))), constraints=(AREA,)
)


def test_what_is_enumerated_is_exactly_what_is_legal() -> None:
    found = [tuple(c.values()) for c in SMALL.enumerate()]
    expected = [
        (a, b, c) for a in (1, 2, 4, 8) for b in (1, 2, 3) for c in (False, True) if a * b <= 8
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"a": 4, "b": 1}, "c is missing"),
        ({"a": 4, "b": 1, "c": True, "d": 1}, "d is no choice here"),
        ({"a": 3, "b": 1, "c": True}, "a cannot be 3"),
        ({"a": True, "b": 1, "c": True}, "a cannot be True"),
        ({"a": 4, "b": 1, "c": 1}, "c cannot be 1"),
        ({"a": 8, "b": 2, "c": True}, "a * b is at most 8"),
        ({"a": 8, "b": 1, "c": True}, None),
    ],
)
def test_why_not(config: dict[str, int], reason: str | None) -> None:
    assert SMALL.why_not(config) == reason


@given(st.integers(0, 1000))
def test_samples_and_their_neighbours_are_legal_and_mutual(seed: int) -> None:
    config = SMALL.sample(Random(seed))
    assert SMALL.why_not(config) is None
    for near in SMALL.neighbors(config):
        assert SMALL.why_not(near) is None
        assert sum(near[name] != config[name] for name in config) == 1
        assert config in SMALL.neighbors(near)


def test_a_sample_of_a_space_with_few_legal_points_is_one_of_them() -> None:
    lonely = Constraint("lonely", "x is the default", lambda c: c["x"] == 512)
    one = Space((("x", Choice(tuple(range(2000)), 512)),), (lonely,))
    assert one.sample(Random(0)) == {"x": 512}


def test_powers_of_two() -> None:
    assert Pow2(4, 32, 8).values() == (4, 8, 16, 32)
    off = Pow2(512, 2048, 0, zero=True)
    assert off.values() == (0, 512, 1024, 2048)
    assert (off.neighbors(0), off.neighbors(512), off.neighbors(2048)) == (
        (512,), (0, 1024), (1024,),
    )  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pow2(3, 8, 4),
        lambda: Pow2(8, 4, 4),
        lambda: Pow2(1, 8, 3),
        lambda: Choice((1, 2), 3),
        lambda: Choice((1, 1), 1),
        lambda: Space((("a", Flag()), ("a", Flag()))),
        lambda: Space((("a", Pow2(1, 16, 16)), ("b", Choice((1,), 1))), (AREA,)),
    ],
)
def test_a_space_that_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(VerifyError):
        make()  # type: ignore[operator]


def test_the_fingerprint_is_the_content() -> None:
    def of(*params: tuple[str, object]) -> str:
        return Space(params).fingerprint()  # type: ignore[arg-type]

    first = of(("a", Pow2(1, 8, 4)))
    assert first == of(("a", Pow2(1, 8, 4)))
    others = {
        of(("a", Pow2(1, 8, 8))), of(("b", Pow2(1, 8, 4))), of(("a", Pow2(1, 16, 4))),
        SMALL.fingerprint(), Space(SMALL.params).fingerprint(),
    }  # fmt: skip
    assert len(others | {first}) == 6


def test_every_field_of_a_schedule_has_a_rule() -> None:
    assert tuple(_PARAMS) == tuple(f.name for f in fields(Schedule))


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda i: i.name)
@pytest.mark.parametrize("fmt", ["q4_1", "f16"])
def test_kernels_have_the_choices_their_programs_have(fmt: str, isa: object) -> None:
    kernels = list(phases(lowered_tiny(Tiny(hidden=64, ffn=128), fmt).plan.body))
    for kernel in kernels:
        found = space(kernel, isa)  # type: ignore[arg-type]
        names = {name for name, _ in found.params}
        dots = [s for s in walk(kernel.body) if isinstance(s, ScaledDot)]
        assert ("unroll" in names) == bool(dots)
        assert not dots or {"rows", "prefetch", "far", "deal"} <= names
        # The default configuration is the default schedule, and back.
        assert schedule_of(found.default()) == Schedule()
        for config in found.enumerate():
            assert config_of(schedule_of(config), found) == config
            unroll = config.get("unroll", 1)
            assert all(dot.w.blocks % int(unroll) == 0 for dot in dots)
    with_dots = [k for k in kernels if any(isinstance(s, ScaledDot) for s in walk(k.body))]
    assert bool(with_dots) == (fmt == "q4_1")


def test_a_kernel_without_weights_has_few_choices() -> None:
    for kernel in phases(lowered_tiny(Tiny(), "q8_0").plan.body):
        if not any(isinstance(s, ScaledDot) for s in walk(kernel.body)):
            names = {name for name, _ in space(kernel, ISAS["avx2"]).params}
            assert names <= {"deal", "rows"}, kernel.name
