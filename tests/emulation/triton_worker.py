"""The process behind `TritonMachine`: requests as lines of JSON in, "ok" or a traceback a line out.

Arrays are files that both processes map, so a kernel's writes are seen without copying.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speccc.targets.triton_build import load_triton_module


@cache
def _tensor(path: str, dtype: str, count: int, at: int) -> torch.Tensor:
    return torch.from_numpy(np.memmap(path, dtype=dtype, mode="r+", shape=(count,), offset=at))


@cache
def _kernel(path: str, name: str, folder: Path) -> Any:
    return getattr(load_triton_module(Path(path).read_text(encoding="utf-8"), folder), name)


def main() -> None:
    """Answers until the input ends."""
    with tempfile.TemporaryDirectory(prefix="speccc-interpret-") as folder:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                kernel = _kernel(request["source"], request["kernel"], Path(folder))
                tensors = {k: _tensor(*v) for k, v in request["arrays"].items()}
                with np.errstate(all="ignore"):
                    kernel[tuple(request["grid"])](**tensors, **request["scalars"])
                answer = "ok"
            except Exception:
                answer = traceback.format_exc()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
