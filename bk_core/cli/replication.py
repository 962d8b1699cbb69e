"""``bk ledger check`` and ``repair``, ``bk bookie decommission``: replicas that are missing, bad or on a bookie that is to go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from bk_core.cli.given import BOOKIE, LEDGER
from bk_core.cli.output import access_options, bytes_per_second, cluster_options, connected, rate_option, say_found, say_json, say_table
from bk_core.cli.progress import watched
from bk_core.cli.switching import await_state, tell_read_only
from bk_core.cli.units import Number
from bk_core.display import repairs as display
from bk_core.display.ledgers import READ_ONLY, WRITABLE
from bk_core.display.words import about, counted, host_port, rest_about, rounded_size
from bk_core.errors import BkError, BookieUnavailableError, LogError, MetadataFormatError, NoSuchLedgerError, OperationTimeoutError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.repair.report import DecommissionReport, LedgerReport, RepairReport


SHOWN_MAX = 1000
"""A table of checks or repairs shows at most so many ledgers."""
_Report = TypeVar("_Report")


def _tail_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say how far a repair may go with a ledger whose writer has not closed it (RR-3)."""
    command = click.option(
        "--grace",
        type=Number(min=0),
        default=30.0,
        show_default=True,
        help="With --recover-open: seconds in which the writer may replace the lost bookie itself.",
    )(command)
    return click.option(
        "--recover-open", is_flag=True, help="Recover unclosed ledgers whose last fragment names a lost bookie. This stops a live writer."
    )(command)


def _access(password: str, digest: str | None) -> dict[str, Any]:
    """Return the password and digest type for ledgers whose metadata stores none (META-15)."""
    return {"password": password.encode() or None, "digest_type": digest}


def _chosen(client: BookKeeper, ledger_id: int | None, everything: bool) -> list[int]:
    if (ledger_id is None) != everything:
        raise click.UsageError("name one ledger, or give --all")
    return list(client.list_ledgers()) if ledger_id is None else [ledger_id]


class _Shown(Generic[_Report]):
    """The reports that a table will show. Of a hundred thousand ledgers the first ``SHOWN_MAX`` are kept, and the others counted."""

    def __init__(self) -> None:
        self.reports: list[_Report] = []
        self._left_out = 0

    def add(self, report: _Report) -> None:
        if len(self.reports) < SHOWN_MAX:
            self.reports.append(report)
        else:
            self._left_out += 1

    def say_left_out(self, what: str) -> None:
        if self._left_out:
            click.echo(f"and {counted(self._left_out, 'more ledger')} {what}: --json has all")


@contextmanager
def _even_if_it_ends(say: Callable[[], None], shown: _Shown[Any]) -> Iterator[None]:
    """Say what is to be shown by then if an error or Ctrl-C ends the whole: what was moved stays moved, and what was found holds."""
    try:
        yield
    except (BkError, KeyboardInterrupt):
        if shown.reports:
            say()
        raise


# --- check --------------------------------------------------------------------------------------------------------------


