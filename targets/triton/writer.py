"""The lines of one function of Triton text, its names, and where barriers must stand in it.

The threads of a program share its buffers in memory, so a barrier stands between a store and a
load or store of the same buffer, and between a load and a store. A loop is entered as if a trip of
it had just been done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from speccc.ir.expr import Expr, Load, LoadBytes, Var, lit, substitute, variables
from speccc.ir.fragment import loads
from speccc.ir.tile import Buf, Dot, Map, Reduce, RowTiles, ScaledDot, Stmt
from speccc.passes.clip_rows import RowClip
from speccc.targets.triton.expr import Held, Scope, Tiled, address, pointer, render, step_of
from speccc.targets.triton.names import Names
from speccc.targets.triton.registers import Choices, expressions, memory_reads
from speccc.targets.triton.schedule import Shape


@dataclass(frozen=True, slots=True)
class Wide:
    """Units of a share taken `count` at a time; `first` names the first one's number."""

    var: Var
    count: int
    first: str
    extent: str | None
    slices: tuple[tuple[Buf, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """A clipped row tile: its rows as columns of tensors, and lanes by their number a unit.

    `near` are rows to load from without a mask: past the end the last one, whose sums are not kept.
    """

    clip: RowClip
    tokens: Tiled
    near: Tiled
    lanes: dict[int, tuple[str, str | None, str | None, str | None]]


@dataclass(frozen=True, slots=True)
class Outer:
    """A loop whose trips are dimension 0, `size` at a time."""

    var: Var
    size: int


@dataclass
class Hazards:
    """Buffers stored to and loaded from since the last barrier."""

    stored: set[Buf] = field(default_factory=set)
    loaded: set[Buf] = field(default_factory=set)

    def meets(self, loads: set[Buf], stores: set[Buf]) -> bool:
        """Whether a barrier is due before these; they are noted as done."""
        due = bool(self.stored & (loads | stores)) or bool(self.loaded & stores)
        if due:
            self.stored, self.loaded = set(), set()
        self.stored |= stores
        self.loaded |= loads
        return due


@dataclass
class Writer:
    """State of the text of one kernel's function."""

    shape: Shape
    choices: Choices
    env: dict[Var, str | Tiled] = field(default_factory=dict)
    bases: dict[Buf, str] = field(default_factory=dict)
    held: dict[Buf, Held] = field(default_factory=dict)
    moving: dict[Expr, str] = field(default_factory=dict)
    fixed: dict[Expr, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    read: set[Var] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    hazards: Hazards = field(default_factory=Hazards)
    depth: int = 1
    wide: Wide | None = None
    rows: Rows | None = None
    outer: Outer | None = None
    tall: dict[Buf, int] = field(default_factory=dict)
    """Rows that a tile in memory has where row tiles are higher than the program's own."""
    chosen: tuple[RowTiles, int] | None = None
    """Row tiles whose height is known where they begin."""
    inline: bool = False
    """Whether the function must become a part of the kernel that calls it."""

    def put(self, text: str) -> None:
        """One line."""
        self.lines.append("    " * self.depth + text)

    def name(self, wanted: str) -> str:
        """A name nothing else has."""
        return self.names.give(wanted)

    def let(self, wanted: str, value: str) -> str:
        """A new name for a value."""
        name = self.name(wanted)
        self.put(f"{name} = {value}")
        return name

    def range(self, lo: str, hi: str) -> str:
        """The text of what a long loop runs over."""
        if self.shape.unroll == 1:
            return f"range({lo}, {hi})"
        return f"tl.range({lo}, {hi}, loop_unroll_factor={self.shape.unroll})"

    def scope(self, ndim: int = 0) -> Scope:
        """For expressions of a tile of `ndim` dimensions."""
        moves = (self.moving, self.fixed)
        return Scope(self.env, self.bases, self.held, *moves, self.read.add, ndim)

    def expr(self, e: Expr | int, ndim: int = 0) -> str:
        """The text of an expression."""
        return render(e, self.scope(ndim))

    def move(self, var: Var, name: str, *items: Expr) -> None:
        """Computes where a loop over `var` begins to load, once, for tiles of two dimensions.

        What is the same in all trips is loaded here: a compiler leaves loads where they are.
        """
        self.env[var] = name
        for e in dict.fromkeys(found for item in items for found in loads(item)):
            step = step_of(e, var)
            if e.buf in self.held or step is None:
                continue
            if var not in variables(e):
                self.fixed[e] = self.let(self.bases[e.buf].split()[0], self.expr(e, 2))
            else:
                first = substitute(e, {var: lit(0)})
                if isinstance(first, (Load, LoadBytes)):
                    at = self.let(
                        f"{self.bases[e.buf].split()[0]}_at", pointer(first, self.scope(2))
                    )
                    self.moving[e] = f"{at} + {name}" + (f" * {step}" if step != 1 else "")

    def barrier(self, loaded: Iterable[Buf], stored: Iterable[Buf]) -> None:
        """A barrier, if these accesses need one after what has been done."""
        if self.hazards.meets(set(loaded), set(stored) - self.held.keys()):
            self.put("tl.debug_barrier()")

    def reads(self, *items: Expr | int) -> set[Buf]:
        """The buffers in memory that expressions read."""
        held = frozenset(self.held)
        return set().union(*(memory_reads(e, held) for e in items if not isinstance(e, int)))

    def store(
        self, dst: Buf, index: tuple[Expr, ...], value: str, ndim: int, seen: set[Var]
    ) -> None:
        """Stores a tile, masked where a variable of `seen` is out of range."""
        scope = self.scope(ndim)
        mask = scope.mask(seen)
        at = address(dst, index, scope)
        self.put(f"tl.store({at}, {value}" + (f", mask={mask})" if mask else ")"))

    @contextmanager
    def loop(self, head: str, body: tuple[Stmt, ...]) -> Iterator[None]:
        """A block that may run any number of times."""
        touched = [self.touches(s) for s in self.choices.run(body)]
        # What was done before is waited for once, out here.
        self.barrier(*(set().union(*(t[n] for t in touched)) for n in range(2)))
        before = Hazards(set(self.hazards.stored), set(self.hazards.loaded))
        self.put(head)
        self.depth += 1
        yield
        self.depth -= 1
        self.hazards.stored |= before.stored
        self.hazards.loaded |= before.loaded

    @contextmanager
    def branches(self) -> Iterator[Callable[[str | None], None]]:
        """Blocks of which one runs: each is begun with its condition, the last without one."""
        depth, before, done = self.depth, self.hazards, list[Hazards]()

        def begin(condition: str | None) -> None:
            self.depth = depth
            self.put(f"{'elif' if done else 'if'} {condition}:" if condition else "else:")
            self.depth += 1
            self.hazards = Hazards(set(before.stored), set(before.loaded))
            done.append(self.hazards)

        yield begin
        self.depth = depth
        for each in done:
            self.hazards.stored |= each.stored
            self.hazards.loaded |= each.loaded

    def touches(self, s: Stmt) -> tuple[set[Buf], set[Buf]]:
        """Buffers in memory that a statement itself loads from and stores to."""
        loaded, stored = self.reads(*expressions(s)), set[Buf]()
        if isinstance(s, (Map, Reduce)):
            stored = {s.dst}
        if isinstance(s, (Dot, ScaledDot)):
            loaded, stored = loaded | {s.acc}, {s.acc}
        if isinstance(s, ScaledDot):
            loaded |= {s.x.codes, s.x.scale, s.x.scaled_sums}
        kept = self.choices.held
        return loaded - kept, stored - kept
