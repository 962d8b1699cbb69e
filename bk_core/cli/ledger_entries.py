"""``bk ledger read``, ``tail`` and ``diff``: entries as readers get them, as one bookie has them, and as two do."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import click

from bk_core.arguments import check_reached
from bk_core.cli.given import BOOKIE, LEDGER
from bk_core.cli.output import access_options, check_range, check_raw, cluster_options, connected, say_found, say_json
from bk_core.cli.progress import watched
from bk_core.cli.unread import ended_unread
from bk_core.display import copies as display
from bk_core.display.words import counted, preview
from bk_core.protocol.ledger.metadata import LedgerState

if TYPE_CHECKING:
    from bk_core.client import BookKeeper, ReadHandle
    from bk_core.protocol.ledger.run import EntryRun

# --- read ----------------------------------------------------------------------------------------------------------------


@click.command("read")
@click.argument("ledger_id", type=LEDGER)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry id.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry id; without it, up to the last add confirmed.")
@click.option("--raw", is_flag=True, help="Print payloads only, each followed by a newline.")
@click.option("--from-bookie", metavar="BOOKIE", help="Print the copies of this bookie alone, as it has them, also wrong ones.")
@access_options
@cluster_options
def read_ledger(
    ledger_id: int,
    first: int,
    last: int | None,
    raw: bool,
    from_bookie: str | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Print entries of a ledger. It never fences: a writer is not disturbed.

    Where the ledger ends before --last, or may go on, standard error says so; exit status 1 if --last was not reached. With --from-bookie
    nobody else is asked, entries that this bookie should not have are left out, and the exit status is 1 if a copy is missing or wrong.

    --json: entry, bytes, payload (base64); with --from-bookie also bookie, state (good, corrupt, missing, unreadable), lac, length.
    """
    check_range(first, last)
    check_raw(raw, as_json)
    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with connected(uri, protocol) as client, client.open_ledger(ledger_id, **access) as handle:
        end = handle.last_add_confirmed if last is None else min(last, handle.last_add_confirmed)
        if from_bookie is not None:
            bad = _say_copies(client, handle, from_bookie, first, end, raw, as_json)
            return 1 if bad else _say_end(ledger_id, handle.metadata.state, handle.last_add_confirmed, first, last)
        for run in handle.read_runs(first, end) if end >= first else ():
            _say_run(run, raw, as_json)
        sys.stdout.flush()
        return _say_end(ledger_id, handle.metadata.state, handle.last_add_confirmed, first, last)


def _say_run(run: EntryRun, raw: bool, as_json: bool) -> None:
    for index in range(run.count):
        payload = bytes(run.values[run.offsets[index] : run.offsets[index + 1]])
        _say_entry(run.first_entry_id + index, payload, raw, as_json)


def _say_copies(client: BookKeeper, handle: ReadHandle, bookie: str, first: int, last: int, raw: bool, as_json: bool) -> int:
    """Print the copies of one bookie, and return how many are missing or wrong. With ``raw`` those are printed on standard error alone."""
    from bk_core.client.copies import copies_of

    bad = shown = 0
    for copy in copies_of(client, handle.ledger_id, handle.metadata, bookie, first, last):
        state = display.state(copy)
        shown += 1
        bad += state != "good"
        if as_json:
            payload = None if copy.payload is None else base64.b64encode(copy.payload).decode()
            numbers = {"lac": copy.last_add_confirmed, "length": copy.length}
            size = None if copy.payload is None else len(copy.payload)
            say_json({"entry": copy.entry_id, "bookie": bookie, "state": state, **numbers, "bytes": size, "payload": payload})
        elif copy.payload is None or (raw and state != "good"):
            click.echo(f"{copy.entry_id:>10}  {state} ({copy.status.name})", err=raw)
        elif raw or state == "good":
            _say_entry(copy.entry_id, copy.payload, raw, as_json)
        else:
            click.echo(f"{copy.entry_id:>10}  {len(copy.payload):>10,} B  WRONG DIGEST  {preview(copy.payload)}")
    sys.stdout.flush()
    click.echo(f"{bookie}: {counted(shown, 'copy', 'copies')}, {bad:,} missing or wrong", err=True)
    return bad


