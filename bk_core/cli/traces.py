"""``bk trace``: finds the ledgers, entries and bookies that hold a batch of Spark, and the batch that an entry belongs to."""

from __future__ import annotations

import click

from bk_core.cli.given import LOG
from bk_core.cli.output import cluster_options, connected, say_found, say_json, say_table
from bk_core.display import traces as display
from bk_core.display.table import Table


@click.group()
def trace() -> None:
    """Find the bookies that hold a batch of a query, and the batch that an entry belongs to."""


@trace.command("batch")
@click.argument("log", type=LOG)
@click.option("--query", metavar="ID", help="Id of the query, or its beginning; not needed where one query writes the log.")
@click.option("--batch", type=click.IntRange(min=0), help="Number of the batch; the last one by default.")
@cluster_options
def trace_batch(log: str, query: str | None, batch: int | None, uri: str, protocol: str, as_json: bool) -> None:
    """Show the segments, ledgers, entries and bookies that hold one batch of a query in LOG.

    Spark (query.id) and `bk log marks` show the id of a query. Of the batches that older versions committed, only the last one of each
    query is known.

    --json: log, query, batch, known, rows, bytes, committedAtMs, ledgers, bookies, segments (as of `bk log segments`, and held: the
    firstEntryId, lastEntryId and bookies of each fragment).
    """
    with connected(uri, protocol) as client:
        found = client.trace_batch(log, query, batch)
    if as_json:
        say_json(display.batch_facts(found))
        return
    say_found(display.places(found))
    for note in display.batch_notes(found):
        click.echo(note)


@trace.command("entry")
@click.argument("ledger_id", type=click.IntRange(min=0))
@click.argument("entry_id", type=click.IntRange(min=0))
@cluster_options
def trace_entry(ledger_id: int, entry_id: int, uri: str, protocol: str, as_json: bool) -> None:
    """Show the log, segment, query and batch that one entry of a ledger belongs to, and the bookies that should have it.

    --json: ledger, entry, bookies, log, segment (as of `bk log segments`), query, batch, known, note.
    """
    with connected(uri, protocol) as client:
        found = client.trace_entry(ledger_id, entry_id)
    if as_json:
        say_json(display.entry_facts(found))
        return
    for part in display.entry(found):
        if isinstance(part, Table):
            say_table(*part)
        else:
            click.echo(part)
