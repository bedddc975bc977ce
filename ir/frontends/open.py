"""Which frontend reads a path, told by its content."""

from __future__ import annotations

from pathlib import Path

from speccc.errors import InputError, UnsupportedError
from speccc.ir.frontends.gguf import open_gguf
from speccc.ir.frontends.safetensors import open_safetensors
from speccc.ir.frontends.source import ModelSource
from speccc.ir.place import check_place

# Formats that hold Python objects: loading one runs its author's code.
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})


def open_model(path: Path) -> ModelSource:
    """Read a GGUF file or a safetensors directory; InputError on anything wrong with it."""
    where = str(path)
    try:
        if path.is_dir():
            return open_safetensors(path)
        check_place(path)
        if path.suffix.lower() in PICKLES:
            raise UnsupportedError(
                "is a pickle, which can run code when loaded; convert it to safetensors or GGUF",
                where=where,
            )
        if path.suffix.lower() == ".safetensors":
            raise UnsupportedError(
                "is one file of weights; name the folder that holds it with config.json",
                where=where,
            )
        return open_gguf(path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from None
