"""The ledger list of a log: one immutable value, its codec and the only changes it may go through.

Every change is a pure function from list to list, made to survive being run again on a newer list (META-14): a change that is already
there returns the list unchanged, so a lost answer and a lost race look alike to the compare-and-set loop.

Order of the log (LOG-8): index of the segment, then entry id. Changes append at the end or remove a prefix (LOG-I5); closing a live
segment fills in its end. The stored form is JSON of one line with a format number; unknown fields are carried from read to write.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from bk_core.errors import (
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    LogSchemaError,
    LogTakenOverError,
    MetadataFormatError,
)
from bk_core.protocol.log.position import Position

FORMAT_VERSION = 1
ENTRY_FORMATS = ("arrow", "raw")
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries ``first_entry .. last_entry`` (inclusive) of one ledger. ``last_entry`` is None while the segment is live."""

    seq: int
    ledger_id: int
    first_entry: int
    last_entry: int | None
    rows: int = 0
    bytes: int = 0
    committed_at_ms: int = 0

    @property
    def live(self) -> bool:
        return self.last_entry is None

    @property
    def entries(self) -> int:
        """Number of entries; 0 while live and for a segment closed without any."""
        return 0 if self.last_entry is None else self.last_entry - self.first_entry + 1

    def first_position(self) -> Position:
        return Position(self.seq, self.first_entry)


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """What a committing writer brings: an acknowledged, inclusive range of entries of one ledger; ``bytes`` of payload, ``rows`` in it."""

    ledger_id: int
    first_entry: int
    last_entry: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogProperties:
    """How entries of the log are made. ``schema`` is a serialised Arrow schema in base64, or "" until the first write gives it."""

    entry_format: str = "arrow"
    schema: str = ""
    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    digest_type: str = "CRC32C"
    extra: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)

    def check(self) -> None:
        """InvalidArgumentError unless E >= Qw >= Qa >= 1 (CR-1) and the entry format is known."""
        if self.entry_format not in ENTRY_FORMATS:
            raise InvalidArgumentError(f"entryFormat must be one of {', '.join(ENTRY_FORMATS)}, not {self.entry_format!r}")
        if not self.ensemble_size >= self.write_quorum_size >= self.ack_quorum_size >= 1:
            raise InvalidArgumentError(
                "need ensembleSize >= writeQuorumSize >= ackQuorumSize >= 1, not "
                f"{self.ensemble_size}/{self.write_quorum_size}/{self.ack_quorum_size}"
            )


