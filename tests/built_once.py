"""What the tests of one run build once, whichever of its processes comes first.

It is found by the hash of all that decides it, as the product finds its kernels. `conftest` makes
the folder and removes it at the end, so nothing comes from a run before.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from speccc.kernel_cache import DiskObjects
from speccc.scratch import Scratch
from speccc.targets.cpu.object_store import MemoryObjects, ObjectStore

VARIABLE = "SPECCC_TESTS_BUILT"
"""Names the folder to the processes of a run."""
MOST_BYTES = 4 << 30


def folder_of_a_run() -> Scratch | None:
    """Makes the folder; None in a process that another one told of it."""
    if VARIABLE in os.environ:
        return None
    made = Scratch()
    built = made.path / "built"
    built.mkdir()
    os.environ[VARIABLE] = str(built)
    return made


@cache
def shared() -> ObjectStore:
    """The run's store; outside of one, this process's own."""
    folder = os.environ.get(VARIABLE)
    return MemoryObjects() if folder is None else DiskObjects(Path(folder), most_bytes=MOST_BYTES)
