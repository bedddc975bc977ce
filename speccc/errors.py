"""Errors that reach a user: one line of text and the exit code that goes with it.

Every package may import this module; it imports nothing of the project.
"""

from __future__ import annotations


class SpecccError(Exception):
    """An error of ours: exit code 1 unless a subclass says otherwise."""

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None) -> None:
        """`where` names the file, tensor or option; it is put before the message."""
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class InputError(SpecccError):
    """Bad input or usage: the message names the file, the field and the mend. Exit code 2."""

    exit_code = 2


class UnsupportedError(InputError):
    """A well-formed request that this version or this machine cannot serve. Exit code 2."""


class VerifyError(SpecccError):
    """An IR that breaks a rule of its level: a bug of a pass or a builder. Exit code 1."""