@dataclass(frozen=True, slots=True)
class LedgerList:
    """One log. ``trimmed_*`` describe everything removed from the front, so cumulative counts stay exact for ever.

    ``committed`` maps a query id (or transaction id) to its last committed batch id. ``condemned`` ledgers are about to be deleted by a
    janitor: no commit may name them.
    """

    log_id: str
    properties: LogProperties = field(default_factory=LogProperties)
    segments: tuple[Segment, ...] = ()
    trimmed_seq: int = 0
    trimmed_rows: int = 0
    trimmed_bytes: int = 0
    committed: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    condemned: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)

    # --- questions ----------------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        return self.trimmed_seq + len(self.segments)

    @property
    def live_segments(self) -> tuple[Segment, ...]:
        """At most the last two (LOG-I3)."""
        return tuple(segment for segment in self.segments[-2:] if segment.live)

    @property
    def first_position(self) -> Position:
        return self.normal(Position(self.trimmed_seq))

    @property
    def end_position(self) -> Position:
        """After the last committed entry, before any live segment."""
        for segment in self.segments[-2:]:
            if segment.live:
                return segment.first_position()
        return Position(self.next_seq)

    def segment(self, seq: int) -> Segment:
        """LogDataLossError if the segment was trimmed; InvalidArgumentError if it does not exist yet."""
        if seq < self.trimmed_seq:
            raise LogDataLossError(f"segment {seq} was trimmed; the log now starts at segment {self.trimmed_seq}", seq=seq)
        if seq >= self.next_seq:
            raise InvalidArgumentError(f"segment {seq} does not exist; the log ends before segment {self.next_seq}")
        return self.segments[seq - self.trimmed_seq]

    def normal(self, position: Position) -> Position:
        """The one spelling of a position: the end of a closed segment is the start of the next; entry 0 is the first entry.

        LogDataLossError if it lies before the first segment that is left. Offsets are compared as text, so spelling matters.
        """
        seq, entry = position.seq, position.entry
        if seq < self.trimmed_seq:
            raise LogDataLossError(f"segment {seq} was trimmed; the log now starts at segment {self.trimmed_seq}", seq=seq)
        while seq < self.next_seq:
            segment = self.segments[seq - self.trimmed_seq]
            entry = max(entry, segment.first_entry)
            if segment.last_entry is None or entry <= segment.last_entry:
                return Position(seq, entry)
            seq, entry = seq + 1, 0
        return Position(seq, entry)

    def counts_before(self, position: Position) -> tuple[int, int]:
        """Cumulative (rows, bytes) before ``position`` since the log was created.

        Exact at segment boundaries; inside a segment rows and bytes are shared out evenly over its entries.
        """
        position = self.normal(position)
        rows, size = self.trimmed_rows, self.trimmed_bytes
        for segment in self.segments[: max(0, position.seq - self.trimmed_seq)]:
            rows += segment.rows
            size += segment.bytes
        if position.seq < self.next_seq:
            segment = self.segment(position.seq)
            part_rows, part_size = _between(segment, segment.first_entry, position.entry)
            rows, size = rows + part_rows, size + part_size
        return rows, size

    def ledger_ids(self) -> frozenset[int]:
        return frozenset(segment.ledger_id for segment in self.segments)

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        return self.committed.get(query_id, -1) >= batch_id

    # --- changes ------------------------------------------------------------------------------------------------

    def append_segments(self, ranges: Iterable[SegmentRange], now_ms: int, query_id: str | None = None, batch_id: int = -1) -> LedgerList:
        """Publish acknowledged ranges in their order and, with a query id, mark its batch: both or neither.

        Already there (same query and batch, or every range listed): unchanged. LogTakenOverError behind a live segment; LogError for a
        condemned ledger or a range that overlaps one that is listed.
        """
        wanted = tuple(ranges)
        if query_id is not None and self.is_committed(query_id, batch_id):
            return self
        if query_id is None and self._lists_all(wanted):
            return self
        if self.live_segments and wanted:
            raise LogTakenOverError(f"the log has an exclusive writer (live ledger {self.live_segments[-1].ledger_id}); take it over first")
        self._refuse_bad_ranges(wanted)
        added = tuple(
            Segment(self.next_seq + i, r.ledger_id, r.first_entry, r.last_entry, r.rows, r.bytes, now_ms) for i, r in enumerate(wanted)
        )
        changed = replace(self, segments=self.segments + added)
        return changed if query_id is None else changed.mark_committed(query_id, batch_id)

    def mark_committed(self, query_id: str, batch_id: int) -> LedgerList:
        if self.is_committed(query_id, batch_id):
            return self
        return replace(self, committed=MappingProxyType({**self.committed, query_id: batch_id}))

    def add_live_segment(self, ledger_id: int, now_ms: int) -> LedgerList:
        """List a new ledger of an exclusive writer (LOG-1 step 4, LOG-6 step 2). LogError if two segments are live already (LOG-7)."""
        if self.segments and self.segments[-1].ledger_id == ledger_id:
            return self
        if len(self.live_segments) > 1:
            raise LogError("two segments of the log are live already; one must be closed before the next roll")
        return replace(self, segments=(*self.segments, Segment(self.next_seq, ledger_id, 0, None, 0, 0, now_ms)))

    def close_live(self, ledger_id: int, last_entry: int, size: int, now_ms: int) -> LedgerList:
        """Fill in the end of a live segment whose ledger is CLOSED at ``last_entry`` (-1: empty). One row per entry; bytes of payload.

        Unchanged if it is closed already or was trimmed.
        """
        for index in range(max(0, len(self.segments) - 2), len(self.segments)):
            segment = self.segments[index]
            if segment.ledger_id == ledger_id and segment.live:
                closed = replace(segment, last_entry=last_entry, rows=last_entry + 1, bytes=size, committed_at_ms=now_ms)
                return replace(self, segments=(*self.segments[:index], closed, *self.segments[index + 1 :]))
        return self

    def trim(self, seq: int) -> tuple[LedgerList, tuple[int, ...]]:
        """Remove all segments before ``seq``. Returns the list and the ledgers that nothing names any more; those are condemned in it.

        Live segments stay (LOG-11): InvalidArgumentError if one lies before ``seq``.
        """
        count = min(max(seq - self.trimmed_seq, 0), len(self.segments))
        if count == 0:
            return self, ()
        gone, kept = self.segments[:count], self.segments[count:]
        if any(segment.live for segment in gone):
            raise InvalidArgumentError("a live segment cannot be trimmed")
        left = {segment.ledger_id for segment in kept}
        free = tuple(dict.fromkeys(s.ledger_id for s in gone if s.ledger_id not in left))
        changed = replace(
            self,
            segments=kept,
            trimmed_seq=self.trimmed_seq + count,
            trimmed_rows=self.trimmed_rows + sum(segment.rows for segment in gone),
            trimmed_bytes=self.trimmed_bytes + sum(segment.bytes for segment in gone),
        )
        return changed.condemn(free), free

    def condemn(self, ledger_ids: Iterable[int]) -> LedgerList:
        """Forbid commits of these ledgers for good. Ledgers that are listed are left alone."""
        listed = self.ledger_ids()
        new = sorted({i for i in ledger_ids if i not in listed} - set(self.condemned))
        return replace(self, condemned=tuple(sorted((*self.condemned, *new)))) if new else self

    def absolve(self, ledger_ids: Iterable[int]) -> LedgerList:
        """Forget condemned ledgers once they are deleted; a commit of one then fails on the missing ledger instead."""
        gone = set(ledger_ids)
        if not gone.intersection(self.condemned):
            return self
        return replace(self, condemned=tuple(i for i in self.condemned if i not in gone))

    def set_schema(self, schema: str) -> LedgerList:
        """The first write gives the schema; a different one later is a LogSchemaError."""
        if self.properties.schema == schema:
            return self
        if self.properties.schema:
            raise LogSchemaError("the log has another schema than the rows to write")
        return replace(self, properties=replace(self.properties, schema=schema))

    def _lists_all(self, ranges: tuple[SegmentRange, ...]) -> bool:
        listed = {(segment.ledger_id, segment.first_entry, segment.last_entry) for segment in self.segments}
        return all((r.ledger_id, r.first_entry, r.last_entry) in listed for r in ranges)

    def _refuse_bad_ranges(self, ranges: tuple[SegmentRange, ...]) -> None:
        wanted = {r.ledger_id for r in ranges}
        taken: dict[int, list[tuple[int, int]]] = {}
        for segment in self.segments:
            if segment.ledger_id in wanted and segment.last_entry is not None:
                taken.setdefault(segment.ledger_id, []).append((segment.first_entry, segment.last_entry))
        for r in ranges:
            if r.ledger_id in self.condemned:
                raise LogError(f"ledger {r.ledger_id} was condemned by a janitor; write the rows again", ledger_id=r.ledger_id)
            if not 0 <= r.first_entry <= r.last_entry:
                raise InvalidArgumentError(f"bad entry range {r.first_entry}..{r.last_entry} of ledger {r.ledger_id}")
            others = taken.setdefault(r.ledger_id, [])
            if any(first <= r.last_entry and r.first_entry <= last for first, last in others):
                raise LogError(f"entries {r.first_entry}..{r.last_entry} of ledger {r.ledger_id} are listed already", ledger_id=r.ledger_id)
            others.append((r.first_entry, r.last_entry))


