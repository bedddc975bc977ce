"""How large each target is, counted: the tables of docs/add-a-target.md, in Markdown.

python benchmarks/target_lines.py [--write]

A target's code is what its module reaches by imports within `targets` and `passes`, and the other
files of its folder. What one target alone reaches is its own. Counts are to the nearest ten, so
that not every edit changes them. `--write` puts the tables into the page.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from speccc.targets.registry import MODULES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "add-a-target.md"
BEGIN, END = "<!-- python benchmarks/target_lines.py -->\n", "<!-- end -->\n"
ENTRIES = {"cpu": "speccc.targets.cpu.target", **MODULES}
COUNTED = ("targets", "passes")
WORKERS = {"vulkan": "runtime/devices/worker"}
"""A driver's files that are not named after its target."""

Rows = list[tuple[str, ...]]


def lines(files: Iterable[Path]) -> int:
    """Lines of the files, blank ones too, to the nearest ten."""
    return round(sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files) / 10) * 10


def file_of(module: str) -> Path | None:
    """The file of a module of the counted folders; None for any other."""
    parts = module.split(".")[1:]
    if not parts or parts[0] not in COUNTED:
        return None
    path = ROOT.joinpath(*parts)
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def imported(file: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def reached(entry: str) -> set[Path]:
    """The counted files that a target's module needs, and what lies beside it."""
    first = file_of(entry)
    if first is None:
        return set()
    found = {file for file in first.parent.iterdir() if file.suffix in (".py", ".hpp")}
    todo = [file for file in found if file.suffix == ".py"]
    while todo:
        for module in imported(todo.pop()):
            file = file_of(module)
            if file is not None and file not in found:
                found.add(file)
                todo.append(file)
    return found


def driver(target: str) -> list[Path]:
    """The files that run what a target built."""
    files = list((ROOT / "runtime" / "devices").glob(f"{target}*.py"))
    if target in WORKERS:
        files += [file for file in (ROOT / WORKERS[target]).iterdir() if file.is_file()]
    return files


def tables() -> str:
    """Lines by target, smallest first, and of what several targets share."""
    needs = {target: reached(entry) for target, entry in ENTRIES.items()}
    users: dict[Path, list[str]] = defaultdict(list)
    for target, files in needs.items():
        for file in files:
            users[file].append(target)
    own = {t: lines(f for f in files if users[f] == [t]) for t, files in needs.items()}
    ordered = sorted(own, key=lambda target: (own[target], target))
    rows = [(t, str(own[t]), str(lines(driver(t)))) for t in ordered]
    shared: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for file, who in users.items():
        if len(who) > 1:
            shared[tuple(who)].append(file)
    groups = [
        ("all" if len(who) == len(ENTRIES) else ", ".join(who), str(lines(files)), _folders(files))
        for who, files in sorted(shared.items(), key=lambda item: (-len(item[0]), item[0]))
    ]
    return (
        f"{_markdown([('target', 'lines of its own', 'its driver'), *rows])}\n"
        f"{_markdown([('shared by', 'lines', 'in'), *groups])}"
    )


def _folders(files: Iterable[Path]) -> str:
    return ", ".join(sorted({f"`{file.relative_to(ROOT).parent.as_posix()}`" for file in files}))


def _markdown(rows: Rows) -> str:
    body = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in body)


def main(words: list[str]) -> None:
    """Prints the tables, or writes them where the page has them."""
    if words not in ([], ["--write"]):
        sys.exit(__doc__)
    if not words:
        print(tables(), end="")
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{tables()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
