"""The tables of traces: where a batch is, and where an entry came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bk_core.display.logs import segment_values
from bk_core.display.table import Table
from bk_core.display.words import counted, when

if TYPE_CHECKING:
    from bk_core.client.log.tracing import BatchTrace, EntryTrace


def places(trace: BatchTrace) -> Table:
    """Return the segments of a batch, with the ledgers, entries and bookies that hold them."""
    columns = ["#segment", "#ledger", "entries", "#rows", "#bytes", "bookies"]
    return Table(columns, _places(trace))


def _places(trace: BatchTrace) -> Iterator[list[object]]:
    for one in trace.segments:
        segment = one.segment
        facts: list[object] = [str(segment.seq), str(segment.ledger_id)]
        numbers: list[object] = [segment.rows, segment.bytes]
        if not one.held:
            held_in = "written off" if segment.written_off else f"{segment.first_entry_id}-{segment.last_entry_id}"
            yield [*facts, held_in, *numbers, None if segment.written_off else "the ledger does not exist"]
        for at, held in enumerate(one.held):
            shown = numbers if at == 0 else [None, None]
            bookies = "  ".join(held.bookies)
            some = f" ({held.write_quorum_size} of them have each entry)" if held.write_quorum_size < len(held.bookies) else ""
            yield [*facts, f"{held.first}-{held.last}", *shown, bookies + some]


def batch_notes(trace: BatchTrace) -> Iterator[str]:
    """Yield what was found in words."""
    what = f"batch {trace.batch_id} of query {trace.query_id} in log {trace.log}"
    at = f", committed {when(trace.committed_at_ms)} UTC" if trace.committed_at_ms else ""
    if not trace.segments:
        yield f"{what}: it {'had no rows' if trace.had_no_rows else 'has no rows that are left'}{at}"
        return
    sums = f"{counted(trace.rows, 'row')}, {counted(trace.bytes, 'byte')}"
    yield f"{what}: {sums} in {counted(len(trace.ledgers), 'ledger')} on {counted(len(trace.bookies), 'bookie', 'bookies')}{at}"
    if trace.known != "recorded":
        yield f"its segments were found {trace.known}, because an older program committed them"


def batch(trace: BatchTrace) -> list[Table | str]:
    """Return the trace of a batch for a notebook."""
    return [*([places(trace)] if trace.segments else []), *batch_notes(trace)]


def batch_facts(trace: BatchTrace) -> dict[str, Any]:
    """Return a batch's trace by the names that scripts get (docs/site/pages/guides/looking.md has them)."""
    return {
        "log": trace.log,
        "query": trace.query_id,
        "batch": trace.batch_id,
        "known": trace.known,
        "rows": trace.rows,
        "bytes": trace.bytes,
        "committedAtMs": trace.committed_at_ms,
        "ledgers": list(trace.ledgers),
        "bookies": list(trace.bookies),
        "segments": [
            {
                **segment_values(one.segment),
                "held": [{"firstEntryId": part.first, "lastEntryId": part.last, "bookies": list(part.bookies)} for part in one.held],
            }
            for one in trace.segments
        ],
    }


def entry(trace: EntryTrace) -> list[Table | str]:
    """Return the trace of an entry, a fact a line."""
    rows: list[tuple[str, object]] = [("bookies", "  ".join(trace.bookies)), ("log", trace.log)]
    if trace.segment is not None:
        last = "live" if trace.segment.live else trace.segment.last_entry_id
        rows += [("segment", str(trace.segment.seq)), ("its entries", f"{trace.segment.first_entry_id}-{last}")]
        rows += [("rows of the entry", trace.segment.rows_in(trace.entry_id))] if not trace.segment.live else []
        rows.append(("committed (UTC)", when(trace.segment.committed_at_ms)))
    rows += [("query", trace.query_id), ("batch", None if trace.batch_id is None else str(trace.batch_id))]
    notes = [trace.note] if trace.note else []
    if trace.known not in (None, "recorded"):
        notes.append(f"its batch was found {trace.known}, because an older program committed it")
    return [Table(["ledger, entry", f"{trace.ledger_id}, {trace.entry_id}"], rows), *notes]


def entry_facts(trace: EntryTrace) -> dict[str, Any]:
    """Return an entry's trace by the names that scripts get (docs/site/pages/guides/looking.md has them)."""
    return {
        "ledger": trace.ledger_id,
        "entry": trace.entry_id,
        "bookies": list(trace.bookies),
        "log": trace.log,
        "segment": None if trace.segment is None else segment_values(trace.segment),
        "query": trace.query_id,
        "batch": trace.batch_id,
        "known": trace.known,
        "note": trace.note or None,
    }
