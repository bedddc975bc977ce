"""The pages that walk through an addition: their code runs, and their tables are counted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from cpu_rig import build, golden, same_bits, single
from graph_models import tiny_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_rig import VOCAB, plain_loop, run
from models import Tiny
from table_session import hashed_table

from speccc.errors import VerifyError
from speccc.ir import interp_graph, ops_state
from speccc.ir.graph import Node, Value, apply
from speccc.ir.graph_text import parse_graph, print_graph
from speccc.ir.ops import Embed
from speccc.ir.plan import phases
from speccc.ir.rewrite import rebuild
from speccc.passes import lower_graph
from speccc.passes.graph_pipeline import optimize
from speccc.runtime.sampling import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
NAMED = re.compile(
    r"`((?:ir|passes|targets|autotune|runtime|speccc|tests|benchmarks|docs)/[\w/.-]+)`"
)


def walked(*pages: str) -> dict[str, Any]:
    """The names that the code of these pages leaves, run one after the other."""
    module = ModuleType("walked")
    with patch.dict(sys.modules, {"walked": module}):
        for page in pages:
            text = (DOCS / page).read_text(encoding="utf-8")
            for match in BLOCK.finditer(text):
                # Line numbers of an error are the page's.
                before = "\n" * text.count("\n", 0, match.start(1))
                exec(compile(before + match[1], page, "exec"), module.__dict__)
    return module.__dict__


@pytest.fixture(scope="module")
def added() -> Iterator[dict[str, Any]]:
    """What the pages on ops and passes define; the tables they add to are put back."""
    tables = (ops_state.OPS, interp_graph._RULES, lower_graph._RULES)
    with patch.dict(tables[0]), patch.dict(tables[1]), patch.dict(tables[2]):
        yield walked("add-an-op.md", "add-a-pass.md")


def test_the_op_of_the_page_prints_and_reads_back(added: dict[str, Any]) -> None:
    graph = added["graph"]
    assert "clip" in print_graph(graph)
    assert parse_graph(print_graph(graph)) == graph
    with pytest.raises(VerifyError, match="low is above high"):
        apply(added["Clip"](2.0, 1.0), graph.params[0])


def test_the_op_of_the_page_is_lowered_and_built(added: dict[str, Any]) -> None:
    graph, _ = tiny_graph(Tiny(), "q4_1")

    def clipped(n: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        if not isinstance(n.op, Embed):
            return None
        return (apply(added["Clip"](-0.5, 0.25), apply(n.op, *inputs)),)

    plan = lower_graph.LowerGraph().run(optimize(rebuild(graph, clipped))).plan
    (kernel,) = (k for k in phases(plan.body) if k.name == "clip")
    src, dst = kernel.bufs
    if src.name == "clip":
        src, dst = dst, src
    (m,) = (v for v in kernel.scalars if v.name == "m")
    columns = dst.shape[1]
    x = np.random.default_rng(0).normal(0, 1, (3, columns)).astype(np.float32)
    arrays = {src: x, dst: np.zeros_like(x)}
    sizes = {v: 3 if v is m else 0 for v in kernel.scalars}
    want = golden(single([kernel]), arrays, sizes)[dst]
    assert same_bits(want, np.clip(x, np.float32(-0.5), np.float32(0.25)))
    built = build(single([kernel]), {v: 8 for v in kernel.scalars})
    assert same_bits(built.run(arrays, sizes)[dst], want)


@settings(max_examples=40)
@given(st.lists(st.floats(width=32), min_size=4, max_size=4))
def test_the_pass_of_the_page_keeps_every_bit(added: dict[str, Any], row: list[float]) -> None:
    given_ = {"x": np.array([row], np.float32)}
    before, after = (interp_graph.run(added[g], given_)["y"] for g in ("graph", "after"))
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.8, seed=4)])
@pytest.mark.parametrize("period", [1, 3])
def test_the_drafter_of_the_page_changes_no_text(period: int, sampling: SamplingParams) -> None:
    drafter = walked("add-a-drafter.md")["PeriodDrafter"](period)
    table = hashed_table(VOCAB, 2)
    plain = plain_loop(table, [1, 2, 3, 1, 2], 40, sampling)
    done, _ = run(table, drafter, sampling=sampling)
    assert list(done.tokens) == plain


def test_code_of_a_page_that_fails_is_found() -> None:
    text = (DOCS / "add-an-op.md").read_text(encoding="utf-8")
    assert text.count("```python") == len(BLOCK.findall(text)) == 5
    with (
        patch.object(Path, "read_text", lambda *a, **k: "a\n```python\nassert 1 == 2\n```\n"),
        pytest.raises(AssertionError) as error,
    ):
        walked("page.md")
    assert error.traceback[-1].lineno == 2


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_what_a_page_points_to_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    here = [link for link in LINK.findall(text) if "://" not in link]
    missing = [link for link in here if not (DOCS / link).exists()]
    named = set(NAMED.findall(BLOCK.sub("", text)))
    missing += [n for n in named if not (ROOT / n).exists() and not (ROOT / f"{n}.py").exists()]
    assert missing == []


def test_the_table_of_targets_is_what_its_command_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import target_lines  # type: ignore[import-not-found]

    page = (DOCS / "add-a-target.md").read_text(encoding="utf-8")
    _, _, rest = page.partition(target_lines.BEGIN)
    table, end, _ = rest.partition(target_lines.END)
    assert end, "the page has lost its marks"
    assert table == target_lines.tables(), "python benchmarks/target_lines.py --write"


def test_a_line_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import target_lines

    reached = {t: target_lines.reached(entry) for t, entry in target_lines.ENTRIES.items()}
    names = {t: {f.relative_to(ROOT).as_posix() for f in files} for t, files in reached.items()}
    assert "targets/sycl/matrix.hpp" in names["sycl"]
    assert "passes/dot_to_fragment.py" in names["metal"] & names["vulkan"] & names["sycl"]
    assert "targets/triton/step.py" in names["cuda"] & names["rocm"]
    assert not any(name.startswith("targets/clike") for name in names["cuda"])
    assert "targets/cpu/render_tile.py" in names["cpu"] - names["cuda"] - names["metal"]
