"""``bk log trim`` and ``gc``: what a log does not keep any more, and what vanished writers have left."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from bk_core.cli.given import LOG
from bk_core.cli.output import cluster_options, connected, password_option, say_json
from bk_core.cli.progress import with_progress
from bk_core.cli.units import Duration, Size
from bk_core.display.ledgers import named_ledgers
from bk_core.display.words import counted, rest_about
from bk_core.errors import BkError, InvalidArgumentError, MetadataFormatError, NoSuchLogError, WrongClusterError, WrongPasswordError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.protocol.log.position import Position
    from bk_core.protocol.log.view import LogView


@click.command("trim")
@click.argument("name", type=LOG)
@click.option("--before-seq", type=click.IntRange(min=0), help="Drop segments before this one.")
@click.option("--older-than", "age_ms", type=Duration(), help="Drop segments committed longer ago, such as 7d.")
@click.option("--keep-bytes", type=Size(), help="Keep this many of the newest bytes, such as 10GiB, and drop what is older.")
@click.option("--retention", is_flag=True, help="Drop what the log's own retention does not keep.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@password_option
@cluster_options
def trim(
    name: str,
    before_seq: int | None,
    age_ms: int | None,
    keep_bytes: int | None,
    retention: bool,
    dry_run: bool,
    password: str,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Drop segments from the front of a log and delete their ledgers. What is being written stays.

    With several bounds, the one that drops most applies.

    --json: log, segments, rows, bytes, deleted (ledgers; null with --dry-run), dryRun.
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.janitor import trim_log
    from bk_core.client.log.list_store import store_now_ms
    from bk_core.protocol.log.position import Position
    from bk_core.protocol.log.trimming import TrimBounds

    with connected(uri, protocol) as client:
        view = read_log(client, name)
        if retention:
            age_ms = _either(min, age_ms, view.properties.retention_ms)
            keep_bytes = _either(min, keep_bytes, view.properties.retention_bytes)
        if before_seq is None and age_ms is None and keep_bytes is None:
            if retention:
                text = f"log {name} has no retention and keeps everything for ever: give it one (`bk log set {name} --retention 30d`, or "
                raise click.UsageError(f"{text}--retention-bytes 100GiB), or say what to drop (--older-than, --keep-bytes, --before-seq)")
            raise click.UsageError("say what to drop: --before-seq, --older-than, --keep-bytes or --retention")
        before = None if before_seq is None else Position(before_seq)
        _check_before(name, before, view)
        before_ms = None if age_ms is None else store_now_ms(client) - age_ms
        if dry_run:
            _say_trim(name, TrimBounds(before, before_ms, keep_bytes).dropped(view.listed, view.load), None, as_json)
            return
        deleted = trim_log(client, name, before=before, before_ms=before_ms, max_bytes=keep_bytes, password=password.encode())
        after = read_log(client, name).listed
    gone = (
        after.trimmed_seq - view.listed.trimmed_seq,
        after.trimmed_rows - view.listed.trimmed_rows,
        after.trimmed_bytes - view.listed.trimmed_bytes,
    )
    _say_trim(name, gone, deleted, as_json)


def _check_before(name: str, before: Position | None, view: LogView) -> None:
    from bk_core.protocol.log.trimming import check_before

    try:
        check_before(name, before, view.listed)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error.args[0]), param_hint="--before-seq") from None


def _either(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else choose(one, other)


def _say_trim(name: str, gone: tuple[int, int, int], deleted: Iterable[int] | None, as_json: bool) -> None:
    segments, rows, size = gone
    if as_json:
        ledgers = None if deleted is None else list(deleted)
        say_json({"log": name, "segments": segments, "rows": rows, "bytes": size, "deleted": ledgers, "dryRun": deleted is None})
        return
    verb = "would drop" if deleted is None else "dropped"
    click.echo(f"{verb} {counted(segments, 'segment')}, {counted(rows, 'row')}, {counted(size, 'byte')}")
    if deleted:
        click.echo(f"deleted {named_ledgers(tuple(deleted))}")


@click.command("gc")
@click.argument("names", nargs=-1, type=LOG)
@click.option(
    "--min-age", "age_ms", type=Duration(), default="6h", show_default=True, help="Age from which a writer of unknown fate counts as gone."
)
@click.option(
    "--delete-orphans",
    type=click.Choice(["known", "all"]),
    help="Delete ledgers whose log is gone: known: those that name their log root; all: those of earlier versions as well.",
)
@password_option
@cluster_options
def collect(names: tuple[str, ...], age_ms: int, delete_orphans: str | None, password: str, uri: str, protocol: str, as_json: bool) -> int:
    """Delete what vanished writers left in logs, all of them by default. Exit status 1 if something could not be cleaned up.

    Ledgers of processes that are known to be gone are cleaned up whatever their age, those of a query's workers when they are a minute
    old, because their batch may be about to be committed. It may run at any time.

    Without NAMES it looks at all ledgers as well, for those whose log is gone: they are reported, and deleted only with --delete-orphans.
    A ledger of an earlier version does not name its log root: its log may be alive at another one.

    --json: log, deleted, closed, forgotten (ledgers of each), failed, foreign (ledger, error of each); for a ledger whose log is gone:
    orphan, log, logId, logRoot, deleted, error.
    """
    failed = False
    if names and delete_orphans:
        raise click.UsageError("--delete-orphans looks at all ledgers; leave out the names")
    with connected(uri, protocol) as client:
        for name in with_progress(list(names) or _all_names(client), "collecting garbage"):
            try:
                failed |= _collect_one(client, name, age_ms, password, as_json, asked=name in names)
            except NoSuchLogError:  # all that is left of it is a place for intents, or it was deleted since it was listed
                if names:
                    raise
        if not names:
            failed |= _collect_orphans(client, delete_orphans, password, as_json)
    return 1 if failed else 0


def _collect_one(client: BookKeeper, name: str, age_ms: int, password: str, as_json: bool, *, asked: bool) -> bool:
    """Return True if something failed."""
    from bk_core.client.log.janitor import gc_log

    try:
        report = gc_log(client, name, min_age_s=age_ms / 1000, password=password.encode())
    except (WrongClusterError, MetadataFormatError) as error:
        click.echo(str(error), err=True)
        return True
    if not (asked or any((report.deleted, report.closed, report.failed, report.foreign, report.forgotten)) or _is_log(client, name)):
        return False  # a write that has not made its log, or never will, has left intents, whose ledgers are not garbage yet
    if as_json:
        said = {what: [{"ledger": i, "error": why} for i, why in getattr(report, what)] for what in ("failed", "foreign")}
        ids = {what: list(getattr(report, what)) for what in ("deleted", "closed", "forgotten")}
        say_json({"log": name, **ids, **said})
        return bool(report.failed)
    forgotten = f", forgot intents without a ledger, of {named_ledgers(report.forgotten)}" if report.forgotten else ""
    click.echo(f"{name}: deleted {named_ledgers(report.deleted)}, closed {named_ledgers(report.closed)}{forgotten}")
    for ledger_id, why in report.failed:
        what = f"ledger {ledger_id}"
        click.echo(f"{name}: {what} could not be cleaned up: {rest_about(what, why)}", err=True)
    for _, why in report.foreign:
        click.echo(f"{name}: {why}", err=True)
    if not password and any(_wants_password(why) for _, why in report.failed):
        click.echo(f"{name}: with the password of its ledgers in FILE: bk log gc {name} --password-file FILE", err=True)
    return bool(report.failed)


def _wants_password(why: str) -> bool:
    return why.startswith(f"[{WrongPasswordError.code}]")


def _is_log(client: BookKeeper, name: str) -> bool:
    from bk_core.client.log.lists import list_logs

    return name in list_logs(client)


def _collect_orphans(client: BookKeeper, wanted: str | None, password: str, as_json: bool) -> bool:
    """Return True if something failed."""
    from bk_core.client.log.orphans import delete_orphan, find_orphans

    failed = False
    for orphan in find_orphans(client, progress=lambda ids: with_progress(list(ids), "looking for ledgers whose log is gone")):
        deleted, why = False, ""
        if wanted == "all" or (wanted == "known" and orphan.log_root):
            try:
                deleted = delete_orphan(client, orphan, password=password.encode())
            except BkError as error:
                failed, why = True, str(error)
        if as_json:
            place = {"log": orphan.log, "logId": orphan.log_id, "logRoot": orphan.log_root}
            say_json({"orphan": orphan.ledger_id, **place, "deleted": deleted, "error": why or None})
            continue
        whose = f"ledger {orphan.ledger_id} of log {orphan.log}, which is gone"
        hint = "" if orphan.log_root else " from this log root (the ledger names none)"
        again = f"bk log gc --delete-orphans {'known' if orphan.log_root else 'all'}{_password_again(client, orphan.ledger_id)}"
        if _wants_password(why) and not password:
            why = f"left, for lack of its password; with that in FILE, {again} deletes it"
        click.echo(f"{whose}{hint}: {'deleted' if deleted else why or f'left; {again} deletes it'}", err=bool(why))
    return failed


def _password_again(client: BookKeeper, ledger_id: int) -> str:
    """Return the option by which the same command has the password of the ledger: that of this call, where it gave one."""
    from bk_core.client.doctor.passwords import password_option

    file = click.get_current_context().params.get("password_file")
    option, _ = password_option(client, [ledger_id])
    return f" --password-file {shlex.quote(file)}" if option and file else option


def _all_names(client: BookKeeper) -> list[str]:
    """Return the names of all logs, also of those that are deleted but not yet gone."""
    from bk_core.client.log.lists import list_logs

    list_logs(client)  # an error where there is no such log root
    return sorted({name for parent in ("logs", "intents", "deleted") for name in client.store.children(parent)})
