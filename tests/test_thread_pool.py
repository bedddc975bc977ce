"""The pool's workers sleep between steps, and the environment can say otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_rig import Spec, model_file
from models import Tiny

from speccc.driver import CompileOptions, compile_to

IDLE = """
import sys, time
import speccc
session = speccc.load(sys.argv[1]).session(threads=2)
session.pick([1, 2, 3])
begun = time.process_time()
time.sleep(1)
print(time.process_time() - begun)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    made = folder / "m.speccc"
    compile_to(model_file(Spec(Tiny(seed=31)), folder), made, CompileOptions(measure=False))
    return made


def idle_cpu_seconds(artifact: Path, **environment: str) -> float:
    """CPU time of a second after a step in which nobody asks for anything."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TVM_")}
    done = subprocess.run(
        [sys.executable, "-c", IDLE, str(artifact)],
        env={**kept, "TVM_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(done.stdout)


def test_workers_sleep_between_steps(artifact: Path) -> None:
    """CPU time, not the clock: 2000 turns take some 1 ms; TVM's own 300000 take 100 ms and more."""
    assert idle_cpu_seconds(artifact) < 0.02


def test_the_environment_decides(artifact: Path) -> None:
    """Else the test above would pass with a pool that does not exist."""
    spinning = idle_cpu_seconds(artifact, TVM_THREAD_POOL_SPIN_COUNT="300000")
    assert spinning > 0.02
