"""Calls of a step's phases in LLVM's text for AMD: what a phase is given goes in scalar registers.

Before: `tail call fastcc void @phase(ptr addrspace(1) %0, i64 %1)`
After:  `call fastcc void @phase(ptr addrspace(1) inreg %0.once, i64 inreg %1.once)`

LLVM takes the arguments of a function that is no kernel for numbers that differ from lane to lane:
they come in vector registers, each address is computed lane by lane, and each access to a buffer
is a loop over all the places that it might have. Triton's arguments are the same in all lanes,
which `inreg` says. A call marked `tail` might become a jump, and so its phase saved up to 112
registers for the caller's caller.

In the caller an argument goes through an assembly of no instruction, just before the call:
else LLVM keeps a copy of it in a vector register of each lane through all calls, and spills that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_DEFINE = re.compile(r'^define internal fastcc void @("[^"]*"|[\w.$-]+)\(')
_CALL = re.compile(r'^\s+(?:tail )?call fastcc void @("[^"]*"|[\w.$-]+)\(')
_NAME = re.compile(r'@("[^"]*"|[\w.$-]+)')
_UNIFORM = re.compile(r"(ptr addrspace\(1\)|i32|i64) ")
_OPEN, _CLOSE = "([{<", ")]}>"

Marked = Mapping[str, tuple[bool, ...]]
"""Functions by name, and which of their arguments are in scalar registers."""


def uniform_calls(ir: str) -> str:
    """A module's text with all calls of its own functions so."""
    lines = ir.split("\n")
    marked = {m[1]: _uniform(line, m.end()) for line in lines if (m := _DEFINE.match(line))}
    out: list[str] = []
    for number, line in enumerate(lines):
        out += _changed(line, marked, number)
    return "\n".join(out)


def _uniform(line: str, at: int) -> tuple[bool, ...]:
    return tuple(_UNIFORM.match(a) is not None for a in _arguments(line, at))


def _changed(line: str, marked: Marked, number: int) -> Iterator[str]:
    """A line of the module, and what goes before it."""
    if found := _DEFINE.match(line):
        yield _with(line, found.end(), [_inreg(a) for a in _arguments(line, found.end())])
        return
    found = _CALL.match(line)
    if found is None or found[1] not in marked:
        # A call that is not changed would put arguments where the function does not look for them.
        if not marked.keys().isdisjoint(_NAME.findall(line)):
            raise ValueError(f"a phase is used otherwise than by a plain call: {line.strip()[:80]}")
        yield line
        return
    given = list(_arguments(line, found.end()))
    for n, (argument, uniform) in enumerate(zip(given, marked[found[1]], strict=True)):
        if uniform and (typed := _UNIFORM.match(argument)):
            kind, value, name = typed[1], argument[typed.end() :], f"%once.{number}.{n}"
            yield f'  {name} = call {kind} asm sideeffect "", "=s,0"({kind} {value})'
            given[n] = f"{kind} inreg {name}"
    yield _with(line, found.end(), given).replace("tail call", "call", 1)


def _inreg(argument: str) -> str:
    return _UNIFORM.sub(r"\1 inreg ", argument, count=1)


def _with(line: str, at: int, arguments: list[str]) -> str:
    """The line with other arguments in the parentheses that open before `at`."""
    return line[:at] + ", ".join(arguments) + line[_end(line, at) :]


def _arguments(line: str, at: int) -> Iterator[str]:
    """What stands between commas in the parentheses that open before `at`."""
    depth, first = 0, at
    for n in range(at, _end(line, at)):
        depth += (line[n] in _OPEN) - (line[n] in _CLOSE)
        if line[n] == "," and depth == 0:
            yield line[first:n].strip()
            first = n + 1
    if last := line[first : _end(line, at)].strip():
        yield last


def _end(line: str, at: int) -> int:
    """Where the parentheses that open before `at` close."""
    depth = 1
    for n in range(at, len(line)):
        depth += (line[n] in _OPEN) - (line[n] in _CLOSE)
        if depth == 0:
            return n
    raise ValueError(f"parentheses without an end: {line[:80]}")
