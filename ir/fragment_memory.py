"""Buffers of the fragment-level interpreter: contents, what was written, and who met whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from speccc.errors import VerifyError
from speccc.ir.tile import Buf

Array = npt.NDArray[Any]
NOBODY_LOW = np.iinfo(np.int64).max
NOBODY_HIGH = -1


class Touch:
    """Per element: the lowest and highest owner that touched it, and whether anybody wrote."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Nobody has touched anything."""
        self.low = np.full(shape, NOBODY_LOW, np.int64)
        self.high = np.full(shape, NOBODY_HIGH, np.int64)
        self.dirty = np.zeros(shape, np.bool_)

    def forget(self) -> None:
        """A barrier: what comes later cannot meet what came before."""
        self.low.fill(NOBODY_LOW)
        self.high.fill(NOBODY_HIGH)
        self.dirty.fill(False)

    def meet(self, where: tuple[Array, ...], owner: Array, *, write: bool) -> bool:
        """Records an access; True when two owners share an element and one of them wrote it."""
        np.minimum.at(self.low, where, owner)
        np.maximum.at(self.high, where, owner)
        if write:
            self.dirty[where] = True
        return bool((self.dirty[where] & (self.low[where] != self.high[where])).any())


class Store:
    """A buffer. `written` is None where contents come from outside.

    `within` follows the invocations of a workgroup between barriers, `across` the workgroups of a
    kernel (None for what a workgroup has to itself).
    """

    def __init__(
        self,
        buf: Buf,
        data: Array,
        written: npt.NDArray[np.bool_] | None,
        *,
        across: Touch | None = None,
        group: int = 0,
    ) -> None:
        """Contents as given."""
        self.buf, self.data, self.written = buf, data, written
        self.within, self.across, self.group = Touch(data.shape), across, group

    def read(self, index: tuple[Array, ...], owner: Array) -> Array:
        """Elements at `index` by the invocations `owner`, broadcast against each other."""
        where = self._touch(index, owner, write=False)
        if self.written is not None and not self.written[where].all():
            raise VerifyError(f"buffer {self.buf.name} is read where nothing was written")
        out: Array = np.asarray(self.data[index])
        return out

    def write(self, index: tuple[Array, ...], value: Array, owner: Array) -> None:
        """Sets elements at `index`."""
        where = self._touch(index, owner, write=True)
        if self.written is not None:
            self.written[where] = True
        self.data[where] = np.broadcast_to(value, np.shape(where[0]))

    def _touch(self, index: tuple[Array, ...], owner: Array, *, write: bool) -> tuple[Array, ...]:
        """Checked indices over every element and owner."""
        if len(index) != self.data.ndim:
            raise VerifyError(f"buffer {self.buf.name} has {self.data.ndim} axes, not {len(index)}")
        for n, (i, size) in enumerate(zip(index, self.data.shape, strict=True)):
            if np.size(i) and (np.min(i) < 0 or np.max(i) >= size):
                raise VerifyError(
                    f"buffer {self.buf.name} axis {n}: {np.min(i)}..{np.max(i)} "
                    f"is outside 0..{size - 1}"
                )
        *where, owners = np.broadcast_arrays(*index, owner)
        if self.within.meet(tuple(where), owners, write=write):
            raise VerifyError(
                f"race on {self.buf.name}: two invocations meet at an element with no barrier"
            )
        if self.across is not None:
            group = np.asarray(self.group)
            if self.across.meet(tuple(where), group, write=write):
                raise VerifyError(f"race on {self.buf.name}: two workgroups meet at an element")
        return tuple(where)
