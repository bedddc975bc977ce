"""Text of a GLSL kernel: indentation, and one readable, unused name for each object of the IR."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

# Words of GLSL that a model's or a pass's name may collide with, and names of the prelude.
_WORDS = """
    in out inout uniform buffer shared const if else for while do return break continue discard
    switch case default struct void bool int uint float double vec2 vec3 vec4 mat2 mat3 mat4
    layout precise precision highp mediump lowp flat smooth sample patch centroid coherent volatile
    restrict readonly writeonly attribute varying common partition active filter input output
    half fixed unsigned superp goto long short asm class union enum typedef template this resource
    min max abs exp fma sqrt round select mix step length row packed image texture main true false
    lane invocation workgroup workgroups exp_ir fma_ir two_sum two_product half_value half_round
    barrier value total M N K INVOCATIONS SUBGROUPS Sizes
"""
RESERVED = frozenset(_WORDS.split())


class Names:
    """Objects -> identifiers: the IR's own name, numbered where it is taken."""

    def __init__(self) -> None:
        """No name is taken but GLSL's."""
        self._used = set(RESERVED)
        self._kept: set[str] = set()
        self._names: dict[object, str] = {}

    def of(self, thing: object, wish: str) -> str:
        """The identifier of `thing`, made from `wish` when it is new."""
        if thing not in self._names:
            self._names[thing] = self.fresh(wish)
        return self._names[thing]

    def fresh(self, wish: str) -> str:
        """An unused identifier like `wish`."""
        stem = re.sub(r"[^a-zA-Z0-9]+", "_", wish).strip("_") or "x"
        if stem[0].isdigit() or stem.startswith("gl_"):
            stem = f"x_{stem}"
        name, n = stem, 1
        while name in self._used:
            n += 1
            name = f"{stem}_{n}"
        self._used.add(name)
        return name

    def fresh_global(self, wish: str) -> str:
        """An unused identifier that outlives every scope."""
        name = self.fresh(wish)
        self._kept.add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names given inside are free again afterwards."""
        used, names = set(self._used), dict(self._names)
        yield
        self._used, self._names = used | self._kept, names


class Writer:
    """Lines with their indentation."""

    def __init__(self) -> None:
        """An empty text."""
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line at the present depth."""
        self._lines.append("    " * self._depth + text if text else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head {`, what is written inside, `}`."""
        self.line(f"{head} {{".strip())
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def text(self) -> str:
        """All lines, each ended."""
        return "".join(f"{line}\n" for line in self._lines)
