"""``bk ledger export|import|cp`` and ``bk log export|import``: entries and rows into files, and out of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from rich.progress import TextColumn

from bk_core.cli.given import LEDGER, LOG
from bk_core.cli.output import access_options, check_range, cluster_options, connected, digest_choice, password_option, say_json
from bk_core.cli.progress import RateColumn, progress_bar, watched
from bk_core.cli.statuses import terminated_in_order
from bk_core.cli.terminal import errors_once
from bk_core.display.words import counted, disk_size, rounded_size

if TYPE_CHECKING:
    from bk_core.client.log.tables import OnCounts
    from bk_core.client.transfer.ledgers import NewLedger, Transfer
    from bk_core.client.transfer.logs import FileKind, LogTransfer

NEW_PASSWORD_VARIABLE = "BOOKKEEPER_NEW_LEDGER_PASSWORD"


class _File(click.Path):
    """A path of a file. ``-`` is none: files appear here whole, or are read twice."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "-":
            self.fail("standard input and output cannot be taken: name a file (one that is called - is ./-)", param, ctx)
        return super().convert(value, param, ctx)


_FILE = _File(dir_okay=False, path_type=Path)


def _new_ledger_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a new ledger; each is by default that of its source."""
    for name, text in (("ensemble-size", "Ensemble size"), ("write-quorum-size", "Write quorum"), ("ack-quorum-size", "Ack quorum")):
        command = click.option(f"--{name}", type=click.IntRange(min=1), help=f"{text} of the new ledger, in place of the source's.")(
            command
        )
    command = click.option("--new-digest", type=digest_choice(), help="Digest type of the new ledger, in place of the source's.")(command)
    text = "Copy the source's custom metadata, too, without what says whose the source is."
    return click.option("--keep-custom", is_flag=True, help=text)(command)


def _new_ledger(options: dict[str, Any], password: str) -> NewLedger:
    from bk_core.client.transfer.ledgers import NewLedger

    sizes = {name: options[name] for name in ("ensemble_size", "write_quorum_size", "ack_quorum_size")}
    digest = options["new_digest"]
    named = None if digest is None else digest.upper()
    return NewLedger(**sizes, digest_type=named, password=password.encode(), keep_custom=options["keep_custom"])


def _transfer_json(done: Transfer) -> dict[str, Any]:
    shape = {"ledger": done.ledger_id, "entries": done.entries, "bytes": done.bytes, "seconds": round(done.seconds, 3)}
    return {**shape, "sourceClosed": done.closed, "file": done.path}


def _told(count: int, one: str, many: str, size: int, seconds: float) -> str:
    rate = f", {disk_size(round(size / seconds))}/s" if seconds > 0 else ""
    return f"{counted(count, one, many)}, {rounded_size(size)} in {seconds:.1f} s{rate}"


# --- ledgers -------------------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("ledger_id", type=LEDGER)
@click.argument("file", type=_FILE)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry id.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry id; without it, up to the last add confirmed.")
@access_options
@cluster_options
def export_ledger(
    ledger_id: int,
    file: Path,
    first: int,
    last: int | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Write the entries of a ledger into a new file, byte for byte, with a checksum. It never fences.

    The file appears when it is whole, and none is written over; what is killed by SIGKILL leaves `.NAME.<12 hex digits>.part` beside it.
    `bk ledger import` makes a ledger of it. The README of bk_core/client/transfer has its form; the ledger's password is not in it.

    If the ledger ends before --last, what there is is in the file, and the exit status is 1.

    --json: ledger, entries, bytes, seconds, sourceClosed, file.
    """
    from bk_core.client.transfer.ledgers import export_ledger as export

    check_range(first, last)
    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with terminated_in_order(), connected(uri, protocol) as client, watched() as show:
        done = export(client, ledger_id, file, first=first, last=last, on_progress=show, **access)
    if as_json:
        say_json(_transfer_json(done))
    else:
        click.echo(f"{_told(done.entries, 'entry', 'entries', done.bytes, done.seconds)}: {file}")
    if not done.closed:
        click.echo(f"ledger {ledger_id} is not CLOSED: what was confirmed so far is in the file", err=True)
    return _say_end(ledger_id, done, first, last)


def _say_end(ledger_id: int, done: Transfer, first: int, last: int | None) -> int:
    """Tell if there were fewer entries than were asked for, and return the exit status."""
    if last is None or done.entries == last - first + 1:
        return 0
    end = f"ends at entry {first + done.entries - 1}" if done.entries else f"has no entry from {first} on"
    click.echo(f"ledger {ledger_id} {end}: entry {last} lies beyond", err=True)
    return 1


@click.command("import")
@click.argument("file", type=_FILE)
@_new_ledger_options
@password_option
@cluster_options
def import_ledger(file: Path, password: str, uri: str, protocol: str, as_json: bool, **options: Any) -> None:
    """Make a ledger of a file that `bk ledger export` wrote, close it, and print its id.

    The new ledger is read again and compared before its id is printed; if anything fails it is deleted. A process that is killed by SIGKILL
    leaves it OPEN, with purpose=import in its custom metadata. --password is that of the new ledger.

    --json: ledger, entries, bytes, seconds, sourceClosed, file.
    """
    from bk_core.client.transfer.ledgers import import_ledger as load

    with terminated_in_order(), errors_once(), connected(uri, protocol) as client, watched() as show:
        done = load(client, file, _new_ledger(options, password), on_progress=show)
    _say_new(done, as_json)


