"""Kernels and plans as text to read: deterministic, one statement a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from speccc.ir.expr import Apply, Const, Expr, Fn, Load, LoadBytes, Var
from speccc.ir.plan import Loop, Plan, Step
from speccc.ir.tile import (
    Alloc,
    Axis,
    Buf,
    Dot,
    For,
    Kernel,
    Map,
    Reduce,
    RowTiles,
    ScaledDot,
    Share,
    Stmt,
)

_INFIX = {
    Fn.ADD: "+",
    Fn.SUB: "-",
    Fn.MUL: "*",
    Fn.DIV: "/",
    Fn.IDIV: "//",
    Fn.MOD: "%",
    Fn.AND: "&",
    Fn.OR: "|",
    Fn.XOR: "^",
    Fn.SHL: "<<",
    Fn.SHR: ">>",
    Fn.LT: "<",
    Fn.LE: "<=",
    Fn.EQ: "==",
}


def print_plan(plan: Plan) -> str:
    """The buffers of a plan by role, then its phases."""
    text = _Text()
    sizes = ", ".join(text.name(v) for v in plan.sizes)
    lines = [f"plan {plan.name}({sizes})"]
    lines += [f"  {b.role.value} {text.declare(b.buf)}" for b in plan.bufs]
    return "\n".join([*lines, *_steps(plan.body, text, 1), ""])


def print_kernel(kernel: Kernel) -> str:
    """One kernel."""
    return "\n".join([*_kernel(kernel, _Text(), 0), ""])


def print_expr(e: Expr | int) -> str:
    """One expression by itself."""
    return _Text().expr(e)


def headline(s: Stmt) -> str:
    """A statement in a few words, for error messages: what it is and what it is about."""
    about = next((getattr(s, f) for f in ("dst", "acc", "buf", "var") if hasattr(s, f)), None)
    word = _WORDS.get(type(s), type(s).__name__)
    return f"{word} {about.name}" if isinstance(about, (Buf, Var)) else word


_WORDS: dict[type, str] = {
    Alloc: "alloc",
    For: "for",
    Share: "share",
    RowTiles: "row_tiles",
    Map: "map",
    Reduce: "reduce",
    Dot: "dot",
    ScaledDot: "scaled_dot",
}


def _steps(body: tuple[Step, ...], text: _Text, depth: int) -> list[str]:
    out: list[str] = []
    for step in body:
        if isinstance(step, Loop):
            out.append("  " * depth + f"loop {text.name(step.var)} < {step.extent}")
            out += _steps(step.body, text, depth + 1)
        else:
            out += _kernel(step, text.child(), depth)
    return out


def _kernel(kernel: Kernel, text: _Text, depth: int) -> list[str]:
    for v in kernel.scalars:
        text.name(v)
    bufs = ", ".join(text.declare(b) for b in kernel.bufs)
    return ["  " * depth + f"kernel {kernel.name}({bufs})", *_lines(kernel.body, text, depth + 1)]


def _lines(body: tuple[Stmt, ...], text: _Text, depth: int) -> list[str]:
    out: list[str] = []
    for s in body:
        render = _STATEMENT.get(type(s))
        words = type(s).__name__ if render is None else render(s, text)
        out.append("  " * depth + words)
        if isinstance(s, (For, Share)):
            out += _lines(s.body, text, depth + 1)
        if isinstance(s, RowTiles):
            for width, variant in s.variants:
                out.append("  " * (depth + 1) + f"width {width}")
                out += _lines(variant, text, depth + 2)
    return out


@dataclass
class _Text:
    """Names of variables and buffers: their own, numbered where two objects share one."""

    names: dict[Var | Buf, str] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def child(self) -> _Text:
        """For one kernel: knows the plan's names, keeps its own to itself."""
        return _Text(dict(self.names), dict(self.taken))

    def name(self, thing: Var | Buf) -> str:
        """The name of a variable or buffer, given at first sight."""
        if thing not in self.names:
            count = self.taken.get(thing.name, 0)
            self.taken[thing.name] = count + 1
            self.names[thing] = f"{thing.name}.{count}" if count else thing.name
        return self.names[thing]

    def declare(self, buf: Buf) -> str:
        """name: type[sizes] memory."""
        sizes = ", ".join(self.expr(d) for d in buf.shape)
        return f"{self.name(buf)}: {buf.dtype}[{sizes}]"

    def element(self, buf: Buf, index: tuple[Expr, ...]) -> str:
        """buf[index]."""
        return f"{self.name(buf)}[{', '.join(self.expr(i) for i in index)}]"

    def axes(self, axes: tuple[Axis, ...]) -> str:
        """' for i < 8, j < 16', or nothing."""
        shown = ", ".join(f"{self.name(a.var)} < {self.expr(a.extent)}" for a in axes)
        return f" for {shown}" if shown else ""

    def expr(self, e: Expr | int) -> str:
        """An expression, every operation inside another in parentheses."""
        if isinstance(e, (int, Const)):
            return str(e) if isinstance(e, int) else repr(e.value)
        if isinstance(e, Var):
            return self.name(e)
        if isinstance(e, Load):
            return self.element(e.buf, e.index)
        if isinstance(e, LoadBytes):
            return f"{self.name(e.buf)}.{e.dtype}[{self.expr(e.at)}]"
        return self.apply(e)

    def apply(self, e: Apply) -> str:
        """An operation: infix, a type's name for a cast, or a call."""
        if e.fn in _INFIX and len(e.args) == 2:
            a, b = (self.operand(x) for x in e.args)
            return f"{a} {_INFIX[e.fn]} {b}"
        name = {Fn.CAST: str(e.dtype), Fn.BITCAST: f"bits_{e.dtype}"}.get(e.fn, e.fn.value)
        return f"{name}({', '.join(self.expr(a) for a in e.args)})"

    def operand(self, e: Expr) -> str:
        """An operand of an infix operation."""
        infix = isinstance(e, Apply) and e.fn in _INFIX
        return f"({self.expr(e)})" if infix else self.expr(e)