def position_at_rows(listed: LedgerList, start: Position, rows: int | None, size: int | None) -> Position:
    """The farthest committed position such that at most ``rows`` rows and ``size`` bytes lie between it and ``start``.

    At least one entry is always admitted if there is one, or a small limit would stop a stream for ever. One step per segment.
    """
    here = listed.normal(start)
    end = listed.end_position
    position, spent_rows, spent_size = here, 0, 0
    while position < end:
        segment = listed.segment(position.seq)
        after = (segment.last_entry if segment.last_entry is not None else -1) + 1
        rows_left = None if rows is None else rows - spent_rows
        size_left = None if size is None else size - spent_size
        step_rows, step_size = _between(segment, position.entry, after)
        if _fits(step_rows, rows_left) and _fits(step_size, size_left):
            position, spent_rows, spent_size = listed.normal(Position(segment.seq, after)), spent_rows + step_rows, spent_size + step_size
            continue
        position = Position(segment.seq, _last_fitting(segment, position.entry, after, rows_left, size_left))
        break
    if position == here and here < end:
        position = listed.normal(Position(here.seq, here.entry + 1))
    return min(position, end)


def _fits(amount: int, left: int | None) -> bool:
    return left is None or amount <= left


def _between(segment: Segment, first: int, after: int) -> tuple[int, int]:
    """(rows, bytes) of entries ``first <= entry < after``, shared out evenly over the segment's entries."""
    if not segment.entries:
        return 0, 0
    low, high = first - segment.first_entry, after - segment.first_entry
    rows = segment.rows * high // segment.entries - segment.rows * low // segment.entries
    return rows, segment.bytes * high // segment.entries - segment.bytes * low // segment.entries


