"""Finds accesses of one Triton program to the same memory that no barrier keeps apart.

It reads the text alone: lines in order, the body of a loop twice, of branches each, and by name
what a pointer points into. Threads of a program run apart between barriers, which the interpreter
does not show. One statement of the IR touches each element once, so a store does not meet itself,
and a loop over pieces of a tile (`.._first`) is walked once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BARRIER = "tl.debug_barrier()"
_LOAD = re.compile(r"tl\.load\(\(*(\w+)")
_STORE = re.compile(r"tl\.store\(\(*(\w+)")
_REPEATED = re.compile(r"for (?!\w+_first(_\d+)? in)")
_NUMBER = re.compile(r"_\d+\b|\b\d+\b")
_BRANCH = re.compile(r"(?:el)?if\b|else\b")
_POINTER = re.compile(r"^(\w+) = \(?(\w+) \+ ")


@dataclass
class Race(Exception):
    """Two accesses without a barrier between them."""

    buffer: str
    line: str


@dataclass
class _Since:
    """Buffers touched since the last barrier; those stored to by the line that did it."""

    loaded: set[str] = field(default_factory=set)
    stored: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _Since:
        return _Since(set(self.loaded), dict(self.stored))

    def join(self, other: _Since) -> None:
        self.loaded |= other.loaded
        self.stored |= other.stored


def functions(source: str) -> Iterator[list[str]]:
    """The lines of each function's body."""
    for part in re.split(r"@triton\.jit.*\n", source)[1:]:
        yield [line for line in part.split("\n")[1:] if line.strip()]


def check_barriers(lines: list[str]) -> None:
    """Race for the first pair of accesses that meet."""
    stored = {_root(m.group(1), _pointers(lines)) for line in lines for m in _STORE.finditer(line)}
    _walk(lines, _pointers(lines), stored, _Since())


def _pointers(lines: list[str]) -> dict[str, str]:
    found = (_POINTER.match(line.strip()) for line in lines)
    return {m.group(1): m.group(2) for m in found if m and m.group(1).endswith(_AT)}


_AT = tuple(["_at", *(f"_at_{n}" for n in range(1, 40))])


def _root(name: str, pointers: dict[str, str]) -> str:
    return pointers.get(name, name)


def _walk(lines: list[str], pointers: dict[str, str], stored: set[str], since: _Since) -> None:
    at, before = 0, since.copy()
    while at < len(lines):
        line = lines[at].strip()
        end = at + 1
        while end < len(lines) and _depth(lines[end]) > _depth(lines[at]):
            end += 1
        branch = _BRANCH.match(line)
        if branch and branch.group() == "if":
            before = since.copy()
        inside = before.copy() if branch else since
        _access(line, pointers, stored, inside)
        if end > at + 1:
            for _ in range(2 if _REPEATED.match(line) else 1):
                _walk(lines[at + 1 : end], pointers, stored, inside)
        if branch:
            since.join(inside)
        at = end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _access(line: str, pointers: dict[str, str], stored: set[str], since: _Since) -> None:
    if line == BARRIER:
        since.loaded.clear()
        since.stored.clear()
        return
    loads = {_root(m.group(1), pointers) for m in _LOAD.finditer(line)} & stored
    stores = {_root(m.group(1), pointers) for m in _STORE.finditer(line)}
    # The same statement in several branches has other numbers: which branch is taken never changes.
    line = _NUMBER.sub("", line)
    others = {b for b, by in since.stored.items() if by != line}
    met = (loads & since.stored.keys()) | (stores & (others | since.loaded))
    if met:
        raise Race(sorted(met)[0], line)
    since.loaded |= loads
    since.stored |= dict.fromkeys(stores, line)
