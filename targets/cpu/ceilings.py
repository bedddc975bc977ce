"""What the machine itself can do at most: a loop that only reads, and one that only multiplies.

Both run on the pool that runs steps and use the instructions of the steps, so that nothing but the
work differs from a step.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from speccc.ir.packed import PANEL
from speccc.targets.cpu import tir
from speccc.targets.cpu.isa import Isa
from speccc.targets.cpu.kernel_function import Source
from speccc.targets.cpu.link import link
from speccc.targets.cpu.objects import build_object
from speccc.targets.cpu.scaled_dot import RULES
from speccc.targets.cpu.tir import Block, Node

READ_VECTORS = 16
"""Vectors of 64 bytes one trip of `read` loads, each into a sum of its own."""
DOT_SUMS = 12
"""Sums one trip of `dots` adds to: more than the latency of the instruction needs."""
DOT_CODES = 8
"""Vectors of codes `dots` goes round."""
TRIP_DOTS = DOT_SUMS * PANEL * 4
"""Multiply-adds in one trip of `dots`."""
CODE_BITS = 4
NAMES = ("read", "dots")

# (block, number of the trip's item, its sum, data, first element of the worker, trip) -> its sum
Body = Callable[[Block, int, Node, Node, Node, Node], Node]


def ceilings_library(isa: Isa) -> dict[str, bytes]:
    """A shared library by name, each with one step function of that name.

    A step takes i32 arrays `data` and `sums` [workers * READ_VECTORS * 16], then `trips` and
    `workers`. `read` reads trips * READ_VECTORS * 64 bytes a worker, workers one after another;
    `dots` does trips * TRIP_DOTS multiply-adds a worker and reads the first 512 bytes only.
    """
    rule = RULES[isa.dot]

    def read(block: Block, n: int, acc: Node, data: Node, first: Node, trip: Node) -> Node:
        vector = first + trip * tir.index(READ_VECTORS) + tir.index(n)
        return acc + tir.load(data, vector * tir.index(PANEL), PANEL)

    def dots(block: Block, n: int, acc: Node, data: Node, first: Node, trip: Node) -> Node:
        at = tirx.truncmod(trip, tir.index(DOT_CODES)) * tir.index(PANEL)
        return rule(block, acc, tir.load(data, at, PANEL), CODE_BITS, tir.load(data, tir.index(n)))

    loops: dict[str, tuple[Body, int]] = {"read": (read, READ_VECTORS), "dots": (dots, DOT_SUMS)}
    return {name: _library(isa, name, *loops[name]) for name in NAMES}


def _library(isa: Isa, name: str, body: Body, count: int) -> bytes:
    func = _function(name, body, count)
    return link([build_object(isa, Source(func, name, str(func.script()), packed=True))])


def _function(name: str, body: Body, count: int) -> tirx.PrimFunc:
    data, sums = _array("data"), _array("sums")
    trips, workers = tirx.Var("trips", "int64"), tirx.Var("workers", "int64")
    worker, trip = tir.loop_var("worker"), tir.loop_var("trip")
    accs = [tirx.decl_buffer((PANEL,), "int32", f"sum{n}", scope="local") for n in range(count)]
    zero = tirx.Broadcast(tirx.const(0, "int32"), PANEL)
    block, inner = Block(), Block()
    for acc in accs:
        block.add(tirx.AllocBuffer(acc))
        block.add(tir.store(acc, tir.index(0), zero, PANEL))
    first = worker * trips * tir.index(count)
    for n, acc in enumerate(accs):
        seen = tir.load(acc, tir.index(0), PANEL)
        value = body(inner, n, seen, data, first, trip)
        inner.add(tir.store(acc, tir.index(0), value, PANEL))
    block.add(tir.serial(trip, trips, inner.statements))
    for n, acc in enumerate(accs):
        at = (worker * tir.index(READ_VECTORS) + tir.index(n)) * tir.index(PANEL)
        block.add(tir.store(sums, at, tir.load(acc, tir.index(0), PANEL), PANEL))
    loop = tirx.For(worker, tir.index(0), workers, tirx.ForKind.PARALLEL, tir.seq(block.statements))
    func = tirx.PrimFunc([data, sums, trips, workers], loop)
    return func.with_attr("global_symbol", name).with_attr("s_tir", True)


def _array(name: str) -> Node:
    return tirx.decl_buffer((tirx.Var(f"{name}_size", "int64"),), "int32", name)
