"""``bk ledger``: list, show, read, recover and delete ledgers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from bk_core.cli.given import LEDGER
from bk_core.cli.ledger_entries import diff_ledger, read_ledger, tail_ledger
from bk_core.cli.output import access_options, cluster_options, connected, now_ms, say_json, say_rows, say_table
from bk_core.cli.progress import with_progress
from bk_core.display import ledgers as display
from bk_core.display.words import about, counted
from bk_core.errors import MetadataFormatError, NoSuchLedgerError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.protocol.ledger.metadata import LedgerMetadata


@click.group()
def ledger() -> None:
    """List, show, read, follow, recover, check, compare, repair, copy, export, import and delete ledgers."""


for _command in (read_ledger, tail_ledger, diff_ledger):
    ledger.add_command(_command)


@ledger.command("ls")
@click.option("--limit", type=click.IntRange(min=1), help="List at most so many, from the lowest id.")
@click.option("--bookie", "bookie_id", metavar="BOOKIE", help="Only ledgers with a fragment on this bookie.")
@cluster_options
def list_ledgers(uri: str, protocol: str, as_json: bool, limit: int | None, bookie_id: str | None) -> None:
    """List all ledgers with their state, size and age.

    The length of a ledger is the bytes of its payloads; `with copies` is what all copies take on the bookies, with the header and checksum
    of each entry. Both are known once it is CLOSED.

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

    limit = None if limit is None else min(limit, sys.maxsize)  # more than that is no number for islice
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
    """Yield the facts of ledgers, of those that name the bookie if one is given. Standard error says what cannot be understood."""
    from bk_core.client.doctor.facts import names
    from bk_core.client.inspect import found_ledgers

    for found in found_ledgers(client, ledger_ids):
        if found.problem is not None:
            click.echo(about(f"ledger {found.ledger_id}", found.problem), err=True)
        if bookie is None or (found.metadata is not None and names(found.metadata, bookie)):
            yield display.found_summary(found)


@ledger.command("show")
@click.argument("ledger_id", type=LEDGER)
@cluster_options
def show_ledger(ledger_id: int, uri: str, protocol: str, as_json: bool) -> None:
    """Show the metadata of one ledger with its fragments. No bookie is asked.

    --json: ledger, state, ensembleSize, writeQuorumSize, ackQuorumSize, fragments (firstEntryId, ensemble), lastEntryId, length, createdMs,
    storedBytes, digestType, hasPassword, formatVersion, custom (the beginning of each value, as text or as hexadecimal after 0x).
    """
    from bk_core.client.inspect import found_ledgers

    with connected(uri, protocol) as client:
        found = next(found_ledgers(client, [ledger_id]), None)
    if found is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist", ledger=ledger_id)
    if found.metadata is None:
        assert found.problem is not None
        raise found.problem
    metadata, known = found.metadata, display.known(found)
    if as_json:
        say_json({"ledger": ledger_id, **display.details(metadata, **known)})
        return
    say_table(*display.ledger(metadata, ledger_id, now_ms(), **known))
    click.echo()
    say_table(*display.fragments(metadata.fragments))


@ledger.command("recover")
@click.argument("ledger_id", type=LEDGER)
@access_options
@cluster_options
def recover_ledger(ledger_id: int, password: str, digest: str | None, uri: str, protocol: str, as_json: bool) -> None:
    """Fence a ledger, copy its end until each entry has its quorum, and close it. Its writer, if any, is stopped for good.

    --json: ledger, state, ensembleSize, writeQuorumSize, ackQuorumSize, fragments (their number), lastEntryId, length, createdMs,
    storedBytes.
    """
    from bk_core.client.inspect import stored_bytes

    access: dict[str, Any] = {"password": password.encode(), "digest_type": digest}
    with connected(uri, protocol) as client, client.recover_ledger(ledger_id, **access) as handle:
        metadata = handle.metadata
    if as_json:
        say_json({"ledger": ledger_id, **display.summary(metadata, storedBytes=stored_bytes(metadata))})
    else:
        click.echo(f"ledger {ledger_id} is {metadata.state.name}, last entry {metadata.last_entry_id}, length {metadata.length:,}")


def _known(client: BookKeeper, ledger_id: int, even_if_listed: bool) -> LedgerMetadata | None:
    """Return the metadata of a ledger that is to be deleted; None if it cannot be understood and the user insists."""
    from bk_core.client.deleting import refuse_unreadable

    try:
        return client.ledger_metadata(ledger_id)
    except MetadataFormatError as error:
        refuse_unreadable(ledger_id, error, even_if_listed)
        return None


def _told(ledger_id: int, metadata: LedgerMetadata | None) -> str:
    """Return what a question says of a ledger that is to be deleted."""
    if metadata is None:
        return f"{ledger_id} (its metadata cannot be understood)"
    log = metadata.custom.get("log", b"").decode("utf-8", "replace")
    return f"{ledger_id} ({metadata.state.name}, last entry {metadata.last_entry_id}{f', made for log {log!r}' if log else ''})"


@ledger.command("rm")
@click.argument("ledger_ids", type=LEDGER, nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--even-if-listed", is_flag=True, help="Also ledgers that a log lists: the log loses their entries.")
@cluster_options
def remove_ledgers(ledger_ids: tuple[int, ...], yes: bool, even_if_listed: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Delete ledgers with their data. Bookies free the space when they next collect garbage. One that a log lists is refused.

    One that is not CLOSED is deleted too: its writer does not learn of it, and goes on writing entries that are lost. The question says its
    state.

    --json: ledger, deleted.
    """
    from bk_core.client.deleting import refuse_listed

    with connected(uri, protocol) as client:
        found = {one: _known(client, one, even_if_listed) for one in ledger_ids}  # a mistyped id is an error before anything is deleted
        for ledger_id, metadata in found.items():
            if not even_if_listed and metadata is not None:
                refuse_listed(client, ledger_id, metadata.custom)  # and not after the question
            if not yes:
                click.confirm(f"delete ledger {_told(ledger_id, metadata)}?", abort=True, err=True)
            client.delete_ledger(ledger_id, even_if_listed=even_if_listed)
            if as_json:
                say_json({"ledger": ledger_id, "deleted": True})
            else:
                click.echo(f"ledger {ledger_id} deleted")
