"""The command line: `speccc compile | run | bench | inspect | doctor`."""

from speccc.cli.group import main, run

__all__ = ["main", "run"]
