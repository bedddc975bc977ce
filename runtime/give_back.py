"""Memory that was freed goes back to the system, where the C library can be asked to do that."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def give_back() -> None:
    """Returns free pages of the C heap: building a tokenizer leaves tens of megabytes of them."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # only glibc has it
        return None
    return found
