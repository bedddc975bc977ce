"""Work that runs beside the caller's."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """A call in a thread of its own; it should leave the interpreter's lock, as hashing does.

    Who does not ask for its result, because of an error say, does not wait for it either, and nor
    does the end of the process.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        """Begins it."""
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """What the call returned, when it has; what it raised is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
