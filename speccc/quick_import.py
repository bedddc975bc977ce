"""Start TVM's runtime without PyTorch: where both are installed it would import torch for 3 s.

Only for processes of ours (the command line, the bench's workers); a program that embeds the
runtime keeps TVM's own behaviour.
"""

from __future__ import annotations

import importlib
import sys


def import_tvm_ffi() -> None:
    """Import `tvm_ffi` as if torch were absent; nothing when either is imported already."""
    if "torch" in sys.modules or "tvm_ffi" in sys.modules:
        return
    # A name that maps to None makes `import torch` raise ImportError, which TVM expects.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("tvm_ffi")
    finally:
        del sys.modules["torch"]
