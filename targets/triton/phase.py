"""One phase of a plan -> one function of Triton text, called by every worker of a step.

What a worker has of its own is dealt out from arguments `own_<type>`, one a type of element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speccc.ir import expr as ex
from speccc.ir.expr import Var
from speccc.ir.plan import size_of
from speccc.ir.tile import Alloc, Buf, Kernel, Mem, RowTiles, Share
from speccc.targets.triton.heights import heights
from speccc.targets.triton.registers import choose
from speccc.targets.triton.schedule import Shape
from speccc.targets.triton.statements import block, chunks, units_at_once
from speccc.targets.triton.writer import Writer

CALLED = "@triton.jit(noinline=True)"
"""Phases stay functions: inlined, what each computes ahead would take registers from all others."""
INLINED = "@triton.jit"
ALIGN = 64
"""Elements: what a worker has of its own starts on a line of the cache."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A function's text; it takes `bufs`, `scalars`, `own`, the worker's number and their count.

    `own` is elements of a worker's own memory by type.
    """

    name: str
    text: str
    bufs: tuple[Buf, ...]
    scalars: tuple[Var, ...]
    own: Mapping[str, int]

    def call(self, bufs: Mapping[Buf, str], scalars: Mapping[Var, str]) -> str:
        """The text of a call."""
        given = [*(bufs[b] for b in self.bufs), *(scalars[v] for v in self.scalars)]
        given += [*(f"own_{t}" for t in self.own), "worker", "workers"]
        return f"{self.name}({', '.join(given)})"


def render_phase(kernel: Kernel, name: str, shape: Shape, bounds: Mapping[Var, int]) -> Phase:
    """A kernel as a function. UnsupportedError names what has no form."""
    w = Writer(shape, choose(kernel.body))
    for buf in kernel.bufs:
        w.bases[buf] = w.name(buf.name)
    for var in kernel.scalars:
        w.env[var] = w.name(var.name)
    params = [w.bases[b] for b in kernel.bufs]
    own = _deal(w, kernel, bounds)
    shares = [s for s in kernel.body if isinstance(s, Share)]
    if shares:
        # A worker without units would only repeat what others do for themselves.
        w.put(f"if worker < {_most([chunks(w, s) for s in shares])}:")
        w.depth += 1
    block(w, kernel.body)
    scalars = tuple(v for v in kernel.scalars if v in w.read)
    params += [str(w.env[v]) for v in scalars]
    params += [*(f"own_{t}" for t in own), "worker", "workers"]
    lines = "\n".join(w.lines)
    text = f"{INLINED if w.inline else CALLED}\ndef {name}({', '.join(params)}):\n{lines}\n"
    return Phase(name, text, kernel.bufs, scalars, own)


def _most(counts: list[str]) -> str:
    known = [int(c) for c in counts if c.isdigit()]
    texts = [c for c in counts if not c.isdigit()] + ([str(max(known))] if known else [])
    out = texts[0]
    for t in texts[1:]:
        out = f"tl.maximum({out}, {t})"
    return out


def _deal(w: Writer, kernel: Kernel, bounds: Mapping[Var, int]) -> dict[str, int]:
    """Gives each buffer in memory of a worker's own its place; elements by type."""
    stmts = list(w.choices.run(kernel.body))
    for s in stmts:
        if isinstance(s, RowTiles) and id(s) in w.choices.clips:
            most = heights(s, w.shape)[-1]
            w.tall |= dict.fromkeys(w.choices.clips[id(s)].tiles, most)
    copies: dict[Buf, int] = {}
    for s in stmts:
        if isinstance(s, Share):
            inside = [t.buf for t in w.choices.run(s.body) if isinstance(t, Alloc)]
            copies |= dict.fromkeys(inside, units_at_once(w, s))
    totals: dict[str, int] = {}
    for s in stmts:
        if isinstance(s, Alloc) and s.buf not in w.choices.held and s.buf not in w.bases:
            at = totals.get(s.buf.dtype.name, 0)
            base = w.bases[s.buf] = w.name(s.buf.name)
            w.put(f"{base} = own_{s.buf.dtype.name} + {at}")
            size = elements(s.buf, bounds, w.tall.get(s.buf)) * copies.get(s.buf, 1)
            totals[s.buf.dtype.name] = at + -(-size // ALIGN) * ALIGN
    return totals


def elements(buf: Buf, bounds: Mapping[Var, int], rows: int | None = None) -> int:
    """How many elements a buffer has at most; `rows` is its first size where it is another."""
    if buf.mem is Mem.GLOBAL:
        raise ValueError(f"{buf.name} belongs to no worker")
    count: ex.Expr = ex.lit(1)
    for d in buf.shape if rows is None else (rows, *buf.shape[1:]):
        count = ex.mul(count, d)
    return size_of(count, bounds)
