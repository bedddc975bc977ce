"""`speccc cache`: what tuning has learnt on this machine, and sharing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from speccc import user_cache
from speccc.cli import output
from speccc.cli.spelling import Command
from speccc.errors import InputError, SpecccError
from speccc.scratch import published

if TYPE_CHECKING:
    from speccc.autotune.cache import TuneCache
    from speccc.autotune.record import Record
    from speccc.autotune.share import Store
    from speccc.autotune.winner import Entry

Function = TypeVar("Function", bound=Callable[..., None])

EPILOG = """\b
Examples:
  speccc cache ls --kernel step
  speccc cache export -o tune.jsonl
  speccc cache import tune.jsonl
  speccc cache gc --older-than 90 --dry-run
  speccc cache push s3://bucket/tune
  speccc cache pull file:///mnt/team/tune
"""


class Subgroup(click.Group):
    """Says what there is when a subcommand is missing or unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            known = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"{args[0]}: no such command; one of {known}", ctx)
        return super().resolve_command(ctx, args)


@click.group("cache", cls=Subgroup, epilog=EPILOG, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, check, clean and share the records of tuning."""
    if ctx.invoked_subcommand is None:
        raise click.UsageError(f"say what to do: {', '.join(command.list_commands(ctx))}")


def _subset(function: Function) -> Function:
    """The options that pick records."""
    function = click.option("--kernel", metavar="NAME", help="Only this kernel.")(function)
    return click.option(
        "--id", "identity", default="", metavar="HEX", help="Only records whose id starts so."
    )(function)


@command.command("ls", cls=Command)
@_subset
@output.json_option
def ls(kernel: str | None, identity: str, as_json: bool) -> None:
    """List records, oldest first; --json shows every field and sample."""
    with _open() as cache:
        entries = _chosen(cache, kernel, identity)
    if as_json:
        output.print_json([_plain(entry) for entry in entries])
    elif entries:
        header = ("id", "kernel", "m", "device", "outcome", "ms", "of default", "checked", "config")
        output.table([_row(entry) for entry in entries], header)
    else:
        output.note("no records")


@command.command("stats", cls=Command)
@output.json_option
def stats(as_json: bool) -> None:
    """Count records by outcome, device and kernel."""
    with _open() as cache:
        facts = {"file": str(cache.path), **asdict(cache.stats())}
    if as_json:
        output.print_json(facts)
        return
    rows: list[tuple[str, object]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += [(f"{name}: {part}", count) for part, count in value.items()]
        else:
            rows.append((name, ", ".join(value) if isinstance(value, tuple) else value))
    output.table(rows)


@command.command("verify", cls=Command)
@output.json_option
def verify(as_json: bool) -> None:
    """Check the file and every record against its hash. Exit code 1 when one is damaged."""
    with _open() as cache:
        faults, records, path = cache.check(), cache.stats().records, cache.path
    if as_json:
        output.print_json({"records": records, "faults": [asdict(fault) for fault in faults]})
    elif not faults:
        output.note(f"{records} records, all as they were written")
    if faults:
        raise SpecccError(
            f"{len(faults)} damaged, the first {faults[0].identity[:12]} ({faults[0].reason});"
            " speccc cache gc --damaged drops them",
            where=str(path),
        )


@command.command("gc", cls=Command)
@click.option("--older-than", "days", type=click.IntRange(0, 36500), metavar="DAYS",
              help="Drop records older than this.")  # fmt: skip
@click.option("--unverified", is_flag=True, help="Drop imported records not checked here yet.")
@click.option("--damaged", is_flag=True, help="Drop records that verify finds damaged.")
@click.option("--foreign", is_flag=True, help="Drop other devices' records too.")
@click.option("--aside", is_flag=True, help="Delete files that were set aside.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go and keep it.")
@output.json_option
def gc(
    days: int | None,
    unverified: bool,
    damaged: bool,
    foreign: bool,
    aside: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Drop records. Without flags nothing goes; other devices' stay unless --foreign."""
    if days is None and not (unverified or damaged or aside):
        raise click.UsageError("say what to drop: --older-than, --unverified, --damaged or --aside")
    from speccc.autotune.cache_file import aside_files

    with _open() as cache:
        files = aside_files(cache.folder) if aside else []
        dropped = cache.remove(
            before=None if days is None else _days_ago(days),
            only_unverified=unverified,
            damaged=[fault.identity for fault in cache.check() if fault.identity] * damaged,
            keep=_never if foreign else _of_another_device(),
            dry_run=dry_run,
        )
    for file in [] if dry_run else files:
        file.unlink()
    if as_json:
        names = [file.name for file in files]
        output.print_json({"records": dropped, "files": names, "dry_run": dry_run})
    else:
        verb = "would drop" if dry_run else "dropped"
        output.note(f"{verb} {dropped} records, {len(files)} files set aside")


@command.command("export", cls=Command)
@click.option("-o", "target", metavar="FILE", help="Where to; with --t4 also a folder [stdout].")
@click.option("--t4", is_flag=True, help="The T4 result format, one document a kernel and device.")
@_subset
@output.json_option
def export(target: str | None, t4: bool, kernel: str | None, identity: str, as_json: bool) -> None:
    """Write records as JSON lines or T4. They hold no weights, names of files or hosts."""
    if as_json and target is None:
        raise click.UsageError("--json reports on the file written: give -o FILE")
    with _open() as cache:
        records = [entry.record for entry in _chosen(cache, kernel, identity)]
    files = _write_t4(records, target) if t4 else _write_lines(records, target)
    if as_json:
        output.print_json({"records": len(records), "files": [str(file) for file in files]})
    elif files:
        output.note(f"{len(records)} records in {', '.join(str(file) for file in files)}")


@command.command("import", cls=Command)
@click.argument("file", metavar="FILE")
@output.json_option
def import_(file: str, as_json: bool) -> None:
    """Add the records of an export, unverified until their numerics are checked here."""
    from speccc.autotune.cache_import import import_file

    records = import_file(Path(output.exists(file)))
    with _open() as cache:
        added = cache.add(records, verified=False, origin="import")
    if as_json:
        output.print_json({"records": len(records), "added": added})
    else:
        output.note(f"{len(records)} records, {added} of them new")


@command.command("push", cls=Command)
@click.argument("url", metavar="URL")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be written and write nothing.")
@_subset
@output.json_option
def push(url: str, dry_run: bool, kernel: str | None, identity: str, as_json: bool) -> None:
    """Add to a shared store what it lacks. URL as fsspec has it; nothing there is overwritten."""
    from speccc.autotune import share

    store = _lasting(share.Store(url))
    with _open() as cache:
        records = [entry.record for entry in _chosen(cache, kernel, identity)]
    with output.progress() as report:
        done = share.push(store, records, notice=_notice, report=report, dry_run=dry_run)
    if as_json:
        output.print_json({**asdict(done), "dry_run": dry_run})
    else:
        verb = "would push" if dry_run else "pushed"
        output.note(f"{verb} {done.records} records in {done.files} files; {done.there} were there")


@command.command("pull", cls=Command)
@click.argument("url", metavar="URL")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be added and add nothing.")
@output.json_option
def pull(url: str, dry_run: bool, as_json: bool) -> None:
    """Add a shared store's records, unverified until their numerics are checked here."""
    from speccc.autotune import share
    from speccc.autotune.host import host_device

    store, reading = _lasting(share.Store(url)), share.Reading()
    records = added = 0
    with _open() as cache, output.progress() as report:
        known = {entry.identity for entry in cache.entries()} if dry_run else set()
        for found in share.pull(
            store, first=host_device().digest(), reading=reading, notice=_notice, report=report
        ):
            records += len(found)
            if dry_run:
                new = {record.identity() for record in found} - known
                known, added = known | new, added + len(new)
            else:
                added += cache.add(found, verified=False, origin="pull")
    if as_json:
        counts = {"records": records, "added": added, "dry_run": dry_run}
        output.print_json({**counts, **asdict(reading)})
        return
    verb = "would be" if dry_run else "are"
    rest = f"; {len(reading.refused)} files passed over" if reading.refused else ""
    output.note(f"{records} records in {reading.files} files, {added} of them {verb} new{rest}")


def _open() -> TuneCache:
    from speccc.autotune.cache import TuneCache

    return TuneCache(user_cache.folder("tune"), notice=_notice)


def _chosen(cache: TuneCache, kernel: str | None, identity: str) -> list[Entry]:
    """The entries the options pick; InputError where no record could be, or none has the id."""
    from speccc.autotune.vocabulary import VOCABULARY

    entries = list(cache.entries(kernel=kernel, identity=identity))
    if not entries and kernel is not None and kernel not in VOCABULARY:
        known = ", ".join(sorted(VOCABULARY))
        raise InputError(f"no such kernel; known: {known}", where=f"--kernel {kernel}")
    if not entries and identity and not any(cache.entries(identity=identity)):
        raise InputError(
            f"none of {cache.stats().records} records has an id that starts so;"
            " `speccc cache ls` lists them",
            where=f"--id {identity}",
        )
    return entries


def _lasting(store: Store) -> Store:
    if not store.lasts:
        raise InputError("is lost when the command ends: name a folder", where=store.where)
    return store


def _notice(text: str) -> None:
    output.note(f"notice: {text}")


def _plain(entry: Entry) -> dict[str, object]:
    return {"id": entry.identity, "verified": entry.verified, **entry.record.to_json()}


def _row(entry: Entry) -> tuple[object, ...]:
    record = entry.record
    time, ratio = record.median_ms(), record.ratio()
    config = " ".join(f"{name}={value}" for name, value in record.config)
    return (
        entry.identity[:12], record.key.kernel, record.key.m, record.key.device.name,
        record.outcome.value, "-" if time is None else f"{time:.3f}",
        "-" if ratio is None else f"{ratio:.3f}", "yes" if entry.verified else "no", config,
    )  # fmt: skip


def _days_ago(days: int) -> str:
    then = datetime.now(timezone.utc) - timedelta(days=days)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


def _never(record: Record) -> bool:
    return False


def _of_another_device() -> Callable[[Record], bool]:
    from speccc.autotune.host import host_device

    here = host_device()
    # Another instruction set of this very machine is ours as well.
    ours = (here.kind, here.name, here.details)

    def foreign(record: Record) -> bool:
        device = record.key.device
        return (device.kind, device.name, device.details) != ours

    return foreign


def _write_lines(records: list[Record], target: str | None) -> list[Path]:
    from speccc.autotune.cache_export import json_lines

    text = "".join(f"{line}\n" for line in json_lines(records))
    if target is None:
        click.echo(text, nl=False)
        return []
    return [_publish(Path(target), text)]


def _write_t4(records: list[Record], target: str | None) -> list[Path]:
    from speccc.autotune.cache_export import t4_groups, t4_text

    groups = t4_groups(records)
    if not groups:
        raise InputError("there are no records to export", where="cache")
    if target is not None and Path(target).is_dir():
        return [
            _publish(Path(target) / f"{name}.json", t4_text(group))
            for name, group in groups.items()
        ]
    if len(groups) > 1:
        raise InputError(
            f"T4 takes one kernel on one device a file and there are {len(groups)}; "
            "give -o an existing folder",
            where="--t4",
        )
    (group,) = groups.values()
    if target is None:
        click.echo(t4_text(group))
        return []
    return [_publish(Path(target), t4_text(group))]


def _publish(path: Path, text: str) -> Path:
    if path.is_dir():
        raise InputError("is a folder: name a file with -o", where=str(path))
    if not path.parent.is_dir():
        raise InputError("no such folder", where=str(path.parent))
    with published(path) as part:
        part.write_text(text, encoding="utf-8")
    return path
