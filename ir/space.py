"""The choices a schedule has: parameters with a default, and what must hold between them.

A configuration is a mapping from the names of all parameters to values. Everything here is data
and in a fixed order, so that two searches of one space see the same configurations.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

from speccc.errors import VerifyError

Value: TypeAlias = str | int | bool
Config: TypeAlias = dict[str, Value]
TRIES = 64
"""Draws of a sample before it is taken from the list of all legal configurations."""


class Param(Protocol):
    """One choice. Values come in a fixed order; the default is one of them."""

    @property
    def default(self) -> Value:
        """What works untuned."""

    def values(self) -> tuple[Value, ...]:
        """Every value."""

    def neighbors(self, value: Value) -> tuple[Value, ...]:
        """The values one step away."""

    def sample(self, rng: Random) -> Value:
        """A value at random."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values without an order: all others are neighbours."""

    options: tuple[Value, ...]
    default: Value

    def __post_init__(self) -> None:
        _check(self.options, self.default)

    def values(self) -> tuple[Value, ...]:
        return self.options

    def neighbors(self, value: Value) -> tuple[Value, ...]:
        return tuple(v for v in self.options if v != value)

    def sample(self, rng: Random) -> Value:
        return rng.choice(self.options)


@dataclass(frozen=True, slots=True)
class Pow2:
    """Powers of two from low to high, below them 0 when `zero`: the next ones are neighbours."""

    low: int
    high: int
    default: int
    zero: bool = False

    def __post_init__(self) -> None:
        if self.low < 1 or self.low & (self.low - 1) or self.high < self.low:
            raise VerifyError(f"no powers of two from {self.low} to {self.high}")
        _check(self.values(), self.default)

    def values(self) -> tuple[int, ...]:
        powers = (1 << n for n in range(self.high.bit_length()))
        some = tuple(p for p in powers if self.low <= p <= self.high)
        return (0, *some) if self.zero else some

    def neighbors(self, value: Value) -> tuple[Value, ...]:
        all_values = self.values()
        at = all_values.index(int(value))
        return all_values[max(at - 1, 0) : at] + all_values[at + 1 : at + 2]

    def sample(self, rng: Random) -> Value:
        return rng.choice(self.values())


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    default: bool = False

    def values(self) -> tuple[Value, ...]:
        return (False, True)

    def neighbors(self, value: Value) -> tuple[Value, ...]:
        return (not value,)

    def sample(self, rng: Random) -> Value:
        return rng.choice((False, True))


@dataclass(frozen=True, slots=True)
class Constraint:
    """What must hold of a configuration; `text` says it to people and is part of the identity."""

    name: str
    text: str
    holds: Callable[[Mapping[str, Value]], bool]


@dataclass(frozen=True, slots=True)
class Space:
    """Parameters by name in a fixed order, and constraints. The default must be legal."""

    params: tuple[tuple[str, Param], ...]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        if len(dict(self.params)) != len(self.params):
            raise VerifyError("a space has two parameters of one name")
        reason = self.why_not(self.default())
        if reason is not None:
            raise VerifyError(f"the default of a space breaks its own rule: {reason}")

    def default(self) -> Config:
        """The configuration that works untuned."""
        return {name: param.default for name, param in self.params}

    def why_not(self, config: Mapping[str, Value]) -> str | None:
        """Why a configuration is not legal, None when it is."""
        known = dict(self.params)
        if config.keys() != known.keys():
            odd = sorted(config.keys() ^ known.keys())[0]
            return f"{odd} is {'missing' if odd in known else 'no choice here'}"
        for name, value in config.items():
            # True == 1: a flag's value is no number.
            if not any(v == value and type(v) is type(value) for v in known[name].values()):
                return f"{name} cannot be {value!r}"
        return next((c.text for c in self.constraints if not c.holds(config)), None)

    def enumerate(self) -> Iterator[Config]:
        """Every legal configuration, in a fixed order."""
        names = [name for name, _ in self.params]
        for values in itertools.product(*(param.values() for _, param in self.params)):
            config = dict(zip(names, values, strict=True))
            if self.why_not(config) is None:
                yield config

    def neighbors(self, config: Config) -> list[Config]:
        """The legal configurations that differ in one parameter by one step."""
        near = [
            {**config, name: value}
            for name, param in self.params
            for value in param.neighbors(config[name])
        ]
        return [c for c in near if self.why_not(c) is None]

    def sample(self, rng: Random) -> Config:
        """A legal configuration at random."""
        for _ in range(TRIES):
            config = {name: param.sample(rng) for name, param in self.params}
            if self.why_not(config) is None:
                return config
        return rng.choice(list(self.enumerate()))

    def fingerprint(self) -> str:
        """SHA-256 in hex over names, values, defaults and the texts of the constraints."""
        parts = [[name, list(param.values()), param.default] for name, param in self.params]
        rules = [[c.name, c.text] for c in self.constraints]
        return hashlib.sha256(json.dumps([parts, rules]).encode()).hexdigest()


def _check(options: tuple[Value, ...], default: Value) -> None:
    if len(set(options)) != len(options) or default not in options:
        raise VerifyError(f"{default!r} is not one of the different values {options}")
