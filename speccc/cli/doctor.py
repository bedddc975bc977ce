"""`speccc doctor`: what this machine can build and run."""

from __future__ import annotations

from dataclasses import asdict

import click

from speccc.cli import output
from speccc.cli.spelling import Command
from speccc.errors import UnsupportedError

EPILOG = """\b
Examples:
  speccc doctor
  speccc doctor --json
"""


@click.command("doctor", cls=Command, epilog=EPILOG)
@click.option("-v", "--verbose", is_flag=True, help="Show what is missing but not needed as well.")
@output.json_option
def command(verbose: bool, as_json: bool) -> None:
    """Show what this machine can build and run. Exit code 2 when it cannot run models."""
    from speccc.doctor import examine, healthy

    checks = examine()
    if as_json:
        output.print_json(
            {"healthy": healthy(checks), "checks": [asdict(check) for check in checks]}
        )
    else:
        shown = [check for check in checks if verbose or check.ok or check.needed]
        output.table([_row(check.ok, check.name, check.detail, check.mend) for check in shown])
        if len(shown) < len(checks):
            output.note(f"{len(checks) - len(shown)} more can be installed: speccc doctor -v")
    if not healthy(checks):
        bad = next(check for check in checks if check.needed and not check.ok)
        raise UnsupportedError(f"{bad.detail}; {bad.mend}".rstrip("; "), where=bad.name)


def _row(ok: bool, name: str, detail: str, mend: str) -> tuple[str, str, str, str]:
    return ("ok" if ok else "--", name, detail, mend)
