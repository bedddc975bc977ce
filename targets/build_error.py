"""The error of a target's own compiler refusing text that we generated."""

from __future__ import annotations

from speccc.errors import SpecccError


class BuildError(SpecccError):
    """A toolchain refused or outlived its time: a bug of a renderer, or a tool that is broken."""
