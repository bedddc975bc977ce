"""Products as Triton text: weights are the rows of a tile [units * lanes, tokens].

An int8 product of one 32-block is a `tl.dot`; its scaling, and the product of floats that no matrix
engine makes, are fused multiply-adds in the order the IR fixes.
"""

from __future__ import annotations

from speccc.errors import UnsupportedError
from speccc.ir import expr as ex
from speccc.ir.expr import Var
from speccc.ir.packed import BLOCK, PANEL
from speccc.ir.tile import Buf, Dot, ScaledDot
from speccc.targets.triton.engine import by_engine, engine_steps
from speccc.targets.triton.expr import Tiled, address, placed
from speccc.targets.triton.fp4 import fp4_blocks, native
from speccc.targets.triton.writer import Writer

LEAST_TOKENS = 8
"""Least columns of a `tl.dot` outside clipped row tiles."""


def enter_lanes(w: Writer, extent: int) -> tuple[Tiled, int]:
    """Dimension 0 as units times `extent` lanes: the lane, and the size of the dimension."""
    rows = w.rows
    if rows is None:
        raise TypeError("lanes outside a clipped row tile")
    width = 1 << max(0, extent - 1).bit_length()
    count = w.wide.count if w.wide else 1
    if extent not in rows.lanes:
        number = w.let("lane", f"tl.arange(0, {count * width})")
        slot = unit = unit_live = None
        lane = number
        if w.wide:
            slot = w.let("slot", f"{number} // {width}")
            unit = w.let(w.wide.var.name, f"{w.wide.first} * {count} + {slot}")
            lane = w.let("lane", f"{number} % {width}")
            unit_live = f"({unit} < {w.wide.extent})" if w.wide.extent else None
        rows.lanes[extent] = (lane, slot, unit, unit_live)
    lane, slot, unit, unit_live = rows.lanes[extent]
    if w.wide and unit is not None and slot is not None:
        w.env[w.wide.var] = Tiled(unit, 0, unit_live)
        for buf, base, size in w.wide.slices:
            w.bases[buf] = f"{base} + {placed(slot, (0,), 2)} * {size}"
    return Tiled(lane, 0, f"({lane} < {extent})" if width != extent else None), count * width


def _acc(w: Writer, acc: Buf, i: Var, j: Var) -> tuple[str, int, int]:
    """The accumulator as a tensor, its name, and the sizes of its dimensions."""
    rows, cols = acc.shape
    if not isinstance(rows, int) or not isinstance(cols, int):
        raise UnsupportedError("an accumulator has fixed sizes", where="triton")
    if w.rows is not None:
        w.env[j], size = enter_lanes(w, cols)
        w.env[i], tokens = w.rows.tokens, w.shape.tokens
    else:
        size, tokens = cols, max(LEAST_TOKENS, 1 << (rows - 1).bit_length())
        lane, token = (
            w.let(n, f"tl.arange(0, {s})") for n, s in (("lane", size), ("token", tokens))
        )
        w.env[j] = Tiled(lane, 0)
        w.env[i] = Tiled(token, 1, f"({token} < {rows})")
    if acc in w.held:
        return w.held[acc].text, size, tokens
    scope = w.scope(2)
    at = address(acc, (i, j), scope)
    name = w.let("acc", f"tl.load({at}, mask={scope.mask((i, j))}, other=0)")
    return name, size, tokens


def _near(w: Writer, i: Var) -> None:
    """From here on loads need no mask for rows past the end."""
    if w.rows is not None:
        w.env[i] = w.rows.near


def _done(w: Writer, acc: Buf, name: str, i: Var, j: Var) -> None:
    """Ends the loop; an accumulator in memory is stored when all have read it."""
    w.depth -= 1
    w.moving.clear()
    w.fixed.clear()
    if acc not in w.held:
        w.put("tl.debug_barrier()")
        if w.rows is not None:
            w.env[i] = w.rows.tokens
        w.store(acc, (i, j), name, 2, {i, j})


def dot(w: Writer, s: Dot) -> None:
    """Floats: one k after the other, or by a matrix engine."""
    loads, stores = w.touches(s)
    w.barrier(loads, stores)
    name, _, _ = _acc(w, s.acc, s.i, s.j)
    _near(w, s.i)
    if by_engine(s):
        engine_steps(w, s, name)
        _done(w, s.acc, name, s.i, s.j)
        return
    k = w.name(s.k.name)
    w.move(s.k, k, s.a, s.b)
    w.put(f"for {k} in {w.range(w.expr(s.lo), w.expr(s.hi))}:")
    w.depth += 1
    w.put(f"{name} = tl.fma({w.expr(s.a, 2)}, {w.expr(s.b, 2)}, {name})")
    _done(w, s.acc, name, s.i, s.j)