def _say_end(ledger_id: int, state: LedgerState, end: int, first: int, last: int | None) -> int:
    """Print why the output ends here, where that is not plain, and return the exit status: 1 if entries that were asked for are missing."""
    short = last is not None and last > end
    asked = first if first > end else last
    beyond = f": entry {asked} lies beyond" if (short or first > end) and (first > 0 or last is not None) else ""
    if state is not LedgerState.CLOSED:
        click.echo(f"ledger {ledger_id} is {state.name}{_confirmed(state, end, beyond)}. {_going_on(ledger_id, state)}", err=True)
    elif end < 0:
        click.echo(f"ledger {ledger_id} is CLOSED and has no entry{beyond}", err=True)
    elif beyond:
        click.echo(f"ledger {ledger_id} ends at entry {end}{beyond}", err=True)
    return 1 if short else 0


def _confirmed(state: LedgerState, end: int, beyond: str) -> str:
    """Return what is confirmed of a ledger that is not CLOSED. Where no entry is confirmed, entries may well exist: readers learn of the
    last one only with the next, or by the close."""
    if end >= 0:
        return f" and confirmed up to entry {end} so far{beyond}"
    why = " (what was acknowledged last is confirmed with the next entry)" if state is LedgerState.OPEN else ""
    return f", and none of its entries is confirmed yet{why}: nothing is shown"


def _going_on(ledger_id: int, state: LedgerState) -> str:
    recover = f"`bk ledger recover {ledger_id}`"
    if state is LedgerState.OPEN:
        return f"Read again if its writer lives; if it is gone, {recover} finds and fixes the end"
    return f"Read again when its recovery has fixed the end; if nobody recovers it any more, {recover} does"


def _say_entry(entry_id: int, payload: bytes, raw: bool, as_json: bool) -> None:
    if raw:
        sys.stdout.buffer.write(payload + b"\n")
    elif as_json:
        say_json({"entry": entry_id, "bytes": len(payload), "payload": base64.b64encode(payload).decode()})
    else:
        click.echo(f"{entry_id:>10}  {len(payload):>10,} B  {preview(payload)}")


# --- tail ----------------------------------------------------------------------------------------------------------------


@click.command("tail")
@click.argument("ledger_id", type=LEDGER)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the ledger is closed or Ctrl-C.")
@click.option("-n", "--entries", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the last entries.")
@click.option("--raw", is_flag=True, help="Print payloads only, each followed by a newline.")
@access_options
@cluster_options
@ended_unread()
def tail_ledger(
    ledger_id: int, follow: bool, count: int, raw: bool, password: str, digest: str | None, uri: str, protocol: str, as_json: bool
) -> None:
    """Print the last entries of a ledger, and with --follow those that come. It never fences: a writer is not disturbed.

    Entries are shown once they are confirmed: the one that was acknowledged last is confirmed with the next one, or when its writer says
    so while it has nothing to write.

    --json: entry, bytes, payload (base64).
    """
    check_raw(raw, as_json)
    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with connected(uri, protocol) as client, client.open_ledger(ledger_id, **access) as handle:
        first = max(0, handle.last_add_confirmed + 1 - count)
        if follow:
            for run in handle.tail(first):
                _say_run(run, raw, as_json)
                sys.stdout.flush()
            click.echo(f"ledger {ledger_id} is CLOSED, its last entry is {handle.last_add_confirmed}", err=True)
            return
        for run in handle.read_runs(first, handle.last_add_confirmed) if handle.last_add_confirmed >= first else ():
            _say_run(run, raw, as_json)
        sys.stdout.flush()
        _say_end(ledger_id, handle.metadata.state, handle.last_add_confirmed, first if count else 0, None)


# --- diff ----------------------------------------------------------------------------------------------------------------


@click.command("diff")
@click.argument("ledger_id", type=LEDGER)
@click.argument("bookie", type=BOOKIE)
@click.argument("other", type=BOOKIE)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry id.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry id; without it, up to the last add confirmed.")
@access_options
@cluster_options
def diff_ledger(
    ledger_id: int,
    bookie: str,
    other: str,
    first: int,
    last: int | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Compare the copies of two bookies, byte by byte. Exit status 1 if they differ. It only reads, and never fences.

    It lists the entries that one of the two lacks, and those whose last add confirmed (LAC), length, payload or digest differ, with the
    copy that is wrong. After a recovery copies may differ in their LAC alone, and are intact. Only entries that both should have are
    compared.

    --json: ledger, bookies, first, last, same, differing, heldByOne, differences (first, last, count, what, fields, digestOk).
    """
    check_range(first, last)
    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with connected(uri, protocol) as client, watched() as show:
        found = client.diff(ledger_id, bookie, other, first=first, last=last, on_progress=show, **access)
    check_reached(ledger_id, first, found.last)
    if as_json:
        say_json(display.diff_facts(found))
    else:
        say_found(display.differences(found))
        for note in display.diff_notes(found):
            click.echo(note)
    return 0 if found.is_same else 1
