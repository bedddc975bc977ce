"""Lowering rules of `scaled_dot`: one integer-dot step per instruction set, one frame around them.

A rule adds to a 16-lane int32 accumulator the products of four columns: codes (u8, four to a lane)
with activations (i8, the same four in every lane). Integer arithmetic is exact, so every rule gives
the same bits; the float part is written once, here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from speccc.ir.expr import Var
from speccc.ir.packed import BLOCK, PANEL
from speccc.ir.schedule import Schedule
from speccc.ir.tile import ScaledDot
from speccc.ir.types import F32, I32
from speccc.targets.cpu import tir
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.render_expr import Lanes, Place, Scope, render_scalar
from speccc.targets.cpu.tir import Block, Node

PREFETCH_ROWS = 4
"""Shortest tile that fetches ahead: shorter ones wait for memory as it is, and the processor's own
stream fetch serves them better than instructions that compete with the dots."""

# (block, accumulator i32x16, codes i32x16 holding u8x64, bits, four activations) -> accumulator
DotRule = Callable[[Block, Node, Node, int, Node], Node]

# (block, table of 16 bytes, codes i32x16 holding 4-bit codes u8x64) -> the entries, i32x16
Lookup = Callable[[Block, bytes, Node], Node]


def _splat(value: int, lanes: int) -> Node:
    return tirx.Broadcast(tirx.const(value, "int32"), lanes)


def _vpdpbusd(block: Block, acc: Node, codes: Node, bits: int, four: Node) -> Node:
    # LLVM wants byte vectors here; the second operand is a memory broadcast in the machine code.
    weights = tirx.reinterpret("int8x64", codes)
    acts = tirx.reinterpret("int8x64", tirx.Broadcast(four, PANEL))
    return tir.intrinsic("int32x16", "llvm.x86.avx512.vpdpbusd.512", acc, weights, acts)


def _vpdpbusd_ymm(block: Block, acc: Node, codes: Node, bits: int, four: Node) -> Node:
    """The same on halves of the lanes: AVX-VNNI, or AVX-512 with short vectors."""
    acts = block.bind("acts", tirx.reinterpret("int8x32", tirx.Broadcast(four, 8)))
    name, parts = "llvm.x86.avx512.vpdpbusd.256", []
    for at in range(0, PANEL, 8):
        picks = [tirx.IntImm("int32", at + n) for n in range(8)]
        weights = tirx.reinterpret("int8x32", tirx.Shuffle([codes], picks))
        parts.append(tir.intrinsic("int32x8", name, tirx.Shuffle([acc], picks), weights, acts))
    return tirx.Shuffle(parts, [tirx.IntImm("int32", n) for n in range(PANEL)])


def _by_nibbles(dot: Callable[[Node, Node], Node], lanes: int) -> DotRule:
    """A rule from a `lanes`-wide dot of codes 0..127: wider ones go as two nibbles, so that no
    16-bit sum saturates and no code has its sign bit set."""

    def rule(block: Block, acc: Node, codes: Node, bits: int, four: Node) -> Node:
        acts = block.bind(
            "acts", tirx.reinterpret(f"int8x{4 * lanes}", tirx.Broadcast(four, lanes))
        )
        parts = []
        for at in range(0, PANEL, lanes):
            picks = [tirx.IntImm("int32", at + n) for n in range(lanes)]
            part = block.bind("part", tirx.Shuffle([codes], picks))
            if bits < 8:
                parts.append(block.bind("sum", dot(part, acts)))
                continue
            mask = _splat(0x0F0F0F0F, lanes)
            low = dot(part & mask, acts)
            high = dot((part >> _splat(4, lanes)) & mask, acts)
            parts.append(block.bind("sum", low + (high << _splat(4, lanes))))
        return acc + tirx.Shuffle(parts, [tirx.IntImm("int32", n) for n in range(PANEL)])

    return rule


def _maddubs(codes: Node, acts: Node) -> Node:
    ones = tirx.Broadcast(tirx.const(1, "int16"), 16)
    bytes_ = tirx.reinterpret("int8x32", codes)
    pairs = tir.intrinsic("int16x16", "llvm.x86.avx2.pmadd.ub.sw", bytes_, acts)
    return tir.intrinsic("int32x8", "llvm.x86.avx2.pmadd.wd", pairs, ones)


def _sdot(codes: Node, acts: Node) -> Node:
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    return tir.intrinsic("int32x4", name, _splat(0, 4), tirx.reinterpret("int8x16", codes), acts)


def _portable(block: Block, acc: Node, codes: Node, bits: int, four: Node) -> Node:
    """Any CPU: the four bytes one after another in 32-bit lanes."""
    for t in range(4):
        code = (codes >> _splat(8 * t, PANEL)) & _splat(0xFF, PANEL)
        # Sign-extends byte t of the activations.
        act = (four << tirx.const(24 - 8 * t, "int32")) >> tirx.const(24, "int32")
        acc = block.bind("acc", acc + code * tirx.Broadcast(act, PANEL))
    return acc


RULES: dict[str, DotRule] = {
    "vpdpbusd": _vpdpbusd,
    "vpdpbusd_ymm": _vpdpbusd_ymm,
    "maddubs": _by_nibbles(_maddubs, 8),
    "sdot": _by_nibbles(_sdot, 4),
    "portable": _portable,
}


def _byte_pick(name: str, lanes: int) -> Lookup:
    """A rule from an instruction that picks from the 16 bytes of a table, `lanes` words at once."""

    def rule(block: Block, table: bytes, codes: Node) -> Node:
        type_name = f"int8x{4 * lanes}"
        words = np.frombuffer(table * (lanes // 4), "<i4")
        numbers = [tirx.IntImm("int32", n) for n in range(lanes)]
        source = tirx.reinterpret(
            type_name, tirx.Shuffle([tirx.const(int(w), "int32") for w in words], numbers)
        )
        parts = []
        for at in range(0, PANEL, lanes):
            picks = [tirx.IntImm("int32", at + n) for n in range(lanes)]
            part = block.bind("part", tirx.Shuffle([codes], picks))
            found = tir.intrinsic(type_name, name, source, tirx.reinterpret(type_name, part))
            parts.append(block.bind("found", tirx.reinterpret(f"int32x{lanes}", found)))
        return tirx.Shuffle(parts, [tirx.IntImm("int32", n) for n in range(PANEL)])

    return rule


def _by_steps(block: Block, table: bytes, codes: Node) -> Node:
    """Any CPU: an entry lies on one side of entry 0, by as many of the table's steps as the code's
    magnitude. All 64 codes at once: shifts by lane, for which few have an instruction, are none."""

    def all_of(value: int) -> Node:
        return tirx.Broadcast(tirx.const(value, "int8"), 4 * PANEL)

    code = block.bind("code", tirx.reinterpret(f"int8x{4 * PANEL}", codes))
    magnitude = block.bind("magnitude", code & all_of(7))
    size = all_of(0)
    for n, (below, entry) in enumerate(itertools.pairwise(table[:8])):
        step = tirx.Select(magnitude > all_of(n), all_of(entry - below), all_of(0))
        size = block.bind("size", size + step)
    zero = all_of(table[0])
    entry = block.bind("entry", tirx.Select(code < all_of(8), zero + size, zero - size))
    return block.bind("found", tirx.reinterpret(f"int32x{PANEL}", entry))


LOOKUPS: dict[str, Lookup] = {
    "vpdpbusd": _byte_pick("llvm.x86.avx512.pshuf.b.512", 16),
    "vpdpbusd_ymm": _byte_pick("llvm.x86.avx2.pshuf.b", 8),
    "maddubs": _byte_pick("llvm.x86.avx2.pshuf.b", 8),
    "sdot": _byte_pick("llvm.aarch64.neon.tbl1.v16i8", 4),
    "portable": _by_steps,
}


@dataclass(frozen=True, slots=True)
class _Dot:
    """A statement with what its rendering sees: codes as the rule takes them, less `zero`."""

    s: ScaledDot
    scope: Scope
    isa: Isa
    bits: int
    zero: int
    table: bytes

    @staticmethod
    def of(s: ScaledDot, scope: Scope, isa: Isa) -> _Dot:
        """Levels are moved to be codes without a sign, as the rules want them."""
        levels = s.w.format.levels
        if not levels:
            return _Dot(s, scope, isa, s.w.bits, s.w.format.zero_point, b"")
        zero = -min(levels)
        table = bytes(v + zero for v in levels)
        return _Dot(s, scope, isa, max(table).bit_length(), zero, table)

    @property
    def blob(self) -> Place:
        """Where the weights are."""
        return self.scope.places[self.s.blob]


def render_scaled_dot(
    s: ScaledDot, accs: list[Node], scope: Scope, block: Block, isa: Isa, schedule: Schedule
) -> list[Node]:
    """Statements that add the product to `accs` (one 16-lane buffer a row)."""
    dot = _Dot.of(s, scope, isa)
    panel = render_scalar(s.panel, scope, block) * tir.index(s.w.panel_bytes)
    start = block.bind("panel", render_scalar(s.offset, scope, block) + panel)
    row = block.bind("row", render_scalar(s.x.row, scope, block))
    ahead = (schedule.prefetch, schedule.far) if len(accs) >= PREFETCH_ROWS else ()
    step = schedule.unroll if s.w.blocks % schedule.unroll == 0 else 1
    trip = tir.loop_var("b")
    body = Block()
    for n in range(step):
        b = trip * tir.index(step) + tir.index(n) if step > 1 else trip
        _block(dot, accs, body, (start, row, b), ahead)
    return [tir.serial(trip, tir.index(s.w.blocks // step), body.statements)]


def _block(
    dot: _Dot, accs: list[Node], out: Block, place: tuple[Node, Node, Node], ahead: Sequence[int]
) -> None:
    """One block of columns for all rows: the weights are decoded once.

    `ahead` are the distances in bytes at which lines are fetched into the first cache, the second.
    """
    start, row, b = place
    w, blob = dot.s.w, dot.blob
    at = out.bind("at", start + b * tir.index(w.block_bytes))
    for level, distance in enumerate(ahead, 1):
        for line in range(0, w.block_bytes if distance else 0, tir.CACHE_LINE):
            element = blob.base + at + tir.index(distance + line)
            out.add(tir.prefetch(blob.buffer, element, level))
    base, lane = Var("at"), Var("lane")
    scope = dot.scope.child()
    scope.variables[base] = at
    view = Lanes(scope, out, lane, tir.index(0), PANEL)
    quads = _codes(dot, at, out)
    scales = [view.render(w.scale(dot.s.blob, base, lane, g)) for g in range(w.groups)]
    minimum = view.render(w.minimum(dot.s.blob, base, lane)) if w.format.has_min else None
    for r, acc in enumerate(accs):
        _row(dot, out, quads, scales, minimum, (row + tir.index(r), b), acc)


def _codes(dot: _Dot, at: Node, block: Block) -> list[Node]:
    """The block's codes as 8 vectors of i32x16, quad c of columns 4c..4c+3."""
    w, blob = dot.s.w, dot.blob
    raws = [
        block.bind(
            "raw",
            tirx.reinterpret(
                "int32x16", tir.load(blob.buffer, blob.base + at + tir.index(64 * c), 64)
            ),
        )
        for c in range(w.code_bytes // 64)
    ]
    if w.bits == 8:
        return raws
    mask = tirx.Broadcast(tirx.const(0x0F0F0F0F, "int32"), PANEL)
    four = tirx.Broadcast(tirx.const(4, "int32"), PANEL)
    low = [block.bind("low", r & mask) for r in raws]
    high = [block.bind("high", (r >> four) & mask) for r in raws]
    if not dot.table:
        return low + high
    find = LOOKUPS[dot.isa.dot]
    return [block.bind("level", find(block, dot.table, q)) for q in low + high]


def _element(place: Place, width: int, row: Node, col: Node, lanes: int = 1) -> Node:
    return tir.load(place.buffer, place.base + row * tir.index(width) + col, lanes)


def _row(
    dot: _Dot,
    block: Block,
    quads: list[Node],
    scales: list[Node],
    minimum: Node | None,
    at: tuple[Node, Node],
    acc: Node,
) -> None:
    """A row's block: each group of columns by its own scale, then the minimum."""
    row, b = at
    s, places = dot.s, dot.scope.places
    each = len(quads) // len(scales)
    own = s.x.groups
    first, width = b * tir.index(own) if own > 1 else b, own * s.w.blocks
    factors = [
        tirx.Broadcast(_element(places[s.x.scale], width, row, first + tir.index(g)), PANEL)
        for g in range(own)
    ]
    value = tir.load(acc, tir.index(0), PANEL)
    for g, scale in enumerate(scales):
        total = _start(dot, row, b, g)
        for c in range(g * each, (g + 1) * each):
            col = b * tir.index(BLOCK) + tir.index(4 * c)
            four = tirx.reinterpret("int32", _element(places[s.x.codes], s.w.k, row, col, 4))
            total = block.bind("dot", RULES[dot.isa.dot](block, total, quads[c], dot.bits, four))
        value = tir.fma(
            tirx.Cast(tir.type_name(F32, PANEL), total), factors[g % own] * scale, value, PANEL
        )
    if minimum is not None:
        sums = _element(places[s.x.scaled_sums], s.w.blocks, row, b)
        value = tir.fma(minimum, tirx.Broadcast(sums, PANEL), value, PANEL)
    block.add(tir.store(acc, tir.index(0), value, PANEL))


def _start(dot: _Dot, row: Node, b: Node, group: int) -> Node:
    """The integer sum starts at -zero * sum of the activations' codes."""
    if dot.zero == 0:
        return tir.const(0, I32, PANEL)
    x, w = dot.s.x, dot.s.w
    if w.groups == 1 or x.halves is None:
        sums = _element(dot.scope.places[x.sums], w.blocks, row, b)
    else:
        at = b * tir.index(w.groups) + tir.index(group)
        sums = _element(dot.scope.places[x.halves], w.groups * w.blocks, row, at)
    return tirx.Broadcast(sums * tirx.const(-dot.zero, "int32"), PANEL)