def _last_fitting(segment: Segment, first: int, after: int, rows: int | None, size: int | None) -> int:
    def over(entry: int) -> bool:
        step_rows, step_size = _between(segment, first, entry)
        return not (_fits(step_rows, rows) and _fits(step_size, size))

    return first + max(0, bisect_left(range(first, after), True, key=over) - 1)


# --- codec ------------------------------------------------------------------------------------------------------

_FIELDS = ("format", "logId", "properties", "trimmed", "segments", "committed", "condemned")
_PROPERTY_FIELDS = ("entryFormat", "schema", "ensembleSize", "writeQuorumSize", "ackQuorumSize", "digestType")


def encode(listed: LedgerList) -> bytes:
    """One line of JSON. The same list always gives the same bytes (META-12 repeats byte-identically)."""
    p = listed.properties
    properties = {
        "entryFormat": p.entry_format,
        "schema": p.schema,
        "ensembleSize": p.ensemble_size,
        "writeQuorumSize": p.write_quorum_size,
        "ackQuorumSize": p.ack_quorum_size,
        "digestType": p.digest_type,
        **dict(sorted(p.extra.items())),
    }
    value = {
        "format": FORMAT_VERSION,
        "logId": listed.log_id,
        "properties": properties,
        "trimmed": [listed.trimmed_seq, listed.trimmed_rows, listed.trimmed_bytes],
        "segments": [[s.ledger_id, s.first_entry, s.last_entry, s.rows, s.bytes, s.committed_at_ms] for s in listed.segments],
        "committed": dict(sorted(listed.committed.items())),
        "condemned": list(listed.condemned),
        **dict(sorted(listed.extra.items())),
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(data: bytes) -> LedgerList:
    """MetadataFormatError for bytes that are no ledger list or come from a newer, incompatible format."""
    try:
        value = json.loads(data.decode())
        if value["format"] != FORMAT_VERSION:
            raise MetadataFormatError(f"ledger list of format {value['format']!r}; this program reads format {FORMAT_VERSION}")
        trimmed_seq, trimmed_rows, trimmed_bytes = (int(n) for n in value["trimmed"])
        segments = tuple(
            Segment(trimmed_seq + i, int(s[0]), int(s[1]), None if s[2] is None else int(s[2]), int(s[3]), int(s[4]), int(s[5]))
            for i, s in enumerate(value["segments"])
        )
        return LedgerList(
            log_id=str(value["logId"]),
            properties=_decode_properties(value["properties"]),
            segments=segments,
            trimmed_seq=trimmed_seq,
            trimmed_rows=trimmed_rows,
            trimmed_bytes=trimmed_bytes,
            committed=MappingProxyType({str(k): int(v) for k, v in value["committed"].items()}),
            condemned=tuple(int(i) for i in value["condemned"]),
            extra=MappingProxyType({k: v for k, v in value.items() if k not in _FIELDS}),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise MetadataFormatError(f"not a ledger list: {type(error).__name__}: {error}") from error


def _decode_properties(value: Mapping[str, Any]) -> LogProperties:
    return LogProperties(
        entry_format=str(value["entryFormat"]),
        schema=str(value["schema"]),
        ensemble_size=int(value["ensembleSize"]),
        write_quorum_size=int(value["writeQuorumSize"]),
        ack_quorum_size=int(value["ackQuorumSize"]),
        digest_type=str(value["digestType"]),
        extra=MappingProxyType({k: v for k, v in value.items() if k not in _PROPERTY_FIELDS}),
    )
