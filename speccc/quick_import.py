"""Load TVM without PyTorch: where both are installed it would import torch for 3 s.

Only for processes of ours (the command line, the bench's workers); a program that embeds the
compiler keeps TVM's own behaviour.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_torch() -> Iterator[None]:
    """What is imported inside finds no torch; nothing happens when it is imported already."""
    if "torch" in sys.modules:
        yield
        return
    # A name that maps to None makes `import torch` raise ImportError, which TVM expects.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
