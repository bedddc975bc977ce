"""Jinja's immutable sandbox with bounds on every operation that can make a value grow.

Values are bounded when they are made (literals, concatenation, arithmetic, captured blocks) and
when they are passed to a filter or call, so no single operation works on more than `MAX_SIZE`
characters or `MAX_ITEMS` items.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import do_indent
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_SIZE = 8 << 20
MAX_ITEMS = 1 << 16
MAX_BITS = 1024
# Those that published chat templates use; none makes more than a small multiple of its input.
FILTERS = frozenset(
    {
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "groupby",
        "indent",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "unique",
        "upper",
        "wordcount",
    }
)
# String methods whose result is bounded by their arguments (`join`, `replace`: see `call`).
METHODS = frozenset(
    {
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isdigit",
        "islower",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    }
)
# Largest number of decimals `round` is asked for; it computes a power of ten.
MAX_DECIMALS = 32


class LimitError(TemplateError):
    """A template made, or was about to make, something too large, or ran too long."""


class _Compiler(CodeGenerator):
    """Wraps literals and `~` in the sandbox's checks."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._checked(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._checked(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
        else:
            self._checked(super().visit_Tuple, node, frame)

    def _checked(self, visit: Callable[..., None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.checked(")
        visit(node, frame)
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates run in, with the options Hugging Face uses."""

    code_generator_class = _Compiler
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=checked,
            extensions=["jinja2.ext.loopcontrols"],
        )
        own: dict[str, Callable[..., Any]] = {"tojson": _tojson, "indent": _indent}
        self.filters = {name: _bounded(name, own.get(name, self.filters[name])) for name in FILTERS}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        # `concat` joins captured blocks and the whole output.
        self.concat = self.concatenate  # type: ignore[method-assign]

    @staticmethod
    def concatenate(parts: Iterable[object]) -> str:
        """The parts as one string of bounded size."""
        out, size = [], 0
        for part in parts:
            text = part if isinstance(part, str) else str(checked(part))
            size += len(text)
            if size > MAX_SIZE:
                raise LimitError(f"makes a text longer than {MAX_SIZE} characters")
            out.append(text)
        return "".join(out)

    @staticmethod
    def checked(value: object) -> object:
        """The value itself when it is of bounded size."""
        return checked(value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call from the template, its arguments and replacements bounded."""
        for arg in (*args, *kwargs.values()):
            checked(arg)
        owner = getattr(obj, "__self__", None)
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "replace" and len(args) >= 2:
            _check_replace(owner, args[0], args[1])
        if isinstance(owner, str) and name == "join" and args:
            args = (_check_join(args[0], owner), *args[1:])
        return checked(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic whose result could be far larger than its operands."""
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator in ("*", "**") and not numbers:
            raise LimitError(f"multiplies other things than numbers with {operator}")
        if operator == "%" and isinstance(left, str):
            raise LimitError("formats a text with %; use ~ to join texts")
        if operator == "**" and (abs(left) > MAX_BITS or abs(right) > 64):
            raise LimitError("raises to a power too large")
        return checked(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuses `str.format`, whose widths are numbers of the template's choice."""
        if super().wrap_str_format(value) is not None:
            raise LimitError("formats a text with format(); use ~ to join texts")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's own rule, less what pads, formats or encodes; numbers have no attributes."""
        if isinstance(obj, str) and attr not in METHODS:
            return False
        if isinstance(obj, (int, float, bytes)):
            return False
        return super().is_safe_attribute(obj, attr, value)


def checked(value: object) -> object:
    """The value itself; LimitError when its text would be too long or its numbers too large.

    Shared parts count once for each place they appear, as they would in a text made of them.
    """
    size, items = 0, 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (str, bytes)):
            size += len(item)
        elif isinstance(item, int) and item.bit_length() > MAX_BITS:
            raise LimitError(f"makes a number of more than {MAX_BITS} bits")
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif isinstance(item, Namespace):
            stack.append(object.__getattribute__(item, "_Namespace__attrs"))
        items += 1
        if size > MAX_SIZE or items + len(stack) > MAX_ITEMS:
            raise LimitError(f"makes a value of over {MAX_SIZE} characters or {MAX_ITEMS} items")
    return value


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with its arguments and result bounded."""

    def run(*args: Any, **kwargs: Any) -> Any:
        for arg in (*args, *kwargs.values()):
            checked(arg)
        plain = [a for a in args if isinstance(a, str)]
        if name == "replace" and len(plain) >= 3:
            _check_replace(*plain[:3])
        if name == "round" and any(
            isinstance(a, int) and abs(a) > MAX_DECIMALS for a in (*args[1:], *kwargs.values())
        ):
            raise LimitError("rounds to too many decimals")
        if name == "join":
            args = _bounded_join(args, kwargs)
        return checked(function(*args, **kwargs))

    # Jinja reads markers such as `pass_environment` from the function itself.
    run.__dict__.update(getattr(function, "__dict__", {}))
    return run


def _bounded_join(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments (context, items, separator...) of `join` with its items as a bounded list."""
    separator = kwargs.get("d", args[2] if len(args) > 2 else "")
    return (args[0], _check_join(args[1], str(separator)), *args[2:])


def _check_replace(text: str, old: object, new: object) -> None:
    count = text.count(str(old))
    if len(text) + count * len(str(new)) > MAX_SIZE:
        raise LimitError("replaces with a text too long")


def _check_join(items: Iterable[object], separator: str) -> list[object]:
    listed = list(items)
    checked(listed)
    if len(listed) * len(separator) > MAX_SIZE:
        raise LimitError("joins too much text")
    return listed


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, Unicode kept."""
    if indent is not None and not 0 <= indent <= 16:
        raise LimitError("indents JSON too far")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's indent with a bounded width."""
    columns = len(width) if isinstance(width, str) else width
    if columns > 64:
        raise LimitError("indents a text too far")
    return do_indent(text, width, first, blank)
