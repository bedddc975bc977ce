"""What one C-like language calls things: the whole difference between GLSL, SYCL and MSL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speccc.ir.expr import Fn, LoadBytes
from speccc.ir.fragment import Fragment

if TYPE_CHECKING:
    from speccc.targets.clike.expr import Exprs
    from speccc.targets.clike.render import Renderer


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names, and a table of statements.

    Every dialect has casts that look like calls (`int(x)`), so a type's name is one word. The body
    of a kernel may use `invocation` (its number in the workgroup), `workgroup`, `workgroups`
    (`opening` sets them) and the constants INVOCATIONS and SUBGROUPS (`declarations` makes them).
    """

    name: str
    """Of the target, as errors say it: "vulkan"."""
    title: str
    """Of the target, in the head of a text: "Vulkan"."""
    first: str
    """What a text must begin with, with its line end."""
    reserved: frozenset[str]
    """Words no object may be called; `speccc.targets.clike.names.OURS` are known besides."""
    types: Mapping[str, str]
    """Element types; "index" is the type of loop variables and positions."""
    calls: Mapping[Fn, str]
    """Functions: MIN MAX FMA ABS RINT SQRT EXP DOT4."""
    bitcasts: Mapping[tuple[str, str], str]
    """(from, to) -> function; between u32 and f32 in any case. A bf16 is the low half of a u32."""
    float_suffix: str
    """What makes a literal an f32."""
    exact: str
    """Qualifier of a local whose value must not be contracted or reassociated; with its space."""
    constant: str
    """How a global integer constant is declared: "const int"."""
    function: str
    """What stands before a function of the prelude; with its space."""
    subgroup: str
    """The number of the invocation's subgroup, an expression of the index type."""
    lane: str
    """The number of the invocation in its subgroup, an expression of the index type."""
    shuffle: str
    """`{0}` as the invocation has it whose number in the subgroup differs in the bit `{1}`."""
    rolled: str
    """What stands before a loop of the whole workgroup, or over the elements it deals out, lest the
    compiler unroll it: barriers stay, and code grows out of the instruction cache; with its space.
    """
    barrier: str
    """A statement: all invocations meet, and see what all wrote to memory before."""
    half: str
    """A normal half as a float, `{}` standing for its bits as an unsigned integer."""
    reader: Callable[[Exprs, LoadBytes, str], str]
    """A number read from bytes at a place; halves of both kinds come as their float."""
    fragment: Callable[[Renderer, Fragment], str]
    """The type of a fragment."""
    declarations: Callable[[Renderer], None]
    """All that stands between the head of a text and its entry point."""
    entry: Callable[[Renderer], str]
    """The head of the entry point, without its brace; sets `Renderer.entry` to its name."""
    opening: Callable[[Renderer], None]
    """The first lines of the entry point's body."""
    statements: Mapping[type, Callable[..., None]]
    """FragZero, FragLoad, FragStore, FragMma; and any statement that is said in another way."""
