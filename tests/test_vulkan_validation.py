"""Vulkan's validation layer watches whole steps: silent as they are, and not without barriers.

The CPU's driver runs one dispatch after the other, so that a barrier that is missing between two
changes no result there. The layer knows what each of them reads and writes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from emulation.require import require
from emulation.vulkan_root import validation_layers
from test_numerics import tokens_of
from vulkan_rig import NAMES, SPECS, model_of

from speccc.runtime.devices import vulkan_worker

WATCHED = {
    "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
    "VK_LAYER_VALIDATE_CORE": "1",
    "VK_LAYER_VALIDATE_SYNC": "1",
    # Of what shaders read and write, too.
    "VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC": "1",
    "VK_LAYER_REPORT_FLAGS": "error,warn,perf",
    "VK_LAYER_DEBUG_ACTION": "VK_DBG_LAYER_ACTION_LOG_MSG",
}
BARRIER = "    vkCmdPipelineBarrier("


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the layer says of the workers that the test starts."""
    require("validation")
    for name, value in WATCHED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VK_LAYER_PATH", str(validation_layers()))
    said = tmp_path / "said"
    monkeypatch.setenv("VK_LAYER_LOG_FILENAME", str(said))
    return said


def steps(which: str) -> None:
    """A prompt, rows one by one as they were recorded, a tree, a path kept, and picks."""
    session = model_of(which).session(context=64, threads=3)
    tokens = tokens_of(SPECS[which].tiny, 30)
    session.prefill(tokens[:9])
    for at in range(9, 12):
        session.forward(tokens[at : at + 1])
    session.forward(tokens[12:18], parents=[-1, -1, 1, 0, 2, 4])
    session.keep([1, 2, 4, 5])
    session.pick(tokens[18:21])
    session.top(tokens[21:23], 8)
    session.close()


@pytest.mark.parametrize("which", NAMES)
def test_the_layer_has_nothing_to_say(which: str, log: Path) -> None:
    steps(which)
    assert log.read_text() == ""


def test_it_sees_steps_without_barriers(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's source with the only call that makes one taken out."""
    source = vulkan_worker.SOURCE
    for file in source.parent.iterdir():
        text = file.read_text()
        (tmp_path / file.name).write_text(text.replace(BARRIER, f"    if (0){BARRIER.rstrip()}"))
    assert sum(f.read_text().count("if (0)") for f in tmp_path.glob("*.h")) == 1
    monkeypatch.setattr(vulkan_worker, "SOURCE", tmp_path / source.name)
    steps(NAMES[0])
    said = log.read_text()
    assert "SYNC-HAZARD-READ-AFTER-WRITE" in said
    assert "SYNC-HAZARD-WRITE-AFTER-READ" in said
