"""speccc: a compiler for speculative decoding. Lossless means bit-identical."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speccc.api import Model, compile, load

__all__ = ["Model", "compile", "load"]


def __getattr__(name: str) -> Any:
    # Lazy: the runtime's own modules import this package and must not pull in the compiler.
    if name in __all__:
        from speccc import api

        return getattr(api, name)
    raise AttributeError(f"module 'speccc' has no attribute {name!r}")
