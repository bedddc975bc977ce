"""Chat messages to prompt text by the model's own Jinja template, which is hostile input.

The template runs in Jinja's immutable sandbox with few filters, and every operation that can make
a value grow is bounded before it runs; steps, time and output are limited as well.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING

import jinja2

from speccc.errors import InputError
from speccc.runtime.chat_sandbox import LimitError, Sandbox

if TYPE_CHECKING:
    from _typeshed import TraceFunction

MAX_TEMPLATE = 1 << 20
MAX_STEPS = 2_000_000
MAX_SECONDS = 10.0


class ChatTemplate:
    """A compiled chat template; `where` names its model in errors."""

    def __init__(self, source: str, where: str = "model") -> None:
        """Compile a template; InputError when it is too long or not valid."""
        self._where = f"{where}: chat template"
        if len(source) > MAX_TEMPLATE:
            raise InputError(f"is longer than {MAX_TEMPLATE} characters", where=self._where)
        environment = Sandbox()
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(
                f"line {error.lineno}: {_line(error.message or '')}", where=self._where
            ) from None
        except (LimitError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise InputError(f"cannot be compiled: {_line(error)}", where=self._where) from None

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        variables: Mapping[str, object] | None = None,
        max_steps: int = MAX_STEPS,
        max_seconds: float = MAX_SECONDS,
    ) -> str:
        """The prompt for messages with `role` and `content` (and what else the template reads).

        `variables` are further template variables such as `tools`. InputError when a message is
        malformed, the template refuses it, or a limit is passed.
        """
        self._check(messages)
        values: dict[str, object] = {
            "messages": json.loads(json.dumps([dict(m) for m in messages])),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
            **(variables or {}),
        }
        try:
            with _Watch(max_steps, max_seconds):
                return self._template.render(values)
        except (jinja2.TemplateError, ArithmeticError, LookupError) as error:
            raise InputError(_line(error), where=self._where) from None
        except (AttributeError, RecursionError, MemoryError, TypeError, ValueError) as error:
            raise InputError(_line(error), where=self._where) from None

    def _check(self, messages: Sequence[Mapping[str, object]]) -> None:
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InputError(f"message {i} is not an object with a role", where=self._where)
        try:
            json.dumps([dict(m) for m in messages])
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"messages are not plain data: {error}", where=self._where) from None


class _Watch:
    """Counts lines of compiled template code in this thread and stops it at a limit.

    Seconds are those of this thread: on a busy machine a template is as long as on an idle one.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps = steps
        self._until = time.thread_time() + seconds

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        return self._line if frame.f_code.co_filename == "<template>" else None

    def _line(self, frame: FrameType, event: str, arg: object) -> TraceFunction:
        self._steps -= 1
        if self._steps < 0:
            raise LimitError("takes too many steps")
        if time.thread_time() > self._until:
            raise LimitError("takes too long")
        return self._line


def _raise(message: object = "") -> None:
    raise jinja2.TemplateError(f"refuses the messages: {message}")


def _strftime_now(form: object) -> str:
    """The local time by a strftime format."""
    if not isinstance(form, str) or len(form) > 100 or any(c.isdigit() for c in form):
        raise jinja2.TemplateError("strftime_now needs a short format without widths")
    return datetime.now().strftime(form)


def _line(error: object) -> str:
    """An error's text on one line of bounded length."""
    return " ".join(str(error).split())[:300] or type(error).__name__
