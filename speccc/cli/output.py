"""What the commands print with: progress bars on stderr, tables and JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from speccc.errors import InputError

if TYPE_CHECKING:
    from rich.progress import TaskID


class Report(Protocol):
    """Shows that a piece of work has come to `done` of `total`."""

    def __call__(self, work: str, done: int, total: int, /) -> None: ...


def json_option(function: Callable[..., None]) -> Callable[..., None]:
    """The flag every command has."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def print_json(value: object) -> None:
    """One JSON document on stdout; NaN and infinities are refused, not written."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def note(text: str) -> None:
    """A line for the user on stderr."""
    click.echo(text, err=True)


@contextmanager
def progress() -> Iterator[Report]:
    """Bars on stderr while it is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda work, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def report(work: str, done: int, total: int) -> None:
            if work not in tasks:
                tasks[work] = bars.add_task(work, total=total)
            bars.update(tasks[work], completed=done, total=total)
            if done >= total:
                bars.remove_task(tasks.pop(work))

        yield report


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), title: str = "") -> None:
    """Aligned columns on stdout; numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(value) for value in row] for row in rows]
    width = max((len(row) for row in cells), default=len(header))
    view = Table(box=None, show_header=bool(header), title=title or None, title_justify="left")
    for i in range(width):
        column = [row[i] for row in cells if i < len(row)]
        number = bool(column) and all(_numeric(text) for text in column) and i > 0
        view.add_column(header[i] if header else "", justify="right" if number else "left")
    for row in cells:
        view.add_row(*(Text(text) for text in row))
    if sys.stdout.isatty():
        Console().print(view)
        return
    # A pipe gets whole lines: no folding, no trailing blanks.
    console = Console(width=_WIDE, no_color=True)
    with console.capture() as capture:
        console.print(view)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


_WIDE = 4096


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _numeric(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()


def size(count: int) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def exists(path: str) -> str:
    """The path of a model file, folder or artifact; InputError when there is nothing."""
    if not Path(path).exists():
        raise InputError("no such file", where=path)
    return path
