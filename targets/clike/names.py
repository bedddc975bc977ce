"""One readable, unused name for each object of the IR, in the words of the model and the passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from speccc.ir.types import DTYPES

# What the writer and the shared prelude say themselves, in every dialect.
_WORDS = """
    lane invocation workgroup workgroups exp_ir fma_ir div_ir mod_ir half_value half_round value
    total M N K INVOCATIONS SUBGROUPS Sizes
"""
_SIDES = {f"{side}_{kind}" for side in "MNK" for kind in DTYPES}
OURS = frozenset(_WORDS.split()) | _SIDES


class Names:
    """Objects -> identifiers: the IR's own name, numbered where it is taken."""

    def __init__(self, reserved: frozenset[str]) -> None:
        """No name is taken but the writer's and the `reserved` ones of the language."""
        self._used = set(OURS | reserved)
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
