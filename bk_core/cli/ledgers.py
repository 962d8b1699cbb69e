"""``bk ledger``: list, show, read, recover and delete ledgers."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from bk_core.cli.output import (
    access_options,
    check_range,
    cluster_options,
    connected,
    now_ms,
    say_json,
    say_rows,
    say_table,
    with_progress,
)
from bk_core.display import ledgers as display
from bk_core.display.words import counted, preview
from bk_core.errors import NoSuchLedgerError
from bk_core.protocol.ledger.metadata import LedgerState

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.inspect import FoundLedger


@click.group()
def ledger() -> None:
    """Ledgers."""


def _found_summary(found: FoundLedger) -> dict[str, Any]:
    if found.metadata is None:
        return {"ledger": found.ledger_id, "state": display.UNREADABLE, "createdMs": found.created_ms, "problem": str(found.problem)}
    return {"ledger": found.ledger_id, **display.summary(found.metadata, **_known(found))}


def _known(found: FoundLedger) -> dict[str, Any]:
    return {"storedBytes": found.stored_bytes, "createdMs": found.created_ms}


@ledger.command("ls")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many, from the lowest id.")
@click.option("--bookie", "bookie_id", metavar="BOOKIE", help="Only ledgers with a fragment on this bookie.")
@cluster_options
def list_ledgers(uri: str, protocol: str, as_json: bool, limit: int | None, bookie_id: str | None) -> None:
    """All ledgers with their state, size and age.

    The length of a ledger is that of its payloads; `with copies` is what all copies take on the bookies, with the header and checksum of
    each entry. Both are known once it is CLOSED.

    --json: ledger, state, ensembleSize, writeQuorumSize, ackQuorumSize, fragments, lastEntryId, length, createdMs, storedBytes; for
    metadata that cannot be understood ledger, state (UNREADABLE), createdMs, problem.
    """
    shown = 0

    def counting(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        nonlocal shown
        for one in found:
            shown += 1
            yield one

    from bk_core.client.doctor.facts import check_known

    with connected(uri, protocol) as client:
        if bookie_id is not None:
            check_known(client, bookie_id)
        ids = list(client.list_ledgers())
        # a terminal that shows the rows needs no bar between them
        asked: Iterable[int] = ids if sys.stdout.isatty() else with_progress(ids, "reading metadata")
        summaries = counting(islice(_summaries(client, asked if limit is None or bookie_id else ids[:limit], bookie_id), limit))
        if as_json:
            for one in summaries:
                say_json(one)
            return
        say_rows(*display.ledgers(summaries, now_ms()))
    if bookie_id is not None:
        click.echo(f"{shown:,} of {counted(len(ids), 'ledger')} {'names' if shown == 1 else 'name'} {bookie_id}")
    else:
        click.echo(f"{shown:,} of {counted(len(ids), 'ledger')}" if limit else counted(len(ids), "ledger"))


def _summaries(client: BookKeeper, ledger_ids: Iterable[int], bookie: str | None) -> Iterator[dict[str, Any]]:
    """Yield the facts of ledgers, of those that name the bookie if one is given. What cannot be understood is told on standard error."""
    from bk_core.client.doctor.facts import names
    from bk_core.client.inspect import found_ledgers

    for found in found_ledgers(client, ledger_ids):
        if found.problem is not None:
            click.echo(f"ledger {found.ledger_id}: {found.problem}", err=True)
        if bookie is None or (found.metadata is not None and names(found.metadata, bookie)):
            yield _found_summary(found)


@ledger.command("show")
@click.argument("ledger_id", type=int)
@cluster_options
def show_ledger(ledger_id: int, uri: str, protocol: str, as_json: bool) -> None:
    """Metadata of one ledger with its fragments. Does not touch a bookie."""
    from bk_core.client.inspect import found_ledgers

    with connected(uri, protocol) as client:
        found = next(found_ledgers(client, [ledger_id]), None)
    if found is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist", ledger=ledger_id)
    if found.metadata is None:
        assert found.problem is not None
        raise found.problem
    metadata, known = found.metadata, _known(found)
    if as_json:
        say_json({"ledger": ledger_id, **display.details(metadata, **known)})
        return
    say_table(*display.ledger(metadata, ledger_id, now_ms(), **known))
    click.echo()
    say_table(*display.fragments(metadata.fragments))


@ledger.command("read")
@click.argument("ledger_id", type=int)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry id.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry id; without it, up to the last add confirmed.")
@click.option("--raw", is_flag=True, help="Payloads only, each followed by a newline.")
@access_options
@cluster_options
def read_ledger(
    ledger_id: int,
    first: int,
    last: int | None,
    raw: bool,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Entries of a ledger. Never fences: a writer is not disturbed.

    Where it ends before --last, or may go on, standard error says so; exit status 1 if --last was not reached.
    """
    check_range(first, last)
    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with connected(uri, protocol) as client, client.open_ledger(ledger_id, **access) as handle:
        end = handle.last_add_confirmed if last is None else min(last, handle.last_add_confirmed)
        for run in handle.read_runs(first, end) if end >= first else ():
            for index in range(run.count):
                payload = bytes(run.values[run.offsets[index] : run.offsets[index + 1]])
                _say_entry(run.first_entry_id + index, payload, raw, as_json)
        sys.stdout.flush()
        return _say_end(ledger_id, handle.metadata.state, handle.last_add_confirmed, first, last)


def _say_end(ledger_id: int, state: LedgerState, end: int, first: int, last: int | None) -> int:
    """Why it ends here, where that is not plain; the exit status."""
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
    """Entries of a ledger without a confirmed one may well exist: only the next entry or the close tells readers of the last."""
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


@ledger.command("recover")
@click.argument("ledger_id", type=int)
@access_options
@cluster_options
def recover_ledger(ledger_id: int, password: str, digest: str | None, uri: str, protocol: str, as_json: bool) -> None:
    """Fence a ledger, bring its end to full replication and close it. Its writer, if any, is stopped for good."""
    from bk_core.client.inspect import stored_bytes

    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with connected(uri, protocol) as client, client.recover_ledger(ledger_id, **access) as handle:
        metadata = handle.metadata
    if as_json:
        say_json({"ledger": ledger_id, **display.summary(metadata, storedBytes=stored_bytes(metadata))})
    else:
        click.echo(f"ledger {ledger_id} is {metadata.state.name}, last entry {metadata.last_entry_id}, length {metadata.length:,}")


@ledger.command("rm")
@click.argument("ledger_ids", type=int, nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--even-if-listed", is_flag=True, help="Also ledgers that a log lists: the log loses their entries.")
@cluster_options
def remove_ledgers(ledger_ids: tuple[int, ...], yes: bool, even_if_listed: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Delete ledgers with their data. Bookies free the space when they next collect garbage. One that a log lists is refused."""
    with connected(uri, protocol) as client:
        for ledger_id in ledger_ids:
            metadata = client.ledger_metadata(ledger_id)  # a mistyped id is an error here, though deleting twice is none
            if not yes:
                question = f"delete ledger {ledger_id} ({metadata.state.name}, last entry {metadata.last_entry_id})?"
                click.confirm(question, abort=True, err=True)
            client.delete_ledger(ledger_id, even_if_listed=even_if_listed)
            if as_json:
                say_json({"ledger": ledger_id, "deleted": True})
            else:
                click.echo(f"ledger {ledger_id} deleted")
