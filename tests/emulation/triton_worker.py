"""The process behind `triton_interpret`: folder of request.json, kernel.py, in*.npy -> out*.npy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from speccc.targets.triton_build import load_triton_module


def main(folder: Path) -> None:
    """Run the folder's request; an exception ends the process with its traceback."""
    request = json.loads((folder / "request.json").read_text())
    source = (folder / "kernel.py").read_text(encoding="utf-8")
    kernel = getattr(load_triton_module(source, folder), request["kernel"])
    tensors = {
        name: torch.from_numpy(np.load(folder / f"in{i}.npy"))
        for i, name in enumerate(request["arrays"])
    }
    kernel[tuple(request["grid"])](**tensors, **request["scalars"])
    for i, tensor in enumerate(tensors.values()):
        np.save(folder / f"out{i}.npy", tensor.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
