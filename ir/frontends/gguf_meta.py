"""Typed access to GGUF metadata: each getter names the key and what it should be."""

from __future__ import annotations

import math

import numpy as np

from speccc.errors import InputError
from speccc.ir.frontends.gguf_header import Numbers, Value


class Metadata:
    """The metadata of the file `where`; getters raise InputError on absent or mistyped keys."""

    def __init__(self, values: dict[str, Value], where: str) -> None:
        self.values = values
        self.where = where
        self.notes: list[str] = []

    def has(self, key: str) -> bool:
        """Whether the key is present."""
        return key in self.values

    def note(self, text: str) -> None:
        """Keep a line the user should hear of."""
        self.notes.append(text)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._mistyped(key, "a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A non-negative integer; an array of equal ones (a value per layer) counts as one."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if type(value) is not int or value < 0:
            raise self._mistyped(key, "a non-negative integer, the same for every layer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            raise self._mistyped(key, "a finite number")
        return float(value)  # type: ignore[arg-type]

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._mistyped(key, "a boolean")
        return value

    def token(self, key: str, tokens: int) -> int | None:
        """A token id below `tokens`, or None when the key is absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if type(value) is not int or not 0 <= value < tokens:
            raise self._mistyped(key, f"a token id below {tokens}")
        return value

    def strings(self, key: str) -> list[str]:
        """An array of strings."""
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self._mistyped(key, "an array of strings")
        return value

    def numbers(self, key: str, kinds: str, length: int) -> Numbers | None:
        """A number array of NumPy `kinds` ("i", "f") with `length` elements, None when absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._mistyped(key, "an array of numbers of the right type")
        if value.itemsize != 4 or len(value) != length:
            raise InputError(
                f"{key} has {len(value)} elements of {value.itemsize} bytes, "
                f"not {length} of 4; convert the model again",
                where=self.where,
            )
        return value

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.values.get(key, default)
        if value is None:
            raise InputError(f"lacks metadata {key}; convert the model again", where=self.where)
        return value

    def _mistyped(self, key: str, wanted: str) -> InputError:
        value = self.values.get(key)
        shown = "an array" if isinstance(value, (list, np.ndarray)) else repr(value)[:60]
        return InputError(f"metadata {key} is {shown}; it must be {wanted}", where=self.where)
