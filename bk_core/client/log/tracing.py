"""Traces batches to the ledgers, entries and bookies that hold them, and entries back to the batch they came from. It changes nothing.

A log knows of which batch its segments are since it keeps spans of them (FORMAT.md, ``batches``). Of older segments only the last batch of
each query can be told, by the time of its commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from bk_core.arguments import COUNT, ID, checked
from bk_core.client.log.history import read_batches, read_log
from bk_core.client.log.list_store import LogClient
from bk_core.client.log.lists import list_logs
from bk_core.display.words import counted
from bk_core.errors import BkError, InvalidArgumentError, NoSuchBatchError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.log.history import Item
from bk_core.protocol.log.identity import LOG_KEY
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.provenance import BatchSpan, span_of, within
from bk_core.protocol.log.segments import HistoryRef, Segment
from bk_core.protocol.log.view import LogView

_WHOLE_ID = 36  # the length of Spark's ids
RECORDED, BY_TIME = "recorded", "by the time of its commit"


@dataclass(frozen=True, slots=True)
class Held:
    """Entries ``first`` to ``last`` of a ledger, and the bookies of the fragment that holds them. Each entry is on the
    ``write_quorum_size`` of them that its write set names."""

    first: int
    last: int
    bookies: tuple[BookieId, ...]
    write_quorum_size: int


@dataclass(frozen=True, slots=True)
class TracedSegment:
    """A segment, and where its entries are; ``held`` is empty for a ledger that does not exist any more."""

    segment: Segment
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True, repr=False)
class BatchTrace:
    """The segments that one batch of a query added to a log. A batch without rows added none.

    ``known`` says how the segments were found: "recorded" in the log's list, or, of segments of older programs, "by the time of its
    commit". ``committed_at_ms`` is None for a batch that is neither the query's last nor has segments. ``had_no_rows`` is True for a batch
    that never had any, as far as the log remembers: of the query's last one.
    """

    log: str
    query_id: str
    batch_id: int
    known: str
    segments: tuple[TracedSegment, ...]
    committed_at_ms: int | None
    had_no_rows: bool = False

    def __repr__(self) -> str:
        counts = ", ".join((counted(len(self.segments), "segment"), counted(self.rows, "row"), counted(self.bytes, "byte")))
        return f"<BatchTrace log {self.log}, batch {self.batch_id}: {counts}>"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows."""
        from bk_core.display import table, traces

        return table.html(*traces.batch(self))

    @property
    def rows(self) -> int:
        """The rows of the batch."""
        return sum(one.segment.rows for one in self.segments)

    @property
    def bytes(self) -> int:
        """The payload bytes of the batch."""
        return sum(one.segment.bytes for one in self.segments)

    @property
    def ledgers(self) -> tuple[int, ...]:
        """The ledgers that hold it, in the order of the log."""
        return tuple(dict.fromkeys(one.segment.ledger_id for one in self.segments))

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The bookies that hold a part of it, sorted."""
        return tuple(sorted({bookie for one in self.segments for held in one.held for bookie in held.bookies}))


@dataclass(frozen=True, slots=True, repr=False)
class EntryTrace:
    """The origin of one entry of a ledger.

    ``bookies`` are those of its write set. ``log`` is the log that lists the ledger, or whose name it carries; ``segment`` the segment with
    the entry, None if none has it: ``note`` says why. ``query_id`` and ``batch_id`` are None where they are not known, or where no query
    wrote it; ``known`` is as in BatchTrace.
    """

    ledger_id: int
    entry_id: int
    bookies: tuple[BookieId, ...]
    log: str | None = None
    segment: Segment | None = None
    query_id: str | None = None
    batch_id: int | None = None
    known: str | None = None
    note: str = ""

    def __repr__(self) -> str:
        where = "no log" if self.log is None else f"log {self.log}"
        batch = "" if self.batch_id is None else f", batch {self.batch_id} of {self.query_id}"
        return f"<EntryTrace entry {self.entry_id} of ledger {self.ledger_id}: {where}{batch}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import table, traces

        return table.html(*traces.entry(self))


# --- batches -------------------------------------------------------------------------------------------------------------


@checked(batch_id=COUNT)
def trace_batch(client: LogClient, name: str, query_id: str | None = None, batch_id: int | None = None) -> BatchTrace:
    """Return where a batch is. The query may be named by the beginning of its id, and left out if the log has one only; the batch is its
    last one by default.

    Raises NoSuchLogError; NoSuchBatchError for a query or batch that the log does not know; the errors of reading its history.
    """
    view = read_log(client, name)
    query = _query_of(view, name, query_id, batch_id)
    mark = view.listed.committed.get(query)
    number = batch_id if batch_id is not None else mark.batch_id if mark is not None else _newest(view, query)
    spans = [] if mark is not None and number > mark.batch_id else _spans(client, view, name, query, number)
    known = RECORDED
    if spans:
        segments = [one for span in spans for one in view.segments(max(span.first_seq, view.listed.trimmed_seq), span.after_seq - 1)]
    else:
        segments, known = _by_time(view, query, number), BY_TIME
    times = [one.committed_at_ms for one in segments]
    at_ms = max(times, default=mark.at_ms or None if mark is not None and mark.batch_id == number else None)
    if not segments:
        _check_committed(view, name, query, number, spans)
        known = RECORDED
    metadata: dict[int, LedgerMetadata | None] = {}
    traced = tuple(TracedSegment(one, _held(client, one, metadata)) for one in segments)
    return BatchTrace(name, query, number, known, traced, at_ms, _had_no_rows(view, query, number))


def _query_of(view: LogView, name: str, wanted: str | None, batch_id: int | None) -> str:
    known = dict.fromkeys([*sorted(view.listed.committed), *(one.query_id for one in view.listed.batches)])
    found = [one for one in known if wanted is None or one.startswith(wanted)]
    if wanted in known or len(found) == 1:
        return wanted if wanted in known else found[0]
    if wanted is not None and not found and len(wanted) >= _WHOLE_ID:
        return wanted  # its mark may be forgotten, and its segments be in the history
    told = f"it knows {', '.join(found or known)}" if known else "it knows none"
    what = f"no query {wanted} has written" if wanted else "no query has written"
    if len(found) > 1:
        what = "more than one query or write has written"
        told += "; name one by its id, or by a beginning that is its alone (query_id in Python, --query in bk)"
    raise NoSuchBatchError(f"{what} log {name!r}: {told}", log=name)


def _newest(view: LogView, query: str) -> int:
    return max((one.batch_id for one in view.listed.batches if one.query_id == query), default=0)


def _spans(client: LogClient, view: LogView, name: str, query: str, number: int) -> list[BatchSpan]:
    """Return the spans of a batch, from the list or else from the history, newest first. A query's batches only grow, so what is older than
    an earlier batch need not be read."""
    places = chain(
        [view.listed.batches], (read_batches(client, name, view.log_id, ref) for ref in _leaves(view, reversed(view.listed.history)))
    )
    for spans in places:
        mine = [one for one in spans if one.query_id == query]
        if found := [one for one in mine if one.batch_id == number and one.after_seq > view.listed.trimmed_seq]:
            return found
        if any(one.batch_id < number for one in mine):
            break
    return []


def _leaves(view: LogView, items: Iterable[Item]) -> Iterator[HistoryRef]:
    """Yield the references to segments, as far as they were not trimmed, newest first."""
    for item in items:
        if isinstance(item, HistoryRef) and item.after_seq > view.listed.trimmed_seq:
            if item.level:
                yield from _leaves(view, reversed(view.load(item)))
            else:
                yield item


def _had_no_rows(view: LogView, query: str, batch_id: int) -> bool:
    mark = view.listed.committed.get(query)
    return mark is not None and mark.batch_id == batch_id and mark.rows == 0


def _by_time(view: LogView, query: str, batch_id: int) -> list[Segment]:
    """Return the segments of the query's last batch, if their time, rows and bytes are those of its mark."""
    mark = view.listed.committed.get(query)
    if mark is None or mark.batch_id != batch_id or not mark.at_ms:
        return []
    found = [one for one in view.listed.segments if one.committed_at_ms == mark.at_ms and not one.live]
    sums = sum(one.rows for one in found), sum(one.bytes for one in found)
    return found if mark.rows is None or sums == (mark.rows, mark.bytes) else []


