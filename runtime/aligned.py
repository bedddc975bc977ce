"""Arrays that kernels read and write: on cache lines, and large ones in huge pages."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGN = 64
PAGES_OF_ITS_OWN = 1 << 20
"""Bytes from which an array gets pages from the system: they take memory when first touched, while
the C heap may hand out, and then clear, memory that was freed before."""
SYSTEM = Path("/")
"""Where /sys hangs: tests put another there."""


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros that start on a cache line, as TVM's calling convention asks."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if count >= PAGES_OF_ITS_OWN:
        pages = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype).reshape(shape)
    raw = np.zeros(count + ALIGN, np.uint8)
    skip = -raw.ctypes.data % ALIGN
    return raw[skip : skip + count].view(dtype).reshape(shape)


def huge_pages(root: Path | None = None) -> bool:
    """Whether `aligned` gets huge pages: a core that streams weights then misses its TLB less.

    A mapped file has small pages on most file systems.
    """
    setting = (root or SYSTEM) / "sys/kernel/mm/transparent_hugepage/enabled"
    try:
        return hasattr(mmap, "MADV_HUGEPAGE") and "[never]" not in setting.read_text()
    except OSError:
        return False
