"""Lowering rules of `scaled_dot`: one integer-dot step per instruction set, one frame around them.

A rule adds to a 16-lane int32 accumulator the products of four columns: codes (u8, four to a lane)
with activations (i8, the same four in every lane). Integer arithmetic is exact, so every rule gives
the same bits; the float part is written once, here.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from speccc.ir.packed import BLOCK, PANEL
from speccc.ir.schedule import Schedule
from speccc.ir.tile import ScaledDot
from speccc.ir.types import F16, F32, I32
from speccc.targets.cpu import tir
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.render_expr import Place, Scope, render_scalar
from speccc.targets.cpu.tir import Block, Node

PREFETCH_ROWS = 4
"""Shortest tile that fetches ahead: shorter ones wait for memory as it is, and the processor's own
stream fetch serves them better than instructions that compete with the dots."""

# (block, accumulator i32x16, codes i32x16 holding u8x64, bits, four activations) -> accumulator
DotRule = Callable[[Block, Node, Node, int, Node], Node]


def _splat(value: int, lanes: int) -> Node:
    return tirx.Broadcast(tirx.const(value, "int32"), lanes)


def _vpdpbusd(block: Block, acc: Node, codes: Node, bits: int, four: Node) -> Node:
    # LLVM wants byte vectors here; the second operand is a memory broadcast in the machine code.
    weights = tirx.reinterpret("int8x64", codes)
    acts = tirx.reinterpret("int8x64", tirx.Broadcast(four, PANEL))
    return tir.intrinsic("int32x16", "llvm.x86.avx512.vpdpbusd.512", acc, weights, acts)


def _by_nibbles(dot: Callable[[Node, Node], Node], lanes: int) -> DotRule:
    """A rule from a `lanes`-wide dot of codes 0..15: wider codes go as two nibbles, so that no
    16-bit sum saturates and no code has its sign bit set."""

    def rule(block: Block, acc: Node, codes: Node, bits: int, four: Node) -> Node:
        acts = block.bind(
            "acts", tirx.reinterpret(f"int8x{4 * lanes}", tirx.Broadcast(four, lanes))
        )
        parts = []
        for at in range(0, PANEL, lanes):
            picks = [tirx.IntImm("int32", at + n) for n in range(lanes)]
            part = block.bind("part", tirx.Shuffle([codes], picks))
            if bits == 4:
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
    "maddubs": _by_nibbles(_maddubs, 8),
    "sdot": _by_nibbles(_sdot, 4),
    "portable": _portable,
}


def render_scaled_dot(
    s: ScaledDot, accs: list[Node], scope: Scope, block: Block, isa: Isa, schedule: Schedule
) -> list[Node]:
    """Statements that add the product to `accs` (one 16-lane buffer a row)."""
    blob = scope.places[s.blob]
    panel = render_scalar(s.panel, scope, block) * tir.index(s.w.panel_bytes)
    start = block.bind("panel", blob.base + render_scalar(s.offset, scope, block) + panel)
    row = block.bind("row", render_scalar(s.x.row, scope, block))
    ahead = schedule.prefetch if len(accs) >= PREFETCH_ROWS else 0
    step = schedule.unroll if s.w.blocks % schedule.unroll == 0 else 1
    trip = tir.loop_var("b")
    body = Block()
    for n in range(step):
        b = trip * tir.index(step) + tir.index(n) if step > 1 else trip
        _block(s, accs, scope, body, RULES[isa.dot], (start, row, b), ahead)
    return [tir.serial(trip, tir.index(s.w.blocks // step), body.statements)]


def _block(
    s: ScaledDot,
    accs: list[Node],
    scope: Scope,
    out: Block,
    rule: DotRule,
    place: tuple[Node, Node, Node],
    ahead: int,
) -> None:
    """One block of columns for all rows: the weights are decoded once."""
    start, row, b = place
    blob = scope.places[s.blob].buffer
    at = out.bind("at", start + b * tir.index(s.w.block_bytes))
    for line in range(0, s.w.block_bytes if ahead else 0, tir.CACHE_LINE):
        out.add(tir.prefetch(blob, at + tir.index(ahead + line)))
    quads = _codes(s, blob, at, out)
    scale = _column(s, blob, at, out, 0)
    minimum = _column(s, blob, at, out, 1) if s.w.format.has_min else None
    for r, acc in enumerate(accs):
        _row(s, rule, scope, out, quads, scale, minimum, (row + tir.index(r), b), acc)


def _codes(s: ScaledDot, blob: Node, at: Node, block: Block) -> list[Node]:
    """The block's codes as 8 vectors of i32x16, quad c of columns 4c..4c+3."""
    raws = [
        block.bind("raw", tirx.reinterpret("int32x16", tir.load(blob, at + tir.index(64 * c), 64)))
        for c in range(s.w.code_bytes // 64)
    ]
    if s.w.bits == 8:
        return raws
    mask = tirx.Broadcast(tirx.const(0x0F0F0F0F, "int32"), PANEL)
    four = tirx.Broadcast(tirx.const(4, "int32"), PANEL)
    low = [block.bind("low", r & mask) for r in raws]
    high = [block.bind("high", (r >> four) & mask) for r in raws]
    return low + high


def _column(s: ScaledDot, blob: Node, at: Node, block: Block, which: int) -> Node:
    base = at + tir.index(s.w.code_bytes + 2 * PANEL * which)
    halves = tirx.reinterpret(tir.type_name(F16, PANEL), tir.load(blob, base, 2 * PANEL))
    return block.bind("scale", tirx.Cast(tir.type_name(F32, PANEL), halves))


def _element(place: Place, width: int, row: Node, col: Node, lanes: int = 1) -> Node:
    return tir.load(place.buffer, place.base + row * tir.index(width) + col, lanes)


def _row(
    s: ScaledDot,
    rule: DotRule,
    scope: Scope,
    block: Block,
    quads: list[Node],
    scale: Node,
    minimum: Node | None,
    at: tuple[Node, Node],
    acc: Node,
) -> None:
    row, b = at
    codes = scope.places[s.x.codes]
    total = _start(s, scope, block, row, b)
    for c, quad in enumerate(quads):
        col = b * tir.index(BLOCK) + tir.index(4 * c)
        four = tirx.reinterpret("int32", _element(codes, s.w.k, row, col, 4))
        total = block.bind("dot", rule(block, total, quad, s.w.bits, four))
    xs = tirx.Broadcast(_element(scope.places[s.x.scale], s.w.blocks, row, b), PANEL)
    value = tir.fma(
        tirx.Cast(tir.type_name(F32, PANEL), total),
        xs * scale,
        tir.load(acc, tir.index(0), PANEL),
        PANEL,
    )
    if minimum is not None:
        sums = _element(scope.places[s.x.scaled_sums], s.w.blocks, row, b)
        value = tir.fma(minimum, tirx.Broadcast(sums, PANEL), value, PANEL)
    block.add(tir.store(acc, tir.index(0), value, PANEL))


def _start(s: ScaledDot, scope: Scope, block: Block, row: Node, b: Node) -> Node:
    """The integer sum starts at -zero_point * sum of the activations' codes."""
    if s.w.format.zero_point == 0:
        return tir.const(0, I32, PANEL)
    sums = _element(scope.places[s.x.sums], s.w.blocks, row, b)
    return tirx.Broadcast(sums * tirx.const(-s.w.format.zero_point, "int32"), PANEL)
