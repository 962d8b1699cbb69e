"""``bk log``: list and show logs."""

from __future__ import annotations

from typing import Any

import click

from bk_core.cli.output import cluster_options, connected, say_json, say_table, when, with_progress
from bk_core.errors import NoSuchLogError
from bk_core.protocol.log.ledger_list import LedgerList, Segment


@click.group()
def log() -> None:
    """Logs: ordered lists of segments over ledgers."""


def _summary(name: str, listed: LedgerList) -> dict[str, Any]:
    return {
        "log": name,
        "logId": listed.log_id,
        "entryFormat": listed.properties.entry_format,
        "firstSeq": listed.trimmed_seq,
        "segments": len(listed.segments),
        "live": any(segment.last_entry is None for segment in listed.segments),
        "rows": sum(segment.rows for segment in listed.segments),
        "bytes": sum(segment.bytes for segment in listed.segments),
        "condemned": len(listed.condemned),
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "seq": segment.seq,
        "ledger": segment.ledger_id,
        "firstEntry": segment.first_entry,
        "lastEntry": segment.last_entry,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "committedAtMs": segment.committed_at_ms,
    }


@log.command("ls")
@cluster_options
def show_logs(uri: str, protocol: str, as_json: bool) -> None:
    """All logs with their size."""
    from bk_core.client.logs import list_logs, read_ledger_list

    summaries = []
    with connected(uri, protocol) as client:
        for name in with_progress(list_logs(client), "reading ledger lists"):
            try:
                summaries.append(_summary(name, read_ledger_list(client, name)))
            except NoSuchLogError:  # deleted since it was listed
                continue
    if as_json:
        for summary in summaries:
            say_json(summary)
        return
    columns = ["log", "entry format", "#segments", "live", "#rows", "#bytes"]
    rows = [(s["log"], s["entryFormat"], s["segments"], "live" if s["live"] else None, s["rows"], s["bytes"]) for s in summaries]
    say_table(columns, rows)
    click.echo(f"{len(summaries):,} logs")


@log.command("show")
@click.argument("name")
@cluster_options
def show_log(name: str, uri: str, protocol: str, as_json: bool) -> None:
    """One log: its properties, what was committed by whom, and its segments."""
    from bk_core.client.logs import read_ledger_list

    with connected(uri, protocol) as client:
        listed = read_ledger_list(client, name)
    properties = listed.properties
    shown = {
        **_summary(name, listed),
        "schema": properties.schema,
        "quorums": [properties.ensemble_size, properties.write_quorum_size, properties.ack_quorum_size],
        "digestType": properties.digest_type,
        "committed": dict(listed.committed),
        "condemned": list(listed.condemned),
        "segments": [_segment(segment) for segment in listed.segments],
    }
    if as_json:
        say_json(shown)
        return
    say_table(["log", name], [(key, value) for key, value in shown.items() if key not in ("log", "segments", "committed")])
    if listed.committed:
        click.echo()
        say_table(["query", "#last batch"], sorted(listed.committed.items()))
    click.echo()
    columns = ["#seq", "#ledger", "#first entry", "#last entry", "#rows", "#bytes", "committed (UTC)"]
    say_table(columns, [_segment_row(segment) for segment in listed.segments])


def _segment_row(segment: Segment) -> list[object]:
    last = "live" if segment.last_entry is None else segment.last_entry
    size = (segment.first_entry, last, segment.rows, segment.bytes)
    return [str(segment.seq), str(segment.ledger_id), *size, when(segment.committed_at_ms)]
