"""Triton kernels under Triton's own interpreter, in a process of their own.

TRITON_INTERPRET must be set before triton is imported, and an interpreted kernel can spin for
ever (a grid barrier with more than one program), hence the process and its deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Scalar = int | float | bool

WORKER = Path(__file__).with_name("triton_worker.py")


class InterpretError(Exception):
    """The kernel raised, or was killed for being late."""


def interpret(
    source: str,
    kernel: str,
    grid: tuple[int, ...],
    args: Mapping[str, Array | Scalar],
    *,
    timeout_s: float = 60.0,
) -> dict[str, Array]:
    """Run `kernel` of the module text `source` over `grid`; the arrays as they are afterwards.

    `args` names every parameter, constexprs included: an array becomes a pointer, the rest is
    passed as it is. Programs run one after the other.
    """
    arrays = {k: v for k, v in args.items() if isinstance(v, np.ndarray)}
    scalars = {k: v for k, v in args.items() if not isinstance(v, np.ndarray)}
    with tempfile.TemporaryDirectory(prefix="speccc-interpret-") as folder:
        Path(folder, "kernel.py").write_text(source, encoding="utf-8")
        request = {"kernel": kernel, "grid": grid, "scalars": scalars, "arrays": list(arrays)}
        Path(folder, "request.json").write_text(json.dumps(request))
        for i, array in enumerate(arrays.values()):
            np.save(Path(folder, f"in{i}.npy"), array)
        _run(folder, timeout_s)
        return {k: np.load(Path(folder, f"out{i}.npy")) for i, k in enumerate(arrays)}


def _run(folder: str, timeout_s: float) -> None:
    # One thread: torch's pool on a small machine only gets in the way of other tests.
    env = dict(os.environ, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    try:
        done = subprocess.run(
            (sys.executable, str(WORKER), folder),
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InterpretError(f"no result in {timeout_s:g} s; the process was killed") from None
    if done.returncode != 0:
        raise InterpretError(done.stderr[-3000:].strip())