def _alloc(s: Alloc, t: _Text) -> str:
    return f"{s.buf.mem.value} {t.declare(s.buf)}"


def _for(s: For, t: _Text) -> str:
    return f"for {t.name(s.var)} in {t.expr(s.lo)}..{t.expr(s.hi)}"


def _share(s: Share, t: _Text) -> str:
    return f"share {t.name(s.var)} < {t.expr(s.extent)}"


def _row_tiles(s: RowTiles, t: _Text) -> str:
    return f"row_tiles {t.name(s.var)} < {t.expr(s.extent)}"


def _map(s: Map, t: _Text) -> str:
    axes = t.axes(s.axes)
    return f"{t.element(s.dst, s.index)} = {t.expr(s.value)}{axes}"


def _reduce(s: Reduce, t: _Text) -> str:
    axis = t.axes((s.axis,))
    return f"{t.element(s.dst, s.index)} = {s.red.value}({t.expr(s.value)}{axis})"


def _dot(s: Dot, t: _Text) -> str:
    i, j, k = t.name(s.i), t.name(s.j), t.name(s.k)
    span = f"{k} in {t.expr(s.lo)}..{t.expr(s.hi)}"
    word = "dot" if s.engine is None else f"dot.{s.engine}"
    return f"{t.name(s.acc)}[{i}, {j}] += {word}({t.expr(s.a)}, {t.expr(s.b)}, {span})"


def _scaled_dot(s: ScaledDot, t: _Text) -> str:
    rows = f"{t.name(s.x.codes)} from row {t.expr(s.x.row)}"
    panel = f"panel {t.expr(s.panel)} of {s.w.format.name}[{s.w.rows}, {s.w.k}]"
    return (
        f"{t.name(s.acc)} += scaled_dot({rows}, {panel} at {t.name(s.blob)} + {t.expr(s.offset)})"
    )


_STATEMENT: dict[type, Callable[[Any, _Text], str]] = {
    Alloc: _alloc,
    For: _for,
    Share: _share,
    RowTiles: _row_tiles,
    Map: _map,
    Reduce: _reduce,
    Dot: _dot,
    ScaledDot: _scaled_dot,
}
