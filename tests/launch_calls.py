"""What a step of a launch plan is, launch by launch: drivers' sessions are compared with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from speccc.runtime.devices.launch_plan import Launch, LaunchPlan


@dataclass(frozen=True)
class Call:
    """One launch with its numbers worked out; `most` is at least 1.

    `windows` are the bytes at which its windows of the weights begin, by name.
    """

    launch: Launch
    scalars: tuple[int, ...]
    most: int
    windows: Mapping[str, int]


def calls(plan: LaunchPlan, sizes: Mapping[str, int]) -> Iterator[Call]:
    """The launches of one step in order; one without work is left out."""
    for _, launch, rounds in plan.turns():
        known = {**sizes, **rounds}
        most = launch.most(known)
        if most > 0:
            numbers = tuple(launch.numbers(known))
            yield Call(launch, numbers, most, plan.windows(launch, known))
