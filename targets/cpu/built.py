"""What the CPU target makes of a plan; free of TVM, so that a kept build is read without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """How to call the step: buffers, arena, a scratch array a type, sizes, number of workers."""

    bufs: tuple[str, ...]
    arena: int
    scratch: Mapping[str, int]
    sizes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """How to call the step, its functions as text, and its shared library."""

    signature: Signature
    source: str
    library: bytes

    @property
    def entries(self) -> dict[str, bytes]:
        """An artifact's entries that hold it."""
        return {"step.so": self.library, "step.tir.txt": self.source.encode()}

    @property
    def texts(self) -> dict[str, str]:
        """What a person may read of it, by file name."""
        return {"step.tir.txt": self.source}

    def to_bytes(self) -> bytes:
        """What an object store keeps of it."""
        source = self.source.encode()
        head = json.dumps({"signature": asdict(self.signature), "source": len(source)}).encode()
        return head + b"\n" + source + self.library

    @staticmethod
    def from_bytes(raw: bytes) -> Built:
        """The build that `to_bytes` made these of: the store has checked that they are those."""
        head, _, rest = raw.partition(b"\n")
        facts = json.loads(head)
        signature, size = facts["signature"], facts["source"]
        lists = {name: tuple(signature[name]) for name in ("bufs", "sizes")}
        return Built(Signature(**{**signature, **lists}), rest[:size].decode(), rest[size:])
