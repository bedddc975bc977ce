"""What a compile keeps in the tuning cache comes back whole from an export and from a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from models import tiny_llama

from speccc import driver
from speccc.autotune.vocabulary import VOCABULARY
from speccc.cli import run
from speccc.verify_cache import KERNEL
from speccc.verify_cost import WIDTHS, Measured, VerifyTable, measure


class Machines:
    """`speccc cache ...` on machines that each have a cache of their own."""

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self.patch, self.capsys = root, patch, capsys

    def on(self, machine: str, *args: str) -> str:
        """What a command that succeeds writes."""
        self.patch.setenv("SPECCC_CACHE_DIR", str(self.root / machine))
        self.capsys.readouterr()
        assert run(list(args)) == 0
        return self.capsys.readouterr().out

    def json(self, machine: str, *args: str) -> dict[str, Any]:
        return json.loads(self.on(machine, "cache", *args, "--json"))  # type: ignore[no-any-return]


def unhurried(session: Measured, room: int) -> VerifyTable:
    """T(m) as a machine with nothing else to do would find it: a busy one keeps several tables."""
    found = measure(session, room)
    return VerifyTable({w: [found.measured[w]] * len(ms) for w, ms in found.samples.items()})


@pytest.fixture
def machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Machines:
    """Machines of which `a` has compiled a model."""
    found = Machines(tmp_path, monkeypatch, capsys)
    monkeypatch.setattr(driver, "measure", unhurried)
    model = str(tiny_llama(tmp_path, fmt="q8_0"))
    found.on("a", "compile", model, "--tune", "2", "-o", str(tmp_path / "m.speccc"))
    return found


def test_what_a_compile_keeps_goes_everywhere(machines: Machines) -> None:
    kernels = machines.json("a", "stats")["kernels"]
    assert kernels[KERNEL] == len(WIDTHS)
    assert set(kernels) <= set(VOCABULARY)
    total = sum(kernels.values())

    file = machines.root / "a.jsonl"
    text = machines.on("a", "cache", "export")
    file.write_text(text)
    assert machines.json("b", "import", str(file)) == {"records": total, "added": total}
    assert machines.on("b", "cache", "export") == text

    url = (machines.root / "store").as_uri()
    assert machines.json("a", "push", url)["records"] == total
    pulled = machines.json("c", "pull", url)
    assert (pulled["records"], pulled["added"], pulled["refused"]) == (total, total, {})
    for machine in ("a", "b", "c"):
        done = machines.json(machine, "push", url)
        assert (done["files"], done["records"], done["there"]) == (0, 0, total)