@click.command("check")
@click.argument("ledger_id", type=LEDGER, required=False)
@click.option("--all", "everything", is_flag=True, help="Every ledger; only replicas that are not good are listed.")
@click.option("--full", is_flag=True, help="Every entry of every replica instead of the first and the last one.")
@rate_option
@access_options
@cluster_options
def check(
    ledger_id: int | None,
    everything: bool,
    full: bool,
    rate: float | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Find replicas of entries that are missing or corrupt. Exit status 1 if anything is not good. It only reads, and never fences.

    A fragment that is still being written (the last one of an unclosed ledger) is not judged entry by entry. --password and --digest are
    used where a ledger's metadata stores none. A bookie that does not admit this client says nothing about its copies: their state is
    unknown, and standard error says what is missing from the URI.

    --json: ledger, good, status (good, damaged or unknown), notAdmitting (bookies), full, state, openTailLost (bookies), unsealed,
    digestNote, fragments (firstEntryId, lastEntryId, replicas). A replica has position, bookie, registered, good, checked, missing, corrupt
    and unreadable (first and last of each range of entries), noAnswer.
    """
    options = {"full": full, "bytes_per_second": bytes_per_second(rate), **_access(password, digest)}
    shown: _Shown[LedgerReport] = _Shown()
    checked = bad = unknown = 0
    refused: set[str] = set()
    with connected(uri, protocol) as client, watched() as show:
        with _even_if_it_ends(lambda: _say_found_bad(shown, everything), shown):
            for chosen in _chosen(client, ledger_id, everything):
                try:
                    report = client.check_ledger(chosen, on_progress=show, **options)
                except NoSuchLedgerError:  # deleted since it was listed
                    if not everything:
                        raise
                    continue
                except (MetadataFormatError, OperationTimeoutError) as error:  # the others can be checked nevertheless
                    if not everything:
                        raise
                    bad += 1
                    click.echo(about(f"ledger {chosen}", error), err=True)
                    continue
                checked += 1
                bad += report.status == "damaged"
                unknown += report.status == "unknown"
                refused |= {*report.not_admitting}
                if as_json:
                    say_json(display.check_facts(report))
                elif not (everything and report.is_good and not any(display.check_notes(report))):
                    shown.add(report)  # of thousands only those that are not good, or have a note
        gone = _listed_and_gone(client) if everything else []
        _note_refused(client, refused)
    if not as_json:
        _say_found_bad(shown, everything)
        how = "every entry of every replica" if full else "first and last entry of every replica"
        left = f", {unknown:,} unknown: this client is not admitted" if unknown else ""
        click.echo(f"{counted(checked, 'ledger')} checked ({how}): {bad:,} in need of repair{left}")
    for line in gone:
        click.echo(line, err=True)
    return 1 if bad or unknown or gone else 0


def _note_refused(client: BookKeeper, refused: Collection[str]) -> None:
    if refused:
        from bk_core.client.doctor.admission import refusal_told

        click.echo(refusal_told(client, refused), err=True)


def _listed_and_gone(client: BookKeeper) -> list[str]:
    """Return a sentence for each log that lists ledgers which do not exist: a check of those that exist cannot find them."""
    from bk_core.client.log.check import check_log
    from bk_core.client.log.lists import list_logs

    found = []
    for name in list_logs(client):
        try:
            missing = [one.ledger_id for one in check_log(client, name, read=False).problems if one.kind == "missing"]
        except LogError as error:
            found.append(f"log {name} cannot be checked: {rest_about(f'log {name!r}', error)}")
            continue
        if missing:
            found.append(f"log {name} lists ledgers {', '.join(map(str, missing))}, which do not exist: bk log check {name}")
    return found


def _say_found_bad(shown: _Shown[LedgerReport], only_bad: bool) -> None:
    _say_checks(shown.reports, only_bad)
    shown.say_left_out("with replicas that are not good, or with a note")


def _say_checks(reports: list[LedgerReport], only_bad: bool) -> None:
    say_found(display.replicas(reports, only_bad=only_bad))
    for report in reports:
        for note in display.check_notes(report):
            click.echo(about(f"ledger {report.ledger_id}", note))


# --- repair -------------------------------------------------------------------------------------------------------------


@click.command("repair")
@click.argument("ledger_id", type=LEDGER, required=False)
@click.option("--all", "everything", is_flag=True, help="Every ledger, one after the other.")
@click.option("--full", is_flag=True, help="Look at every entry of every replica, not only at the first and the last one.")
@click.option(
    "--lost", multiple=True, metavar="BOOKIE", type=BOOKIE, help="Treat this bookie as lost although it is registered. May be repeated."
)
@click.option("--lock-wait", type=Number(min=0), default=30.0, show_default=True, help="Seconds to wait for another replicator.")
@_tail_options
@rate_option
@access_options
@cluster_options
def repair(
    ledger_id: int | None,
    everything: bool,
    full: bool,
    lost: tuple[str, ...],
    lock_wait: float,
    recover_open: bool,
    grace: float,
    rate: float | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Copy what is missing or corrupt, and replace bookies that are gone. Exit status 1 if something could not be repaired.

    It works beside live writers and readers, and beside Apache's auto-recovery, whose lock of each ledger it takes and respects; it also
    works where auto-recovery is disabled, since it runs only when somebody calls it. --password and --digest are used where a ledger's
    metadata stores none.

    --json: ledger, complete, moved (firstEntryId, position, from, to, entries), filledIn (firstEntryId, position, bookie, entries),
    recovered, sealed, lockedBy, deleted, openTailLost (bookies), problems, notAdmitting (bookies), entriesCopied, bytesCopied.
    """
    from bk_core.client.repair.draining import check_known

    options = {
        "full": full,
        "lost": lost,
        "lock_wait_s": lock_wait,
        "recover_open": recover_open,
        "grace_s": grace,
        "bytes_per_second": bytes_per_second(rate),
        **_access(password, digest),
    }
    shown: _Shown[RepairReport] = _Shown()
    looked_at = changed = entries = size = incomplete = 0
    refused: set[str] = set()
    with connected(uri, protocol) as client, watched() as show:
        chosen = _chosen(client, ledger_id, everything)
        for bookie in lost:
            check_known(client, bookie)
        _note_disabled(client, as_json)
        with _even_if_it_ends(lambda: _say_shown(shown), shown):
            for report in _repaired(client, chosen, everything, {**options, "on_progress": show}):
                looked_at += 1
                changed += report.changed
                entries, size = entries + report.entries_copied, size + report.bytes_copied
                incomplete += not report.is_complete
                refused |= report.not_admitting
                if as_json:
                    say_json(display.repair_facts(report))
                elif report.changed or any(display.repair_notes(report)):
                    shown.add(report)
        _note_refused(client, refused)
    if not as_json:
        _say_shown(shown)
        click.echo(
            f"{counted(looked_at, 'ledger')} looked at, {changed:,} changed, {counted(entries, 'entry', 'entries')} "
            f"({rounded_size(size)}) copied, {incomplete:,} not fully repaired"
        )
    return 1 if incomplete else 0


def _say_shown(shown: _Shown[RepairReport]) -> None:
    _say_repairs(shown.reports)
    shown.say_left_out("that were changed, or have a note")


def _repaired(client: BookKeeper, ledger_ids: Iterable[int], everything: bool, options: dict[str, Any]) -> Iterator[RepairReport]:
    from bk_core.client.repair.report import RepairReport

    for ledger_id in ledger_ids:
        try:
            report = client.repair_ledger(ledger_id, **options)
        except NoSuchLedgerError:  # deleted since it was listed
            if not everything:
                raise
            report = RepairReport(ledger_id, deleted=True)
        yield report


def _note_disabled(client: BookKeeper, as_json: bool) -> None:
    if not as_json and client.store.underreplication().is_disabled():
        click.echo("note: Apache's auto-recovery is disabled on this cluster; this command works nevertheless", err=True)


def _say_repairs(reports: list[RepairReport]) -> None:
    say_found(display.repairs(reports))
    for report in reports:
        for line in display.repair_notes(report):
            click.echo(about(f"ledger {report.ledger_id}", line))


# --- decommission -------------------------------------------------------------------------------------------------------


@click.command("decommission")
@click.argument("bookie_id", type=BOOKIE)
@click.option("--read-only", is_flag=True, help="Make it read-only first, if it is writable, as `bk bookie read-only` does.")
@click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    help="With --read-only: its HTTP server, where its registration names none, or https:// before it.",
)
@click.option(
    "--wait", type=Number(min=0), default=0.0, show_default=True, help="Seconds for writers to move on, and for it to be stopped."
)
@click.option("--delete-cookie", is_flag=True, help="When nothing names the bookie any more and it is down, forget it for good.")
@click.option("--stopped", is_flag=True, help="With --delete-cookie: you made sure that it has ended, where nobody can tell.")
@click.option("--yes", is_flag=True, help="With --delete-cookie: do not ask.")
@_tail_options
@rate_option
@access_options
@cluster_options
def decommission(
    bookie_id: str,
    read_only: bool,
    address: str | None,
    wait: float,
    delete_cookie: bool,
    stopped: bool,
    yes: bool,
    recover_open: bool,
    grace: float,
    rate: float | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Move everything off a bookie, alive or dead, until no fragment of any ledger names it. Exit status 1 if some still do, if the bookie
    takes new ledgers all the while, or if its cookie was to be deleted and stays: it still ran at the end, or nobody can tell.

    Stop it first, or make it read-only (--read-only, which is refused where no other bookie could take its copies): clients place new
    ledgers on a bookie as long as it is registered as writable. Live writers go on. A ledger that is being written to the bookie right now
    stays until its writer moves on, or until --recover-open closes it. All ledgers that name the bookie are processed once, and again until
    --wait is over; a copy that is under way then is finished. With --delete-cookie, what is left of --wait is for you to stop the bookie
    when this says that it is empty. The cookie is deleted where its process has ended: its address refuses connections for ten seconds, or
    another bookie is registered there. Where its host is gone for good, say so with --stopped.

    --json: a line for each ledger that was repaired, as of `bk ledger repair`. The last line has bookie, complete, registered, writable,
    cookieDeleted, runsAt, unseen (why nobody can tell whether it has ended), namedBy and writtenNow (ledgers).
    """
    if address is not None and not read_only:
        raise click.UsageError("--http is for --read-only")
    if stopped and not delete_cookie:
        raise click.UsageError("--stopped is for --delete-cookie")
    if delete_cookie and not yes:
        click.confirm(f"move everything off {bookie_id} and forget it for good, so that it cannot start again?", abort=True, err=True)
    with connected(uri, protocol) as client, watched() as show:
        _note_disabled(client, as_json)
        if read_only:
            _make_read_only(client, bookie_id, address, as_json)
        if not as_json and bookie_id in client.bookies().writable:
            text = f"{bookie_id} is writable, so clients go on placing ledgers on it; make it read-only or stop it first"
            click.echo(f"note: {text}", err=True)

        def announce(number: int, of: int, ledger_id: int) -> None:
            if not as_json and not sys.stderr.isatty():
                click.echo(f"ledger {ledger_id} ({number:,} of {of:,} that name the bookie)", err=True)

        def empty() -> None:
            click.echo(f"no fragment of any ledger names {bookie_id} any more: stop it now, and its cookie is deleted", err=True)

        shown: _Shown[RepairReport] = _Shown()

        def changed(repaired: RepairReport) -> None:
            if as_json:
                say_json(display.repair_facts(repaired))
            else:
                shown.add(repaired)

        stays_read_only = read_only and bookie_id in client.bookies().readonly
        with _telling_what_stays(bookie_id, stays_read_only), _even_if_it_ends(lambda: _say_shown(shown), shown):
            report = client.decommission_bookie(
                bookie_id,
                wait_s=wait,
                delete_cookie=delete_cookie,
                stopped=stopped,
                on_ledger=announce,
                on_empty=empty,
                on_change=changed,
                recover_open=recover_open,
                grace_s=grace,
                bytes_per_second=bytes_per_second(rate),
                on_progress=show,
                **_access(password, digest),
            )
        _note_refused(client, {bookie for repaired in report.repairs for bookie in repaired.not_admitting})
    is_done = report.is_complete and not (delete_cookie and (report.registered or report.runs_at is not None or report.unseen))
    if as_json:
        for repaired in report.in_vain.values():  # those that changed a ledger have been told
            say_json(display.repair_facts(repaired))
        done = {"complete": report.is_complete, "registered": report.registered, "writable": report.writable}
        runs_at = None if report.runs_at is None else host_port(*report.runs_at)
        named = {"namedBy": report.named_by, "writtenNow": [found.ledger_id for found in report.still_named if found.written]}
        cookie = {"cookieDeleted": report.cookie_deleted, "runsAt": runs_at, "unseen": report.unseen or None}
        say_json({"bookie": report.bookie, **done, **cookie, **named})
        return 0 if is_done else 1
    _say_repairs(report.repairs)
    _say_still_named(report)
    if read_only and report.still_named and report.registered:
        click.echo(f"it stays read-only; `bk bookie read-only {bookie_id} off` turns it writable again")
    if not report.still_named:
        click.echo(f"no fragment of any ledger names {bookie_id} any more")
        click.echo(_what_next(report, delete_cookie))
    return 0 if is_done else 1


@contextmanager
def _telling_what_stays(bookie: str, was_made_read_only: bool) -> Iterator[None]:
    """Say after Ctrl-C how the bookie was left. What was moved stays moved, and each ledger is whole."""
    try:
        yield
    except KeyboardInterrupt:
        off = f"`bk bookie read-only {bookie} off` turns it writable again"
        stays = f"bookie {bookie} stays read-only ({off}); " if was_made_read_only else ""
        click.echo(f"{stays}what was moved stays where it is: run the same command again to go on", err=True)
        raise


def _make_read_only(client: BookKeeper, bookie: str, address: str | None, quiet: bool) -> None:
    """Have a bookie that is writable turn read-only, and wait for it. One that is read-only or down, or goes down meanwhile, takes no new
    ledgers either. Raises InvalidArgumentError for one that nobody knows, BookieHttpError, and BookieUnavailableError if it stays
    writable."""
    from bk_core.client.doctor.facts import check_known
    from bk_core.client.repair.draining import check_room

    if check_known(client, bookie) != WRITABLE:
        return
    check_room(client, bookie)
    try:
        tell_read_only(client, bookie, True, address)
        state = await_state(client, bookie, READ_ONLY)
    except KeyboardInterrupt:
        off = f"`bk bookie read-only {bookie} off` turns it writable again"
        click.echo(f"bookie {bookie} may have been asked to turn read-only, and stays so then ({off}); nothing was moved", err=True)
        raise
    if state == WRITABLE:
        raise BookieUnavailableError(f"bookie {bookie} was asked to turn read-only, and is still writable: see its log", bookie=bookie)
    if not quiet:
        click.echo(f"bookie {bookie} is {state}" if state == READ_ONLY else f"bookie {bookie} went down when it was asked", err=True)


def _say_still_named(report: DecommissionReport) -> None:
    if not report.still_named:
        return
    found = report.still_named
    shown = found[: display.LEDGERS_SHOWN]
    say_table(*display.still_named(shown))
    written = sum(one.written for one in found)
    more = f", {len(found) - len(shown):,} of them not shown" if len(found) > len(shown) else ""
    click.echo(f"{report.bookie} is still named by {counted(len(found), 'ledger')}{more}; {written:,} in use")
    if report.writable:
        click.echo("it is writable, so there may be more by now: make it read-only or stop it, then run this again")


def _what_next(report: DecommissionReport, delete_cookie: bool) -> str:
    if report.cookie_deleted:
        return "its cookie is deleted: it cannot start again on its old data"
    again = f"then run `bk bookie decommission {report.bookie} --delete-cookie`"
    if report.writable:
        return f"it is still writable, so new ledgers may be placed on it at any time: stop it now, {again}"
    if report.registered:
        return f"it is read-only, so no new ledgers are placed on it: stop it, {again}"
    if report.runs_at is not None:
        still = f"it is not registered, but something still takes connections at {host_port(*report.runs_at)}"
        other = "if another program listens there, BookKeeper.delete_cookie forgets the bookie"
        return f"{still}, as a frozen process does: its cookie is not deleted; end the process, {again} ({other})"
    if report.unseen:
        sure = "a process that is frozen or cut off would go on without it; make sure that it has ended"
        kept = f"its cookie is not deleted, because nobody can tell whether its process has ended: {report.unseen}"
        return f"{kept}; {sure}, {again[:-1]} --stopped`"
    if delete_cookie:
        return "it had no cookie"
    return "if it is not to come back, run this again with --delete-cookie"
