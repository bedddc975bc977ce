"""Generated texts kept in tests/golden: a change of a generator shows as a change of a file.

`pytest --update-golden` writes them anew; what changed is then read as a diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden")


def check_golden(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """The text equals the kept file `name`, which `--update-golden` replaces first."""
    path = GOLDEN / name
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == kept, f"{name} is another text now: run pytest --update-golden, read the diff"
