"""What a tokenizer needs beside the model: one record that an artifact stores as one entry."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from speccc.errors import InputError

_VERSION = 1
_KEYS = {"version", "json", "vocab_size", "bos", "eos_ids", "add_bos", "add_eos"}


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A tokenizer as the text of a Hugging Face tokenizer.json and the ids the decoder needs.

    `eos_ids` end a generation, the first being the one `add_eos` means; `add_bos`/`add_eos` say
    whether encoding a text adds them. `vocab_size` is the number of rows of the model's head,
    which may exceed the tokens.
    """

    json: str
    vocab_size: int
    bos: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    add_eos: bool = False

    def to_bytes(self) -> bytes:
        """One UTF-8 JSON entry; `from_bytes` reads it back."""
        return json.dumps({"version": _VERSION, **asdict(self)}, ensure_ascii=False).encode()

    @staticmethod
    def from_bytes(data: bytes, where: str) -> TokenizerSpec:
        """Read an entry; InputError names `where` and what is wrong."""
        try:
            raw = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not valid JSON: {error}", where=where) from None
        if not isinstance(raw, dict) or set(raw) != _KEYS or raw["version"] != _VERSION:
            raise InputError("is not a tokenizer entry of this version; recompile", where=where)
        size, bos, eos = raw["vocab_size"], raw["bos"], raw["eos_ids"]
        flags = (raw["add_bos"], raw["add_eos"])
        if not isinstance(raw["json"], str) or not all(isinstance(f, bool) for f in flags):
            raise InputError("has fields of wrong type; recompile", where=where)
        if not isinstance(eos, list) or type(size) is not int or size < 1:
            raise InputError("has fields of wrong type; recompile", where=where)
        if raw["add_eos"] and not eos:
            raise InputError("adds an end token it does not name; recompile", where=where)
        for token in [*eos, *([] if bos is None else [bos])]:
            if type(token) is not int or not 0 <= token < size:
                raise InputError(f"token id {token!r} is not below {size}", where=where)
        return TokenizerSpec(raw["json"], size, bos, tuple(eos), *flags)
