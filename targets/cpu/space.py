"""What may be chosen for a kernel on a CPU, read off its tile program and the instruction set.

No table of models or kernels: a kernel without row tiles has no `rows`, one that reads no packed
weights has no `prefetch`, and so on. Every configuration gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from speccc.ir.schedule import Schedule
from speccc.ir.space import Choice, Constraint, Param, Pow2, Space, Value
from speccc.ir.tile import Kernel, RowTiles, ScaledDot, Share, walk
from speccc.targets.cpu.isa import Isa

UNROLLS = (1, 2, 4)
PREFETCH = (512, 4096)
"""Bytes: a cache miss lasts about 100 ns, in which one core streams 1 to 2 KB."""
FAR = (4096, 16384)
"""Bytes: when all cores stream, memory answers several times later."""

CODE = {"avx512vnni": 32, "avxvnni": 8, "avx2": 8, "dotprod": 8, "portable": 8}
"""Most row dots of one block written out per trip, by instruction set: as many as there are
registers of 16 lanes. Longer bodies take long to compile and do not fit the instruction cache."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What of a kernel decides the choices it has."""

    heights: tuple[int, ...]
    dots: tuple[ScaledDot, ...]
    shares: bool


def space(kernel: Kernel, isa: Isa) -> Space:
    """The choices of one kernel; a space without parameters when it has none."""
    facts = _facts(kernel)
    found = ((name, make(facts)) for name, make in _PARAMS.items())
    params = tuple((name, param) for name, param in found if param is not None)
    room = CODE.get(isa.name, min(CODE.values()))
    rule = Constraint(
        "code",
        f"rows * unroll is at most {room}",
        lambda c: int(c["rows"]) * int(c["unroll"]) <= room,
    )
    both = {"rows", "unroll"} <= {name for name, _ in params}
    return Space(params, (rule,) if both else ())


def schedule_of(config: Mapping[str, Value]) -> Schedule:
    """The schedule a configuration of `space` means."""
    return Schedule(**config)  # type: ignore[arg-type]  # names and types are those of `_PARAMS`


def config_of(schedule: Schedule, of: Space) -> dict[str, Value]:
    """The schedule's values of the parameters a space has."""
    return {name: getattr(schedule, name) for name, _ in of.params}


def _facts(kernel: Kernel) -> _Facts:
    statements = walk(kernel.body)
    tiles = [s for s in statements if isinstance(s, RowTiles)]
    heights = [frozenset(width for width, _ in s.variants) for s in tiles]
    dots = tuple(s for s in statements if isinstance(s, ScaledDot))
    return _Facts(
        heights=tuple(sorted(frozenset.intersection(*heights))) if heights else (),
        dots=dots,
        shares=any(isinstance(s, Share) for s in statements),
    )


def _rows(facts: _Facts) -> Param | None:
    powers = tuple(h for h in facts.heights if not h & (h - 1))
    default = _DEFAULT.rows
    # A tallest tile that the program does not have would leave rows undone.
    if len(powers) < 2 or default not in powers or powers[0] != 1:
        return None
    return Pow2(1, max(powers), default)


def _unroll(facts: _Facts) -> Param | None:
    fit = tuple(n for n in UNROLLS if all(dot.w.blocks % n == 0 for dot in facts.dots))
    return Choice(fit, _DEFAULT.unroll) if facts.dots and len(fit) > 1 else None


def _prefetch(facts: _Facts) -> Param | None:
    return Pow2(*PREFETCH, _DEFAULT.prefetch, zero=True) if facts.dots else None


def _far(facts: _Facts) -> Param | None:
    return Pow2(*FAR, _DEFAULT.far, zero=True) if facts.dots else None


def _deal(facts: _Facts) -> Param | None:
    return Choice(("runs", "turns"), _DEFAULT.deal) if facts.shares else None


_DEFAULT = Schedule()
_PARAMS: dict[str, Callable[[_Facts], Param | None]] = {
    "rows": _rows,
    "unroll": _unroll,
    "prefetch": _prefetch,
    "far": _far,
    "deal": _deal,
}
"""By the names of `Schedule`'s fields, in their order."""
