"""The command group and the one place where an exception becomes a line and an exit code."""

from __future__ import annotations

import difflib
import errno
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import click

from speccc import knobs
from speccc.errors import SpecccError

OK, FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

COMMANDS = {
    "compile": "Compile a model into one artifact file.",
    "tune": "Find the fastest schedules of a model's kernels on this machine.",
    "emit": "Write a model's kernels for a GPU: sources, built code, launch plan.",
    "run": "Generate text from a model or an artifact.",
    "bench": "Measure verify cost, speed and acceptance on this machine.",
    "inspect": "Show what a model file or an artifact holds.",
    "cache": "List, check, clean and share the records of tuning.",
    "doctor": "Show what this machine can build and run.",
}

EXAMPLES = """\b
Examples:
  speccc compile model.gguf -o model.speccc
  speccc run -m model.speccc -p "Why is the sky blue?"
  speccc bench model.gguf --json
"""


class Group(click.Group):
    """Loads a command's module when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"speccc.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(COMMANDS)}"
            raise click.UsageError(f"{args[0]}: no such command; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Group,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="speccc", message="speccc %(version)s")
def cli() -> None:
    """Compile a language model for speculative decoding and run it.

    Speculative text equals plain text, bit for bit.
    """


def run(args: Sequence[str]) -> int:
    """Run one command line; the exit code: 0 done, 2 bad input or usage, 1 a failure of ours."""
    try:
        # click maps a broken pipe and Ctrl-C itself only in standalone mode.
        result = cli.main(list(args), prog_name="speccc", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except (KeyboardInterrupt, click.Abort) as error:
        # click raises an Abort from the interrupt.
        ended = error.__cause__ or error
        what = ended.what if isinstance(ended, Ended) else _INTERRUPTED
        return _report(*what, bare=True)
    except (BrokenPipeError, SystemExit):
        # click and rich turn a closed pipe into an exit of their own; nothing else exits here.
        _silence_stdout()
        return BROKEN_PIPE
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else "", file=sys.stderr)
        return BAD_INPUT
    except click.ClickException as error:
        return _report(_usage(error), BAD_INPUT)
    except UnicodeEncodeError as error:
        return _report(
            f"{error.encoding} cannot write or read {error.object!r}: use UTF-8 (PYTHONUTF8=1)",
            BAD_INPUT,
        )
    except SpecccError as error:
        return _report(str(error), error.exit_code)
    except OSError as error:
        return _report(_system(error), BAD_INPUT if _is_input(error) else FAILED)
    except MemoryError:
        return _report("out of memory; try a smaller context (-c)", FAILED)
    except Exception as error:
        hint = f"({knobs.DEBUG.name}=1 shows where)"
        return _report(f"internal: {type(error).__name__}: {error} {hint}", FAILED)


def main() -> None:
    """The console script."""
    _open_closed()
    for name in ENDINGS:
        number = getattr(signal, name, None)  # not every system has all
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)  # what who started us wants ignored stays so
    code = run(sys.argv[1:])
    if TELLS_OF_CYCLES not in sys.modules:
        gc.freeze()  # memory goes with the process: no look for cycles before
    sys.exit(code)


TELLS_OF_CYCLES = "triton"
"""Its bindings call what a last look for cycles would have found leaked, on stderr."""
ENDINGS = {"SIGTERM": "terminated", "SIGHUP": "hung up"}
_INTERRUPTED = "interrupted", INTERRUPTED


class Ended(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does, so that temporary folders are removed."""

    def __init__(self, number: int) -> None:
        """Of the signal's number."""
        super().__init__(number)
        # As shells count: 128 and the signal.
        self.what = ENDINGS[signal.Signals(number).name], 128 + number


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


def _report(message: str, code: int, *, bare: bool = False) -> int:
    """One line on stderr, `bare` without "error:"; the traceback too when asked for."""
    if _debug():
        traceback.print_exc()
    text = " ".join(message.split())
    try:
        print(text if bare else f"error: {text}", file=sys.stderr)
    except (OSError, ValueError):  # stderr is gone as well
        return code
    return code


def _debug() -> bool:
    try:
        return bool(knobs.DEBUG.get())
    except SpecccError:
        return True


def _usage(error: click.ClickException) -> str:
    command = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        command = f"{error.ctx.command_path.removeprefix('speccc').strip()}: ".lstrip(": ")
    return command + error.format_message()


def _is_input(error: OSError) -> bool:
    kinds = FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError
    return isinstance(error, kinds) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)


def _system(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _open_closed() -> None:
    """Gives standard streams that who started us has closed the null device.

    No file of ours may get their numbers: a library of C that says something would write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The least free number is the stream's, as those before it are open by now.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, open(null, mode))  # noqa: SIM115 (open as long as the process is)


def _silence_stdout() -> None:
    """Python flushes stdout at exit; give it somewhere to flush to."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no real file
        return