@click.command("cp")
@click.argument("ledger_id", type=LEDGER)
@click.option("--to-uri", metavar="URI", help="The cluster of the new ledger, by default that of --uri.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry id, which becomes entry 0.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry id; without it, up to the last add confirmed.")
@click.option("--new-password", envvar=NEW_PASSWORD_VARIABLE, show_envvar=True, help="Password of the new ledger, by default --password.")
@_new_ledger_options
@access_options
@cluster_options
def copy_ledger(
    ledger_id: int,
    to_uri: str | None,
    first: int,
    last: int | None,
    new_password: str | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy the entries of a ledger into a new one, here or in another cluster, and print its id. The source is never fenced.

    The new ledger is closed, read again and compared, as by `bk ledger import`. --digest is that of the source where its metadata stores
    none. If the source ends before --last, what there is is copied, and the exit status is 1.

    --json: ledger, entries, bytes, seconds, sourceClosed, file (null).
    """
    from bk_core.client.transfer.ledgers import copy_ledger as copy

    check_range(first, last)
    settings = _new_ledger(options, password if new_password is None else new_password)
    other = nullcontext(None) if to_uri is None else connected(to_uri, protocol)
    with terminated_in_order(), errors_once(), connected(uri, protocol) as client, other as target, watched() as show:
        access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
        done = copy(client, ledger_id, settings, to=target, first=first, last=last, on_progress=show, **access)
    _say_new(done, as_json)
    return _say_end(ledger_id, done, first, last)


def _say_new(done: Transfer, as_json: bool) -> None:
    if as_json:
        say_json(_transfer_json(done))
    else:
        click.echo(f"ledger {done.ledger_id}: {_told(done.entries, 'entry', 'entries', done.bytes, done.seconds)}, read again and the same")


# --- logs ----------------------------------------------------------------------------------------------------------------


_KIND = click.option(
    "--format", "kind", type=click.Choice(["entries", "parquet", "arrow"]), help="Kind of the file, by default by its name."
)


@click.command("export")
@click.argument("name", type=LOG)
@click.argument("file", type=_FILE)
@_KIND
@click.option("--compression", help="Compression of Parquet (zstd by default, snappy, gzip, none) or of Arrow IPC (zstd, lz4).")
@password_option
@cluster_options
def export_log(
    name: str, file: Path, kind: str | None, compression: str | None, password: str, uri: str, protocol: str, as_json: bool
) -> None:
    """Write what a log holds now into a new file: *.parquet and *.arrow hold rows, any other name entries as they are.

    A log of Arrow entries becomes Parquet or Arrow IPC, which needs pyarrow; a raw log becomes entries, or a table with a row for each.
    It never fences. The file appears when it is whole, and none is written over. A name of another format, such as *.csv, is refused.

    --json: log, file, format, rows, bytes, seconds, first, end (seq and entry of each).
    """
    from bk_core.client.transfer.logs import export_log as export

    with terminated_in_order(), connected(uri, protocol) as client, _watched(name) as show:
        chosen = cast("FileKind | None", kind)
        done = export(client, name, file, kind=chosen, password=password.encode(), compression=compression, on_counts=show)
    _say_log(done, as_json)


@click.command("import")
@click.argument("name", type=LOG)
@click.argument("file", type=_FILE)
@_KIND
@click.option("--create", is_flag=True, help="Make the log if there is none, with the default properties.")
@click.option("--take-over", is_flag=True, help="End an exclusive writer of the log, wherever it is.")
@password_option
@cluster_options
def import_log(
    name: str, file: Path, kind: str | None, create: bool, take_over: bool, password: str, uri: str, protocol: str, as_json: bool
) -> None:
    """Append what a file holds to a log, as one commit: readers see all of it or nothing. Needs pyarrow.

    It takes what `bk log export` writes, and any Parquet or Arrow IPC file whose columns are the log's. What was written is read again and
    compared.

    --json: log, file, format, rows, bytes, seconds, first, end (seq and entry of each).
    """
    from bk_core.client.transfer.logs import import_log as load

    with terminated_in_order(), connected(uri, protocol) as client, _watched(name) as show:
        how: dict[str, Any] = {"kind": cast("FileKind | None", kind), "create": create, "take_over": take_over}
        done = load(client, name, file, password=password.encode(), on_counts=show, **how)
    _say_log(done, as_json)


def _say_log(done: LogTransfer, as_json: bool) -> None:
    ends = {"first": {"seq": done.first.seq, "entry": done.first.entry}, "end": {"seq": done.end.seq, "entry": done.end.entry}}
    if as_json:
        shape = {"log": done.log, "file": done.path, "format": done.kind, "rows": done.rows, "bytes": done.bytes}
        say_json({**shape, "seconds": round(done.seconds, 3), **ends})
        return
    what = ("entry", "entries") if done.kind == "entries" else ("row", "rows")
    where = f"{done.first.seq}:{done.first.entry} to before {done.end.seq}:{done.end.entry}"
    click.echo(f"log {done.log}, {where}: {_told(done.rows, *what, done.bytes, done.seconds)}: {done.path}")


@contextmanager
def _watched(name: str) -> Iterator[OnCounts]:
    """Show on standard error what was read or written, if that is a terminal."""
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[done]}"), RateColumn())
    with progress_bar(*columns, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None, done="")

        def show(step: str, rows: int, size: int) -> None:
            bar.update(task, description=f"log {name}: {step}", completed=rows, done=f"{rows:,}, {rounded_size(size)}")

        yield show
