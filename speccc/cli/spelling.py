"""Flags as users of other engines spell them: what each is called here, or why there is none.

An unknown flag is an error that names the right one; nothing is dropped in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import click

DRAFT_MAX = "use --spec-draft-n-max"
DRAFT_MIN = "drafts have no minimum: each round takes the best length; use --spec-draft-n-max"
NO_DRAFT_MODEL = "draft models are not supported yet; --spec-type ngram needs no second model"
NGRAM_SIZE = "the n-gram drafter takes the longest match by itself; drop the flag"
ONE_TARGET = "the whole model runs on the target it is compiled for; drop the flag"
BATCH = "the compiler picks batch sizes; drop the flag"
KV_TYPE = "use --kv f16 or --kv i8"
NO_HUB = "models are local files; fetch the file, then use -m"
SAMPLING = "not supported yet; there are --temp --top-k --top-p --min-p --seed"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max", "--num-draft-tokens"), DRAFT_MAX),
    **dict.fromkeys(("--draft-min", "--draft-n-min", "--spec-draft-n-min"), DRAFT_MIN),
    **dict.fromkeys(("--draft-p-min", "--spec-draft-p-min", "--draft-p-split"), DRAFT_MIN),
    **dict.fromkeys(("--draft-model", "--model-draft", "-md"), NO_DRAFT_MODEL),
    **dict.fromkeys(("--spec-draft-model", "--spec-draft-hf", "-hfd"), NO_DRAFT_MODEL),
    **dict.fromkeys(("-ngld", "-ctkd", "-ctvd", "-devd", "-td", "-cd"), NO_DRAFT_MODEL),
    **dict.fromkeys(("--spec-ngram-size-n", "--spec-ngram-size-m"), NGRAM_SIZE),
    **dict.fromkeys(("--spec-ngram-min-hits", "--lookup-ngram-min"), NGRAM_SIZE),
    **dict.fromkeys(("--spec-default",), "use --spec-type ngram"),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers", "-sm", "-mg"), ONE_TARGET),
    **dict.fromkeys(("-dev", "--device", "-ts", "--tensor-split", "-nkvo", "-cmoe"), ONE_TARGET),
    **dict.fromkeys(("-b", "--batch-size", "-ub", "--ubatch-size", "-tb"), BATCH),
    **dict.fromkeys(("--threads-batch",), "use -t; it holds for every phase"),
    **dict.fromkeys(("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"), KV_TYPE),
    **dict.fromkeys(("-fa", "--flash-attn"), "attention is compiled in; drop the flag"),
    **dict.fromkeys(("--mmap", "--no-mmap", "--mlock"), "weights are always mapped; drop the flag"),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu"), NO_HUB),
    **dict.fromkeys(("-no-cnv", "--no-conversation", "-nocnv"), "use --raw"),
    **dict.fromkeys(("--jinja",), "the model's own template is the default; drop the flag"),
    **dict.fromkeys(("--chat-template",), "the model's own template is used; --raw for none"),
    **dict.fromkeys(("-r", "--reverse-prompt"), "use --stop"),
    **dict.fromkeys(("--ignore-eos", "--mirostat", "--grammar", "-j"), SAMPLING),
    **dict.fromkeys(("--repeat-penalty", "--presence-penalty", "--typical"), SAMPLING),
    **dict.fromkeys(("--output",), "use -o"),
}

ELSEWHERE = {
    "--target": "compile, run and emit take it; bench takes an artifact that is compiled for one",
}
"""Flags of other commands than the one that lacks them."""
SPEC_TYPES = ("none", "ngram")
SPEC_TYPES_INSTEAD = {"ngram-": "use ngram", "draft-": NO_DRAFT_MODEL}


def spec_type(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The callback of --spec-type: `none` or `ngram`; llama.cpp's other names say what to use."""
    if value in SPEC_TYPES:
        return value
    hints = (hint for prefix, hint in SPEC_TYPES_INSTEAD.items() if value.startswith(prefix))
    hint = next(hints, f"is none of {', '.join(SPEC_TYPES)}")
    raise click.BadParameter(f"{value!r}: {hint}", ctx, param)


class Command(click.Command):
    """A click command that names the right flag when it is given a wrong one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        check_spelling(self, ctx, args)
        return super().parse_args(ctx, args)


def check_spelling(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """UsageError for the first flag the command lacks. Values of flags are not looked at.

    This must come before click's own parsing, which reads `-ngl 9` as `-n gl`.
    """
    takes_value = _options(command, ctx)
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            return
        flag, equals, _ = arg.partition("=")
        if not arg.startswith("-") or arg == "-" or _is_number(arg):
            continue
        if flag not in takes_value and not _is_joined(arg, takes_value):
            raise click.UsageError(_suggestion(flag, takes_value), ctx)
        if takes_value.get(flag) and not equals:
            next(rest, None)


def _options(command: click.Command, ctx: click.Context) -> dict[str, bool]:
    """Every spelling the command knows -> whether a value follows it."""
    return {
        name: isinstance(option, click.Option) and not (option.is_flag or option.count)
        for option in command.get_params(ctx)
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }


def _is_number(arg: str) -> bool:
    try:
        float(arg)
    except ValueError:
        return False
    return True


def _is_joined(arg: str, takes_value: dict[str, bool]) -> bool:
    """`-n5` or `-vh`, but never a flag that has its own entry such as `-ngl`."""
    short = arg[:2]
    if arg.startswith("--") or arg.partition("=")[0] in INSTEAD or short not in takes_value:
        return False
    if takes_value[short]:
        return not arg[2].isalpha() or short not in ("-n", "-c", "-t", "-s")
    return all(f"-{letter}" in takes_value for letter in arg[1:])


def _suggestion(flag: str, known: dict[str, bool]) -> str:
    hint = INSTEAD.get(flag) or ELSEWHERE.get(flag)
    if hint is not None:
        return f"{flag}: {hint}"
    near = difflib.get_close_matches(flag, [n for n in known if n.startswith("--")], n=1)
    return f"{flag}: no such flag; " + (f"did you mean {near[0]}?" if near else "see --help")
