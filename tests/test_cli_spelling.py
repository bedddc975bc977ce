"""Flags of other engines name ours; a wrong one never runs, whatever click would make of it."""

from __future__ import annotations

import pytest

from speccc.cli import run
from speccc.cli.group import COMMANDS, cli
from speccc.cli.spelling import INSTEAD

CASES = {
    "--draft": "--spec-draft-n-max",
    "--draft-n": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-max",
    "--draft-n-min": "--spec-draft-n-max",
    "--draft-model": "--spec-type ngram",
    "-md": "--spec-type ngram",
    "--spec-ngram-size-n": "longest match",
    "--spec-ngram-size-m": "longest match",
    "--spec-ngram-min-hits": "longest match",
    "-ngl": "target",
    "--n-gpu-layers": "target",
    "-ctk": "--kv",
    "-fa": "compiled in",
    "-hf": "-m",
    "-no-cnv": "--raw",
    "--promt": "--prompt",
    "--temprature": "--temperature",
    "--top_k": "--top-k",
}


def error(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line of a command line that must be refused."""
    assert run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("flag", CASES)
@pytest.mark.parametrize("form", ["{} 9", "{}=9", "-p text {} 9", "-n 5 {}"])
def test_a_wrong_flag_names_the_right_one(
    flag: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error(capsys, "run", "-m", "absent.gguf", *form.format(flag).split())
    assert flag in line
    assert CASES[flag] in line


def test_hints_name_flags_that_exist() -> None:
    known = {
        name
        for command in COMMANDS
        for param in _command(command)
        for name in param
    }  # fmt: skip
    for flag, hint in INSTEAD.items():
        words = [word.strip(";:,.") for word in hint.split()]
        for word in words:
            assert not word.startswith("-") or word in known, (flag, word)
    assert not known & set(INSTEAD)


def _command(name: str) -> list[list[str]]:
    import click

    context = click.Context(cli)
    found = cli.get_command(context, name)
    assert found is not None
    commands = [found, *(found.commands.values() if isinstance(found, click.Group) else ())]
    return [[*p.opts, *p.secondary_opts] for c in commands for p in c.params]


def test_a_value_that_looks_like_a_flag_is_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert "absent.gguf: no such file" in error(capsys, "run", "-m", "absent.gguf", "-p", "-ngl")
    assert "absent.gguf: no such file" in error(capsys, "run", "absent.gguf", "-n", "-1", "-p", "x")


@pytest.mark.parametrize("joined", ["-n5", "-c64", "-t2", "-s7"])
def test_joined_numbers_are_read(joined: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in error(capsys, "run", "-m", "absent.gguf", joined, "-p", "x")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("ngram-simple", "use ngram"), ("draft-eagle3", "not supported yet"), ("x", "none, ngram")],
)
def test_types_of_drafts(kind: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in error(capsys, "run", "-m", "m", "-p", "x", "--spec-type", kind)


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean compile?" in error(capsys, "complie")
    assert "one of compile" in error(capsys, "zzz")
