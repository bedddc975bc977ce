"""tokenizer.json and the small files beside it -> TokenizerSpec and chat template."""

from __future__ import annotations

import json
from pathlib import Path

from speccc.errors import InputError
from speccc.ir.frontends.folder import inside_if_any
from speccc.ir.frontends.hf_config import Config, read_json
from speccc.ir.tokenizer_spec import TokenizerSpec

MAX_TEMPLATE = 1 << 20
TOKENIZER = "tokenizer.json"


def read_tokenizer(folder: Path, config: Config, vocab_size: int) -> TokenizerSpec:
    """The tokenizer of a folder; InputError names the file that is absent or malformed."""
    path = inside_if_any(folder, TOKENIZER)
    if path is None:
        raise InputError(
            f"lacks {TOKENIZER}; save the tokenizer as a fast tokenizer", where=str(folder)
        )
    document = read_json(path)
    eos = config.tokens("eos_token_id")
    generation = inside_if_any(folder, "generation_config.json")
    if generation is not None:
        eos += Config(read_json(generation), str(generation)).tokens("eos_token_id")
    bos = config.tokens("bos_token_id")
    first, last = _added_around(document, str(path))
    # What the tokenizer itself puts around a text goes before what the configuration names.
    bos = bos if first is None else (first,)
    eos = eos if last is None else (last, *eos)
    for token in (*eos, *bos):
        if not 0 <= token < vocab_size:
            raise InputError(
                f"special token id {token} is not below vocab_size {vocab_size}",
                where=config.where,
            )
    return TokenizerSpec(
        # ASCII: a lone surrogate stays an escape, which the library then refuses by name.
        json=json.dumps({**document, "post_processor": None}),
        vocab_size=vocab_size,
        bos=bos[0] if bos else None,
        eos_ids=tuple(dict.fromkeys(eos)),
        add_bos=first is not None,
        add_eos=last is not None,
    )


def _added_around(document: dict[str, object], where: str) -> tuple[int | None, int | None]:
    """The ids a TemplateProcessing post-processor puts before and after a text."""
    for step in _steps(document.get("post_processor")):
        if step.get("type") != "TemplateProcessing":
            continue
        single, tokens = step.get("single"), step.get("special_tokens")
        if not isinstance(single, list) or not isinstance(tokens, dict):
            raise InputError("post_processor is malformed", where=where)
        ids = [_template_id(part, tokens) for part in single]
        text = [i for i, part in enumerate(single) if isinstance(part, dict) and "Sequence" in part]
        if len(text) != 1 or len(single) > 3:
            raise InputError("post_processor is not a text with one token around it", where=where)
        before, after = ids[: text[0]], ids[text[0] + 1 :]
        if len(before) > 1 or len(after) > 1:
            raise InputError("post_processor adds more than one token at an end", where=where)
        return (before or [None])[0], (after or [None])[0]
    return None, None


def _steps(node: object) -> list[dict[str, object]]:
    if not isinstance(node, dict):
        return []
    inner = node.get("processors")
    return [s for s in inner if isinstance(s, dict)] if isinstance(inner, list) else [node]


def _template_id(part: object, tokens: dict[str, object]) -> int | None:
    """The id of a template's special token, None for the text itself."""
    special = part.get("SpecialToken") if isinstance(part, dict) else None
    entry = tokens.get(str(special.get("id"))) if isinstance(special, dict) else None
    ids = entry.get("ids") if isinstance(entry, dict) else None
    found = ids[0] if isinstance(ids, list) and len(ids) == 1 else None
    return found if type(found) is int else None


def read_chat_template(folder: Path) -> str | None:
    """The folder's chat template: its own file, or the default one of tokenizer_config.json."""
    own = inside_if_any(folder, "chat_template.jinja")
    if own is not None:
        if own.stat().st_size > MAX_TEMPLATE:
            raise InputError(f"is larger than {MAX_TEMPLATE} bytes", where=str(own))
        try:
            return own.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise InputError("is not valid UTF-8", where=str(own)) from None
    path = inside_if_any(folder, "tokenizer_config.json")
    value = None if path is None else read_json(path).get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEMPLATE):
        raise InputError("chat_template is not a text of bounded size", where=str(path))
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError("chat_template is not valid Unicode", where=str(path)) from None
    return value