def _check_committed(view: LogView, name: str, query: str, batch_id: int, spans: list[BatchSpan]) -> None:
    """Raise NoSuchBatchError unless the batch was committed for certain, and has no rows that are left."""
    mark = view.listed.committed.get(query)
    if spans or _had_no_rows(view, query, batch_id):
        return
    if mark is not None and batch_id > mark.batch_id:
        raise NoSuchBatchError(f"query {query} has committed batches up to {mark.batch_id} to log {name!r}, not {batch_id}", log=name)
    message = (
        f"log {name!r} does not tell which segments are of batch {batch_id} of query {query}: the batch had no rows, was trimmed, or was "
        "committed by an older program"
    )
    raise NoSuchBatchError(message, log=name)


def _held(client: LogClient, segment: Segment, known: dict[int, LedgerMetadata | None]) -> tuple[Held, ...]:
    if segment.ledger_id not in known:
        try:
            known[segment.ledger_id] = client.ledger_metadata(segment.ledger_id)
        except NoSuchLedgerError:
            known[segment.ledger_id] = None
    metadata = known[segment.ledger_id]
    if metadata is None or segment.last_entry_id is None:
        return ()
    held, first = [], segment.first_entry_id
    while first <= segment.last_entry_id:
        after = metadata.first_entry_after(first)
        last = segment.last_entry_id if after is None else min(segment.last_entry_id, after - 1)
        held.append(Held(first, last, metadata.fragment_of(first).ensemble, metadata.write_quorum_size))
        first = last + 1
    return tuple(held)


