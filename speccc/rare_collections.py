"""Look for reference cycles rarely while a model is compiled.

A compile makes a quarter of a million small objects, nearly all of which live to its end; looking
at them again and again, as by default after each 700, takes a tenth of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 100_000
"""Objects made since the last look; megabytes if all were garbage."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """The collector looks at young objects only when there are `YOUNG`; as before afterwards.

    For processes of ours: a program that embeds the compiler keeps its own thresholds.
    """
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
