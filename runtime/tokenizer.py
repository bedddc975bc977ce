"""Text to tokens and back, from the tokenizer an artifact carries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

import tokenizers

from speccc.errors import InputError, UnsupportedError
from speccc.ir.tokenizer_spec import TokenizerSpec

_SPACE = "\u2581"
_PLAIN_BYTES = frozenset([*range(33, 127), *range(161, 173), *range(174, 256)])


class Tokenizer:
    """Encode and decode with the tokens of one model.

    `where` names the file in errors. InputError when the specification cannot be built.
    """

    def __init__(self, spec: TokenizerSpec, where: str = "tokenizer") -> None:
        # Without its document: the engine can write that again, and it is megabytes.
        self.spec = replace(spec, json="")
        self._where = where
        self._parse_special = _build(spec.json, where)
        self._plain: tokenizers.Tokenizer | None = None
        self._added = self._parse_special.get_added_tokens_decoder()
        style = _decoders(self._parse_special, where)
        self._byte_level = "ByteLevel" in style
        self._strip = bool(style & {"Strip", "Metaspace"})
        if not style & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise UnsupportedError(
                "tokenizer decodes neither by bytes nor by SentencePiece pieces", where=where
            )
        self._check_ids()
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Rows of the model's head; ids from the last token on are padding without text."""
        return self.spec.vocab_size

    @property
    def bos(self) -> int | None:
        """The token that begins a text, if the model has one."""
        return self.spec.bos

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        return self.spec.eos_ids

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Token ids of a text.

        `special`: control tokens written in the text become tokens (else plain text; user-defined
        tokens always match). `bos`: whether BOS/EOS are added; None does as the model says.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"text is not valid Unicode: {error.reason}") from None
        engine = self._parse_special if special else self._plain_engine()
        ids = list(engine.encode(text, add_special_tokens=False).ids)
        if self.spec.bos is not None and (self.spec.add_bos if bos is None else bos):
            ids.insert(0, self.spec.bos)
        if self.spec.add_eos and bos is not False:
            ids.append(self.spec.eos_ids[0])
        return ids

    def decode(self, tokens: Iterable[int], *, special: bool = True) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD.

        `special=False` leaves out control tokens.
        """
        skip = frozenset() if special else self._control()
        data = b"".join(self.token_bytes(t) for t in tokens if t not in skip)
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strip else text

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes a token adds to the text; InputError for an id out of range."""
        if not 0 <= token < self.spec.vocab_size:
            raise InputError(f"token id {token} is not below {self.spec.vocab_size}")
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._piece(token)
        return known

    def _plain_engine(self) -> tokenizers.Tokenizer:
        """The engine that takes control tokens for text, made when first needed."""
        if self._plain is None:
            self._plain = _build(self._parse_special.to_str(), self._where)
            self._plain.encode_special_tokens = True
        return self._plain

    def _control(self) -> frozenset[int]:
        return frozenset(i for i, token in self._added.items() if token.special)

    def _check_ids(self) -> None:
        """InputError for a token that the model has no row of."""
        engine, rows = self._parse_special, self.spec.vocab_size
        size = engine.get_vocab_size(with_added_tokens=True)
        near = range(min(rows, 2 * size))  # an artifact may claim any number of rows
        if len(near) - list(map(engine.id_to_token, near)).count(None) == size:
            return  # the usual case, without a copy of the vocabulary
        top = max(engine.get_vocab(with_added_tokens=True).values(), default=-1)
        if top >= rows:
            raise InputError(
                f"tokenizer has token id {top}, but the model only {rows} rows", where=self._where
            )

    def _piece(self, token: int) -> bytes:
        """The bytes of a token; none for an id that is padding."""
        text = self._parse_special.id_to_token(token)
        if text is None:
            return b""
        if token in self._added:
            return self._added[token].content.encode()
        return _byte_level_piece(text) if self._byte_level else _sentencepiece_piece(text)


def _build(document: str, where: str) -> tokenizers.Tokenizer:
    try:
        built = tokenizers.Tokenizer.from_str(document)
        built.no_truncation()
        built.no_padding()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"tokenizer cannot be built: {reason}", where=where) from None
    except BaseException as error:
        # A panic of the Rust library derives from BaseException; anything else is not ours.
        if type(error).__name__ != "PanicException":
            raise
        raise InputError("tokenizer cannot be built: the library panicked", where=where) from None
    return built


def _decoders(engine: tokenizers.Tokenizer, where: str) -> frozenset[str]:
    """The types of all decoders of a tokenizer."""

    def walk(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            yield str(node.get("type"))
            for child in node.get("decoders") or ():
                yield from walk(child)

    try:
        return frozenset(walk(json.loads(engine.decoder.__getstate__())))
    except (AttributeError, ValueError, TypeError, RecursionError):
        raise InputError("tokenizer.json names no decoder", where=where) from None


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte -> the byte."""
    hidden = iter(range(256, 512))
    return {chr(b) if b in _PLAIN_BYTES else chr(next(hidden)): b for b in range(256)}


_BYTES = _byte_table()


def _byte_level_piece(text: str) -> bytes:
    try:
        return bytes(map(_BYTES.__getitem__, text))
    except KeyError:
        return b"".join(bytes([_BYTES[c]]) if c in _BYTES else c.encode() for c in text)


def _sentencepiece_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            pass
    return text.replace(_SPACE, " ").encode()