# --- entries -------------------------------------------------------------------------------------------------------------


@checked(ledger_id=ID, entry_id=ID)
def trace_entry(client: LogClient, ledger_id: int, entry_id: int) -> EntryTrace:
    """Return where an entry came from: its log, segment, query and batch, as far as they are known.

    Raises NoSuchLedgerError, InvalidArgumentError for an entry after the end of a CLOSED ledger, and the errors of reading a log's list.
    """
    metadata = client.ledger_metadata(ledger_id)
    if metadata.state.name == "CLOSED" and entry_id > metadata.last_entry_id:
        message = f"ledger {ledger_id} ends at entry {metadata.last_entry_id}, and has no entry {entry_id}"
        raise InvalidArgumentError(message, ledger=ledger_id, entry=entry_id)
    distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    ensemble = metadata.fragment_of(entry_id).ensemble
    trace = EntryTrace(ledger_id, entry_id, tuple(ensemble[position] for position in distribution.write_set(entry_id)))
    carried = bytes(metadata.custom.get(LOG_KEY, b"")).decode(errors="replace")
    for name in [carried] if carried else list_logs(client):
        try:
            view = read_log(client, name)
        except (NoSuchLogError, InvalidArgumentError):
            continue
        except BkError:
            if carried:
                raise
            continue
        if carried or ledger_id in view.named([ledger_id]):
            return _traced(client, view, replace(trace, log=name), metadata)
    note = f"it carries the name of log {carried!r}, which does not exist" if carried else "no log lists this ledger"
    return replace(trace, note=note)


def _traced(client: LogClient, view: LogView, trace: EntryTrace, metadata: LedgerMetadata) -> EntryTrace:
    segment = _segment_of(view, view.listed.items, trace.ledger_id, trace.entry_id)
    assert trace.log is not None
    store = store_of(trace.log)
    if store is not None:
        note = f"this ledger belongs to file store {store!r}, such as a checkpoint of Spark: it holds files, and no rows of a query"
        return replace(trace, segment=segment, note=note)
    if segment is None:
        if metadata.custom.get("purpose") == b"history":
            return replace(trace, note="this ledger holds a part of the log's history, and no rows")
        return replace(trace, note="the log does not list this entry: it was trimmed, never committed, or written by a task that failed")
    found = replace(trace, segment=segment)
    if segment.live:
        return replace(found, note="an exclusive writer writes this segment, and no query")
    spans = view.listed.batches
    if segment.seq < view.listed.tail_seq:
        refs = (ref for ref in _leaves(view, view.listed.history) if ref.first_seq <= segment.seq < ref.after_seq)
        spans = (*spans, *(span for ref in refs for span in read_batches(client, trace.log, view.log_id, ref)))
    span = span_of(within(spans, segment.seq, segment.after_seq), segment.seq)
    if span is not None:
        return replace(found, query_id=span.query_id, batch_id=span.batch_id, known=RECORDED)
    for query, mark in sorted(view.listed.committed.items()):
        if segment in _by_time(view, query, mark.batch_id):
            return replace(found, query_id=query, batch_id=mark.batch_id, known=BY_TIME)
    return replace(found, note="the log does not tell its batch: no query wrote it, or an older program did")


def _segment_of(view: LogView, items: Iterable[Item], ledger_id: int, entry_id: int) -> Segment | None:
    """Return the segment with the entry; of the history only what may name the ledger is loaded."""
    for item in items:
        if item.after_seq <= view.listed.trimmed_seq:
            continue
        if isinstance(item, HistoryRef):
            if item.min_ledger <= ledger_id <= item.max_ledger and (found := _segment_of(view, view.load(item), ledger_id, entry_id)):
                return found
        elif item.ledger_id == ledger_id and item.first_entry_id <= entry_id and (item.live or entry_id < item.after_entry):
            return item
    return None