def scaled_dot(w: Writer, s: ScaledDot) -> None:
    """Blocks of 32 codes, one after the other."""
    if s.w.bits not in (4, 8):
        raise UnsupportedError(f"no form of ScaledDot of {s.w.bits} bit codes", where="triton")
    loads, stores = w.touches(s)
    w.barrier(loads, stores)
    i, j, b, first = Var("i"), Var("j"), Var("block"), Var("first")
    name, size, tokens = _acc(w, s.acc, i, j)
    _near(w, i)
    panel = ex.add(s.offset, ex.mul(s.panel, s.w.panel_bytes))
    start = w.let("panel_at", w.expr(panel, 1))
    w.env[first] = Tiled(start, 0, _live(w, w.wide.var)) if w.wide else start
    if native(w.shape, s, size, tokens):
        fp4_blocks(w, s, (i, j, first), name, (size, tokens))
        _done(w, s.acc, name, i, j)
        return
    base = ex.add(first, ex.mul(b, s.w.block_bytes))
    raw, rows = _codes_at(w, s, base, j), _rows_at(w, s, i, b)
    row = ex.add(s.x.row, i)
    scales = [
        ex.mul(s.x.scale_of(row, b, g), s.w.scale(s.blob, base, j, g)) for g in range(s.w.groups)
    ]
    low = s.w.minimum(s.blob, base, j) if s.w.format.has_min else None
    scaled = ex.Load(s.x.scaled_sums, (row, b))
    at = w.name("block")
    w.move(b, at, raw, rows, *scales, *((low, scaled) if low else ()))
    w.put(f"for {at} in {w.range('0', str(s.w.blocks))}:")
    w.depth += 1
    signed = _signed(w, s, w.let("raw", w.expr(raw, 2)), size)
    for text, scale in zip(signed, scales, strict=True):
        codes = w.let("codes", text)
        dot = f"tl.dot({codes}, {w.expr(rows, 2)}, out_dtype=tl.int32)"
        w.put(f"{name} = tl.fma({dot}.to(tl.float32), {w.expr(scale, 2)}, {name})")
    if low:
        w.put(f"{name} = tl.fma({w.expr(low, 2)}, {w.expr(scaled, 2)}, {name})")
    _done(w, s.acc, name, i, j)


def _live(w: Writer, unit: Var) -> str | None:
    known = w.env[unit]
    return known.live if isinstance(known, Tiled) else None


def _codes_at(w: Writer, s: ScaledDot, base: ex.Expr, j: Var) -> ex.Expr:
    """The bytes of a block's codes, [lanes, bytes]."""
    column = Var("byte")
    w.env[column] = Tiled(w.let("byte", f"tl.arange(0, {BLOCK * s.w.bits // 8})"), 1)
    quad = ex.mul(ex.idiv(column, 4), 4 * PANEL)
    at = ex.add(base, ex.add(quad, ex.add(ex.mul(j, 4), ex.mod(column, 4))))
    return ex.Load(s.blob, (at,))


def _rows_at(w: Writer, s: ScaledDot, i: Var, b: Var) -> ex.Expr:
    """The rows' codes, [32, tokens], in the order in which `_signed` has those of the weights."""
    column = Var("column")
    text = f"tl.arange(0, {BLOCK})"
    name = w.let("column", text)
    if s.w.bits == 4 and not w.shape.amd:
        name = w.let("column", f"{name} // 2 + {name} % 2 * {BLOCK // 2}")
    w.env[column] = Tiled(name, 0)
    return ex.Load(s.x.codes, (ex.add(s.x.row, i), ex.add(ex.mul(b, BLOCK), column)))


def _signed(w: Writer, s: ScaledDot, raw: str, size: int) -> list[str]:
    """Codes less the zero point, int8 [size, 32], for each scale: the same integer as by the sums.

    A byte of two 4-bit codes is loaded once; its codes become neighbours, and the rows of
    activations are taken in that order, which an integer sum does not mind. AMD's matrices take
    sixteen columns of a row from one lane, so there codes are put in order, and a row's come in one
    load. Where each half of a block has its own scale, the other half is zero.
    """
    zero, levels = s.w.format.zero_point, s.w.format.levels
    if s.w.bits == 8:
        return [f"({raw} ^ {zero}).to(tl.int8, bitcast=True)" if zero else f"{raw}.to(tl.int8)"]
    low, high = f"{raw} & 15", f"{raw} >> 4"
    if levels:
        low, high = (w.let("level", _level(levels, w.let("code", half))) for half in (low, high))
    pairs = [(low, high)]
    if s.w.groups > 1:
        none = w.let("none", f"tl.zeros_like({low})")
        pairs = [(low, none), (none, high)]
    both = [f"tl.join({a}, {b})" for a, b in pairs]
    if w.shape.amd:
        both = [f"tl.permute({text}, (0, 2, 1))" for text in both]
    joined = [f"tl.reshape({text}, ({size}, {BLOCK})).to(tl.int8)" for text in both]
    return [f"{codes} - {zero}" if zero else codes for codes in joined]


def _level(levels: tuple[int, ...], code: str) -> str:
    """The level of a 4-bit code: its magnitude out of a word's nibbles, then its sign."""
    word = sum(v << (4 * n) for n, v in enumerate(levels[:8]))
    shift = f"(({code} & 7) * 4).to(tl.uint32)"
    size = f"((tl.full([1, 1], {word:#x}, tl.uint32) >> {shift}) & 15).to(tl.int8)"
    return f"tl.where({code} < 8, 1, -1).to(tl.int8) * {size}"
