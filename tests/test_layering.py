"""The house's layers, by its imports: ir <- passes <- targets <- autotune <- speccc, runtime apart.

The runtime sees only ir's types, formats and tokenizer record: a program that embeds it needs no
compiler. An import in a function counts; one under TYPE_CHECKING does too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ir", "passes", "targets", "autotune", "runtime", "speccc")
SHARED = {
    "speccc.errors",
    "speccc.knobs",
    "speccc.scratch",
    "speccc.system_root",
    "speccc.vulkan_home",
}
RUNTIME_MAY = {"speccc.ir.types", "speccc.ir.formats", "speccc.ir.tokenizer_spec"}

MAY_IMPORT = {
    "ir": {"ir"},
    "passes": {"ir", "passes"},
    "targets": {"ir", "passes", "targets"},
    "autotune": {"ir", "passes", "targets", "autotune", "runtime"},
    "runtime": {"runtime"},
    "speccc": set(FOLDERS),
}


def modules() -> dict[str, Path]:
    """Every module of ours by its import name."""
    out = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] == "speccc" else ("speccc", *parts))
            out[name.removesuffix(".__init__")] = path
    return out


MODULES = modules()


def folder_of(name: str) -> str:
    """The top-level folder a module lives in."""
    second = name.split(".")[1] if "." in name else ""
    return second if second in MAY_IMPORT and second != "speccc" else "speccc"


def imports(name: str, *, everywhere: bool = True) -> set[str]:
    """Our modules that a module imports; `everywhere=False`: those it needs when it is loaded."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else _at_load(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            base = node.module or ""
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else base for full in inner}
    return {target for target in found if target.split(".")[0] == "speccc"}


def _at_load(tree: ast.Module) -> list[ast.AST]:
    """Statements that run when the module does: not in functions, not for type checkers."""
    out: list[ast.AST] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        out.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
    return out


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_layers_below(name: str) -> None:
    allowed = MAY_IMPORT[folder_of(name)]
    for target in imports(name):
        assert target in MODULES, f"{name} imports {target}, which does not exist"
        if target in SHARED or target == "speccc":
            continue
        if folder_of(name) == "runtime" and target in RUNTIME_MAY:
            continue
        assert folder_of(target) in allowed, f"{name} imports {target}"


def test_what_all_may_import_imports_nothing_of_the_house() -> None:
    for name in SHARED:
        assert imports(name) <= SHARED, name
    seen = {t for name in MODULES if folder_of(name) == "runtime" for t in imports(name)}
    needed = (seen | RUNTIME_MAY) & {n for n in MODULES if folder_of(n) == "ir"}
    for name in needed:
        assert all(folder_of(t) == "ir" or t in SHARED for t in imports(name)), name


def test_no_cycles() -> None:
    graph = networkx.DiGraph()
    for name in MODULES:
        graph.add_edges_from((name, t) for t in imports(name, everywhere=False) if t != name)
    # A package's __init__ re-exports its modules, which name the package only as a prefix.
    assert list(networkx.simple_cycles(graph)) == []


def test_every_package_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("packages = "))
    listed = set(ast.literal_eval(line.removeprefix("packages = ")))
    held = {n for n, path in MODULES.items() if path.name == "__init__.py"}
    holding = {n.rpartition(".")[0] for n, path in MODULES.items() if path.name != "__init__.py"}
    assert listed == held
    assert holding <= held, "a folder of modules without __init__.py"


def test_the_walk_sees_what_it_should() -> None:
    assert "speccc.ir.formats" in imports("speccc.ir.frontends.source")
    assert "speccc.api" in imports("speccc.compiled")
    assert "speccc.api" not in imports("speccc.compiled", everywhere=False)
    assert folder_of("speccc.cli.run") == "speccc"
    assert folder_of("speccc.runtime.ngram") == "runtime"
