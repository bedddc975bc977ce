"""House rules a machine can check: sizes, docstrings, no traces of unfinished work."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ir", "passes", "targets", "autotune", "runtime", "speccc")
MAX_FUNCTION, MAX_FILE, MAX_LINE = 60, 600, 100
TEXTS = ("*.py", "*.md", "*.toml", "*.txt", "Makefile", ".ci/*")

# Traces of work in progress. A bracket in each keeps this file from matching itself.
FORBIDDEN = tuple(
    re.compile(word)
    for word in (
        r"/(home|root|Users)/[a-z]",  # one machine's paths
        r"\bTOD[O]\b(?!.*test_)",  # allowed when it names the test that waits for it
        r"\bFIXM[E]\b",
        r"\bXX[X]\b",
        r"\bbreakpoin[t]\(\)",
        r"^<<<<<<[<]|^>>>>>>[>]",
    )
)


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def texts() -> list[Path]:
    skipped = {".venv", "build", ".git", "dist"}
    # Not a walk from the root: a virtual environment has a hundred times as many files.
    inside = [d for d in ROOT.iterdir() if d.is_dir() and d.name not in skipped]
    trees = (path for d in inside for pattern in TEXTS for path in d.rglob(pattern))
    top = (path for pattern in TEXTS for path in ROOT.glob(pattern))
    found = {path for path in (*trees, *top) if path.is_file()}
    return sorted(p for p in found if not skipped & set(p.relative_to(ROOT).parts[:-1]))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(tree: ast.AST) -> Iterator[str]:
    """Functions over the limit. Their docstring, signature and decorators do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            body = node.body[1:] if documented else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
            if length > MAX_FUNCTION:
                yield f"{node.name}: {length} lines"


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public functions and classes without a docstring; nested ones and methods excepted."""
    if ast.get_docstring(tree) is None:
        yield "the module"
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node) is None
        ):
            yield node.name


@pytest.mark.parametrize("path", sources(), ids=name)
def test_sizes_and_docstrings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert list(long_functions(tree)) == []
    assert len(text.splitlines()) <= MAX_FILE
    assert max((len(line) for line in text.splitlines()), default=0) <= MAX_LINE
    if text.strip():
        assert list(undocumented(tree)) == []


@pytest.mark.parametrize("path", texts(), ids=name)
def test_no_stray_words(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for word in FORBIDDEN:
            assert not word.search(line), f"line {number}: {line.strip()}"


def test_tests_are_not_empty() -> None:
    """Every test file has a test, and every test can fail: it asserts, raises or calls a helper."""
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        assert tests, path.name
        for test in tests:
            kinds = (ast.Assert, ast.Raise, ast.Call)
            assert any(isinstance(node, kinds) for node in ast.walk(test)), test.name


def test_the_rules_catch_what_they_should() -> None:
    body = "\n".join(["    x = 1"] * (MAX_FUNCTION + 1))
    assert list(long_functions(ast.parse(f"def f():\n{body}")))
    assert not list(long_functions(ast.parse(f'def f():\n    """{chr(10) * 80}"""\n    x = 1')))
    assert list(undocumented(ast.parse('"""M."""\ndef f(): pass'))) == ["f"]
    unfinished, waiting = (f"# {'TO'}DO {rest}" for rest in ("later", "see test_x"))
    assert any(word.search(unfinished) for word in FORBIDDEN)
    assert not any(word.search(waiting) for word in FORBIDDEN)
