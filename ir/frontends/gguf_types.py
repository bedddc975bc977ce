"""Numbers that GGUF files hold for types of metadata and of tokens.

They are the `gguf` package's (`GGUFValueType`, `TokenType`), which a test compares: importing that
takes longer than reading most headers.
"""

from __future__ import annotations

from enum import IntEnum

DEFAULT_ALIGNMENT = 32
"""Bytes that tensors are aligned to where the file does not say."""


class ValueType(IntEnum):
    """What a metadata value is."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class TokenType(IntEnum):
    """What a token is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
