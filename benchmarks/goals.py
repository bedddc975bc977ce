"""Hold a result of `speccc bench MODEL --against llama.cpp --json` against the project's goals.

    python benchmarks/goals.py RESULT.json

Prints each figure beside its goal; exit code 1 when one is missed. Figures that were not measured
(no `--context-lengths`) are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OTHER = "llama.cpp"
RATIOS = {"1": 0.50, "4": 0.20, "8": 0.16, "16": 0.15}
"""T(m) over the other engine's T(m), at most."""
Goal = tuple[str, float, float, bool]
"""What, the figure, its goal, whether less is better."""


def goals(told: dict[str, Any]) -> Iterator[Goal]:
    """Every goal the result has a figure for."""
    ours, theirs = told["verify_ms"], told["against"][OTHER]["verify_ms"]
    for m, most in RATIOS.items():
        if m in ours and m in theirs:
            yield f"T({m}) / {OTHER}'s", ours[m] / theirs[m], most, True
    if "1" in ours and "8" in ours:
        yield "T(8) / T(1)", ours["8"] / ours["1"], 1.5, True
    yield "widths dearer than the next", len(told["dearer_widths"]), 0, True
    if "1" in ours:
        yield "T(1), % of bandwidth", told["roofline"]["bandwidth_percent"]["1"], 80, False
    other = told["against"][OTHER]
    yield f"prefill / {OTHER}'s", told["prefill_tok_s"] / other["prefill_tok_s"], 4, False
    for name, task in told["tasks"].items():
        plain, drafted = task["plain_tok_s"], task["speculative_tok_s"]
        yield f"{name}: speculative / plain", drafted / plain, 0.98, False
        yield f"{name}: runs that differ", float(not task["identical"]), 0, True
    edit = told["tasks"]["edit"]["speculative_tok_s"]
    yield f"edit / {OTHER}'s plain", edit / other["tasks"]["edit"]["plain_tok_s"], 5, False
    yield "peak memory / plan", told["memory"]["ratio"], 1.25, True
    mine, other_at = told["contexts"].get("speccc", []), told["contexts"].get(OTHER, [])
    for at, beside in zip(mine, other_at, strict=True):
        if at["context"] == 4096:
            ratio = at["verify_ms"]["8"] / beside["verify_ms"]["8"]
            yield f"T(8) at 4096 / {OTHER}'s", ratio, 0.5, True


def main() -> int:
    """Prints the table; 1 when a goal is missed."""
    told = json.loads(Path(sys.argv[1]).read_text())
    missed = 0
    for what, figure, goal, less in goals(told):
        met = figure <= goal if less else figure >= goal
        missed += not met
        sign = "<=" if less else ">="
        print(f"{'ok  ' if met else 'MISS'}  {what:30} {figure:8.3f}  {sign} {goal:g}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
