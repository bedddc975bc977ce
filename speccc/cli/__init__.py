"""The command line: `speccc compile | run | bench | inspect | cache | doctor`."""

from speccc.cli.group import main, run

__all__ = ["main", "run"]
