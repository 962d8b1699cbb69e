"""The ledger list of a log: one immutable value and its only changes.

Every change is a pure function from list to list that may be run again on a newer list (META-14). A change that is already there returns
the list unchanged, so a lost answer and a lost race look alike to the compare-and-set loop.

The log has the order (LOG-21): the history, then the tail (``segments``), then the entry id. Changes append at the end or remove a prefix
(LOG-I5). Closing a live segment fills in its end; sealing moves the oldest part of the tail into the history (sealing.py) without changing
what is listed. The stored form is codec.py; the reading side, history included, is ``LogView`` (view.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from bk_core.errors import InvalidArgumentError, LogError, LogListFullError, LogSchemaError, LogTakenOverError
from bk_core.protocol.log.history import Item, Load, counts, named, no_history, segments_of
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.provenance import BatchSpan, with_span
from bk_core.protocol.log.segments import (
    EMPTY,
    ENTRY_FORMATS,
    HistoryRef,
    LogProperties,
    Mark,
    Segment,
    SegmentRange,
    unchecked_properties,
)
from bk_core.protocol.log.times import commit_time

__all__ = ["ENTRY_FORMATS", "HistoryRef", "LedgerList", "LogProperties", "Mark", "Segment", "SegmentRange"]

ONE_SHOT = "write:"
ONE_SHOT_RETENTION_MS = 24 * 3600 * 1000
SCHEMAS_MAX = 64
ADOPTED_MAX = 1_000_000  # ledgers, which are stored as spans of ids
_Refs: TypeAlias = "tuple[HistoryRef, ...]"


@dataclass(frozen=True, slots=True)
class LedgerList:
    """The list of one log. ``trimmed_*`` describe everything removed from the front, so cumulative counts stay exact for ever.

    ``segments`` is the tail only, and bounded; older segments are in ``history``, whose first reference may reach below ``trimmed_seq``.
    ``head_rows`` and ``head_bytes`` count what lies before the first listed reference or segment; None means that they equal ``trimmed_*``.
    ``committed`` maps a query id (or transaction id) to its last batch. ``schemas`` are all schemas that the log had since its rows were
    last replaced with other columns; the last one is ``properties.schema``.

    Four fields hold ledgers that are to be deleted. ``dropped`` references were cut off by a trim, and their ledgers are still to be
    deleted. ``opened`` references were replaced by their children at a cut; their own ledgers stay until all that they refer to is trimmed,
    for readers with an older list. ``condemned`` ledgers are about to be deleted by a janitor, and no commit may name them. ``released``
    ledgers lost their last segment while somebody was still entitled to write them; a janitor condemns them when nobody is any more.

    ``cluster`` is the identity of the cluster whose ledgers these are (OWN-3); "" in a list of an earlier program, which did not store it.
    ``adopted`` ledgers carry no log's name, and a person has said that they belong to the log (OWN-11). ``adopted_from`` are identities of
    clusters that the list named before a person said that it belongs to this one, oldest first.

    ``batches`` tell which query committed which segments of the tail, as far as it is known; those of the history are in its chunks.

    ``repairs`` is how often something was written off (GRD-5), which lowers all counts behind it.
    """

    log_id: str
    properties: LogProperties = field(default_factory=LogProperties)
    segments: tuple[Segment, ...] = ()
    trimmed_seq: int = 0
    trimmed_rows: int = 0
    trimmed_bytes: int = 0
    committed: Mapping[str, Mark] = field(default_factory=lambda: EMPTY)
    condemned: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    history: tuple[HistoryRef, ...] = ()
    head_rows: int | None = None
    head_bytes: int | None = None
    dropped: tuple[HistoryRef, ...] = ()
    released: tuple[int, ...] = ()
    opened: tuple[HistoryRef, ...] = ()
    schemas: tuple[str, ...] = ()
    cluster: str = ""
    adopted: frozenset[int] = frozenset()
    adopted_from: tuple[str, ...] = ()
    batches: tuple[BatchSpan, ...] = ()
    repairs: int = 0

    def __post_init__(self) -> None:
        """Give ``head_*`` and ``schemas`` their one spelling, so that equal lists compare equal."""
        object.__setattr__(self, "head_rows", self.trimmed_rows if self.head_rows is None else self.head_rows)
        object.__setattr__(self, "head_bytes", self.trimmed_bytes if self.head_bytes is None else self.head_bytes)
        if self.properties.schema and not self.schemas:
            object.__setattr__(self, "schemas", (self.properties.schema,))

    # --- queries ------------------------------------------------------------------------------------------------

    @property
    def has_put_aside(self) -> bool:
        """True if ledgers are still to be deleted that a trim or a janitor took off the list."""
        return bool(self.condemned or self.released or self.dropped)

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.history, *self.segments)

    @property
    def tail_seq(self) -> int:
        """The first sequence number of the tail."""
        return self.history[-1].after_seq if self.history else self.trimmed_seq

    @property
    def next_seq(self) -> int:
        return self.tail_seq + len(self.segments)

    @property
    def live_segments(self) -> tuple[Segment, ...]:
        """The live segments, at most the last two (LOG-I3)."""
        return tuple(segment for segment in self.segments[-2:] if segment.live)

    @property
    def end_position(self) -> Position:
        """The position after the last committed entry, before any live segment."""
        for segment in self.segments[-2:]:
            if segment.live:
                return segment.first_position()
        return Position(self.next_seq)

    @property
    def total_rows(self) -> int:
        """The committed rows since the log was created, trimmed ones included."""
        return (self.head_rows or 0) + sum(item.rows for item in self.items)

    @property
    def total_bytes(self) -> int:
        return (self.head_bytes or 0) + sum(item.bytes for item in self.items)

    @property
    def _sealed_ms(self) -> int:
        """The latest time in the history; 0 without one."""
        return self.history[-1].last_ms if self.history else 0

    @property
    def last_ms(self) -> int:
        """The time of the last commit, on the clock of who made it, in milliseconds since 1970. It never goes back; 0 before the first."""
        return self.segments[-1].committed_at_ms if self.segments else self._sealed_ms

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        mark = self.committed.get(query_id)
        return mark is not None and mark.batch_id >= batch_id

    def named(self, ledger_ids: Collection[int], load: Load = no_history) -> frozenset[int]:
        """Return those of these ledgers that the log lists, as data of a segment that is left or as history."""
        return named(self.items, ledger_ids, load, self.trimmed_seq)

    def mentioned(self, ledger_ids: Collection[int], load: Load = no_history) -> frozenset[int]:
        """Return those of these ledgers that the log lists, or still has to read in order to delete what a trim has dropped."""
        opened = {ref.ledger_id for ref in self.opened}.intersection(ledger_ids)
        return named(self.dropped, ledger_ids, load) | self.named(ledger_ids, load) | opened

    # --- commits ------------------------------------------------------------------------------------------------

    def append_segments(
        self,
        ranges: Iterable[SegmentRange],
        now_ms: int,
        query_id: str | None = None,
        batch_id: int = -1,
        schema: str | None = None,
    ) -> LedgerList:
        """Publish acknowledged ranges in their order and, with a query id, mark its batch: both or neither.

        ``schema`` is the schema of ``schemas`` that the entries were written with, by default the last. If the ranges are there already
        (same query and batch, or without a query id every range in the tail) the list is unchanged. Raises LogTakenOverError behind a live
        segment; LogError for a condemned ledger or a range that overlaps one in the tail; LogSchemaError for a schema the log does not
        have.
        """
        wanted = tuple(ranges)
        if query_id is not None and self.is_committed(query_id, batch_id):
            return self
        if query_id is None and self._lists_all(wanted):
            return self
        if self.live_segments and wanted:
            raise LogTakenOverError(f"the log has an exclusive writer (live ledger {self.live_segments[-1].ledger_id}); take it over first")
        self._refuse_bad_ranges(wanted)
        schema_id = self._schema_id(schema)
        at_ms = commit_time(now_ms, self.last_ms)
        added = tuple(
            Segment(self.next_seq + i, r.ledger_id, r.first_entry_id, r.last_entry_id, r.rows, r.bytes, at_ms, r.rows_per_entry, schema_id)
            for i, r in enumerate(wanted)
        )
        changed = replace(self, segments=self.segments + added)
        if query_id is None:
            return changed
        return changed.mark_committed(query_id, batch_id, now_ms, sum(r.rows for r in wanted), sum(r.bytes for r in wanted))

    def mark_committed(self, query_id: str, batch_id: int, now_ms: int = 0, rows: int | None = None, size: int | None = None) -> LedgerList:
        """Mark a batch, with its rows and payload bytes where they are known, and forget marks that are too old: those of one-shot writes
        after a day, others as the properties say.
        """
        if self.is_committed(query_id, batch_id):
            return self
        kept = self.forget_old_marks(now_ms).committed
        return replace(self, committed=MappingProxyType({**kept, query_id: Mark(batch_id, now_ms, rows, size)}))

    def note_batch(self, query_id: str, batch_id: int, first_seq: int) -> LedgerList:
        """Note that the segments from ``first_seq`` on are those of a batch. The list is unchanged if there are none."""
        span = BatchSpan(first_seq, self.next_seq - first_seq, query_id, batch_id)
        return replace(self, batches=with_span(self.batches, span, self.trimmed_seq)) if span.count else self

    def forget_old_marks(self, now_ms: int) -> LedgerList:
        """Drop marks that have not moved for longer than the properties say; marks of one-shot writes are dropped after a day (JAN-6)."""
        kept = {name: mark for name, mark in self.committed.items() if not self._outdated(name, mark, now_ms)}
        return self if len(kept) == len(self.committed) else replace(self, committed=MappingProxyType(kept))

    def _outdated(self, query_id: str, mark: Mark, now_ms: int) -> bool:
        bounds = [self.properties.committed_retention_ms, ONE_SHOT_RETENTION_MS if query_id.startswith(ONE_SHOT) else None]
        return mark.at_ms > 0 and any(bound is not None and now_ms - mark.at_ms > bound for bound in bounds)

    # --- exclusive writing ----------------------------------------------------------------------------------------

    def add_live_segment(self, ledger_id: int, now_ms: int) -> LedgerList:
        """List a new ledger of an exclusive writer (LOG-1 (4), LOG-6 (2)). Raises LogError if two segments are live
        already (LOG-7)."""
        if self.segments and self.segments[-1].ledger_id == ledger_id:
            return self
        if len(self.live_segments) > 1:
            raise LogError("two segments of the log are live already; one must be closed before the next roll")
        live = Segment(self.next_seq, ledger_id, 0, None, 0, 0, commit_time(now_ms, self.last_ms), 1, self._schema_id(None))
        return replace(self, segments=(*self.segments, live))

    def close_live(self, ledger_id: int, last_entry_id: int, size: int, now_ms: int) -> LedgerList:
        """Fill in the end of a live segment whose ledger is CLOSED at ``last_entry_id`` (-1: empty). One row per entry; bytes of payload.

        The list is unchanged if the segment is closed already or was trimmed.
        """
        for index in range(max(0, len(self.segments) - 2), len(self.segments)):
            segment = self.segments[index]
            if segment.ledger_id == ledger_id and segment.live:
                before, after = self.segments[:index], self.segments[index + 1 :]
                before_ms = before[-1].committed_at_ms if before else self._sealed_ms
                committed = [one.committed_at_ms for one in after if not one.live]
                at_ms = commit_time(now_ms, before_ms, min(committed, default=None))
                closed = replace(segment, last_entry_id=last_entry_id, rows=last_entry_id + 1, bytes=size, committed_at_ms=at_ms)
                after = tuple(replace(one, committed_at_ms=max(at_ms, one.committed_at_ms)) if one.live else one for one in after)
                return replace(self, segments=(*before, closed, *after))
        return self

    # --- trimming and deletion -------------------------------------------------------------------------------------

    def trim(self, seq: int, load: Load = no_history, keep: Collection[int] = ()) -> tuple[LedgerList, tuple[int, ...]]:
        """Remove all segments before ``seq``. Returns the list, and their ledgers that it condemned because nothing names them any more.

        History wholly before the cut becomes ``dropped``, and ``sweep`` condemns its ledgers later, so a trim of any size is one small
        change. Ledgers in ``keep`` are released and not condemned (the caller goes on with them, or their intents are watched). Live
        segments stay (LOG-11): InvalidArgumentError if one lies before ``seq``.
        """
        seq = min(seq, self.next_seq)
        if seq <= self.trimmed_seq:
            return self, ()
        cut = [segment for segment in self.segments if segment.seq < seq]
        if any(segment.live for segment in cut):
            raise InvalidArgumentError("a live segment cannot be trimmed")
        rows, size = counts(self.items, seq, load)
        dropped, kept, opened = _split(self.history, seq, load)
        opened = (*self.opened, *opened)
        cut += segments_of([ref for ref in kept if ref.first_seq < seq], self.trimmed_seq, seq - 1, load)
        first = kept[0].first_seq if kept else seq
        before_rows, before_size = counts(self.items, first, load)
        head_rows, head_bytes = self.head_rows or 0, self.head_bytes or 0
        changed = replace(
            self,
            segments=tuple(segment for segment in self.segments if segment.seq >= seq),
            history=kept,
            dropped=(*self.dropped, *dropped),
            opened=tuple(ref for ref in opened if ref.after_seq > seq),
            trimmed_seq=seq,
            trimmed_rows=head_rows + rows,
            trimmed_bytes=head_bytes + size,
            head_rows=head_rows + before_rows,
            head_bytes=head_bytes + before_size,
        )
        unlisted = dict.fromkeys([*(segment.ledger_id for segment in cut), *(ref.ledger_id for ref in opened if ref.after_seq <= seq)])
        return changed._free(list(unlisted), load, keep)

    def sweep(self, load: Load, keep: Collection[int] = (), index: int = 0) -> tuple[LedgerList, tuple[int, ...]]:
        """Do one step of clearing ``dropped``: replace its reference at ``index`` by its children, or by condemned ledgers. The result is
        that of ``trim``."""
        ref = self.dropped[index]
        children = load(ref)
        refs = tuple(item for item in children if isinstance(item, HistoryRef))
        data = [item.ledger_id for item in children if isinstance(item, Segment)]
        changed = replace(self, dropped=(*self.dropped[:index], *refs, *self.dropped[index + 1 :]))
        return changed._free([*dict.fromkeys(data), ref.ledger_id], load, keep)

    def _free(self, ledger_ids: Collection[int], load: Load, keep: Collection[int]) -> tuple[LedgerList, tuple[int, ...]]:
        listed = self.named(ledger_ids, load)
        unlisted = [ledger_id for ledger_id in ledger_ids if ledger_id not in listed]
        free = tuple(ledger_id for ledger_id in unlisted if ledger_id not in keep)
        released = {*self.released, *(ledger_id for ledger_id in unlisted if ledger_id in keep)}
        return replace(self, released=tuple(sorted(released)))._condemn(free), free

    def settle(self, keep: Collection[int], load: Load = no_history) -> LedgerList:
        """Condemn released ledgers that are neither listed again nor in ``keep`` any more. The list is unchanged if there are none."""
        listed = self.named(self.released, load)
        staying = tuple(ledger_id for ledger_id in self.released if ledger_id in keep and ledger_id not in listed)
        if staying == self.released:
            return self
        return replace(self, released=staying)._condemn(set(self.released) - set(staying) - listed)

    def condemn(self, ledger_ids: Collection[int], load: Load = no_history) -> LedgerList:
        """Forbid commits of these ledgers for good. Ledgers that are listed, or that dropped history still lies in, are left alone."""
        wanted = set(ledger_ids) - set(self.condemned)
        return self._condemn(wanted - self.mentioned(wanted, load)) if wanted else self

    def _condemn(self, ledger_ids: Iterable[int]) -> LedgerList:
        new = set(ledger_ids) - set(self.condemned)
        if not new:
            return self
        released = tuple(ledger_id for ledger_id in self.released if ledger_id not in new)
        return replace(self, condemned=tuple(sorted((*self.condemned, *new))), released=released)

    def absolve(self, ledger_ids: Iterable[int]) -> LedgerList:
        """Forget condemned ledgers once they are deleted; a commit of one then fails on the missing ledger instead."""
        gone = set(ledger_ids)
        if not gone.intersection(self.condemned):
            return self
        return replace(self, condemned=tuple(i for i in self.condemned if i not in gone), adopted=self.adopted - gone)

    # --- adoption -------------------------------------------------------------------------------------------------

    def adopt(self, cluster: str, unnamed: Collection[int]) -> LedgerList:
        """Note that a person says that the log belongs to ``cluster``, and so do the ledgers ``unnamed``, which carry no log's name (OWN-4,
        OWN-11).

        The list is unchanged if it says so already. Raises LogListFullError for more ledgers than a list can name.
        """
        former = () if self.cluster in ("", cluster, *self.adopted_from) else (self.cluster,)
        adopted = self.adopted | frozenset(unnamed)
        if len(adopted) > ADOPTED_MAX:
            raise LogListFullError(f"{len(adopted)} ledgers without a log's name are too many for one list: at most {ADOPTED_MAX}")
        if self.cluster == cluster and adopted == self.adopted:
            return self
        return replace(self, cluster=cluster, adopted=adopted, adopted_from=(*self.adopted_from, *former))

    # --- properties and schemas ----------------------------------------------------------------------------------

    def set_schema(self, schema: str) -> LedgerList:
        """Set the schema, which the first write gives. A different one later is a LogSchemaError."""
        if self.properties.schema and self.properties.schema != schema:
            raise LogSchemaError("the log has another schema than the rows to write")
        return self.evolve_schema(schema)

    def evolve_schema(self, schema: str) -> LedgerList:
        """Make ``schema`` the newest one; the caller has checked that it only adds nullable columns at the end of the last.

        The list is unchanged if it is the last. Raises LogSchemaError if it is an earlier one (another writer has evolved the log: read the
        list again and decide on its schema), or if there are too many.
        """
        if self.properties.schema == schema:
            return self
        if schema in self.schemas:
            raise LogSchemaError("the schema to write was the log's once, but another writer has added columns since")
        if len(self.schemas) >= SCHEMAS_MAX:
            raise LogSchemaError(f"the log has had {SCHEMAS_MAX} schemas, which is the most that one may have; write a new log")
        return replace(self, properties=unchecked_properties(self.properties, schema=schema), schemas=(*self.schemas, schema))

    def replace_schema(self, schema: str) -> LedgerList:
        """Make ``schema`` the only one. Raises LogSchemaError while anything is listed that was written with another one (LOG-19)."""
        if self.properties.schema == schema:
            return self
        if self.items:
            raise LogSchemaError("the columns of a log can be replaced only together with all its rows")
        return replace(self, properties=unchecked_properties(self.properties, schema=schema), schemas=(schema,))

    def set_properties(self, properties: LogProperties) -> LedgerList:
        """Set other properties for what is written from now on. The schema and the entry format cannot be changed: InvalidArgumentError."""
        properties.check()
        if properties.entry_format != self.properties.entry_format:
            raise InvalidArgumentError(f"the entry format of a log is for ever: {self.properties.entry_format}")
        if properties.schema != self.properties.schema:
            raise InvalidArgumentError("the schema of a log changes by writing more columns, not by its properties")
        return self if properties == self.properties else replace(self, properties=properties)

    def _schema_id(self, schema: str | None) -> int:
        if schema is None:
            return max(0, len(self.schemas) - 1)
        if schema not in self.schemas:
            raise LogSchemaError("the rows were written with a schema that the log does not have")
        return self.schemas.index(schema)

    def _lists_all(self, ranges: tuple[SegmentRange, ...]) -> bool:
        listed = {(segment.ledger_id, segment.first_entry_id, segment.last_entry_id) for segment in self.segments}
        return all((r.ledger_id, r.first_entry_id, r.last_entry_id) in listed for r in ranges)

    def _refuse_bad_ranges(self, ranges: tuple[SegmentRange, ...]) -> None:
        wanted = {r.ledger_id for r in ranges}
        taken: dict[int, list[tuple[int, int]]] = {}
        for segment in self.segments:
            if segment.ledger_id in wanted and segment.last_entry_id is not None:
                taken.setdefault(segment.ledger_id, []).append((segment.first_entry_id, segment.last_entry_id))
        for r in ranges:
            if r.ledger_id in self.condemned:
                raise LogError(f"ledger {r.ledger_id} was condemned by a janitor; write the rows again", ledger_id=r.ledger_id)
            r.check()
            others = taken.setdefault(r.ledger_id, [])
            if any(first <= r.last_entry_id and r.first_entry_id <= last for first, last in others):
                raise LogError(
                    f"entries {r.first_entry_id}..{r.last_entry_id} of ledger {r.ledger_id} are listed already", ledger_id=r.ledger_id
                )
            others.append((r.first_entry_id, r.last_entry_id))


def _split(
    refs: Iterable[HistoryRef], seq: int, load: Load
) -> tuple[tuple[HistoryRef, ...], tuple[HistoryRef, ...], tuple[HistoryRef, ...]]:
    """Return the references wholly before ``seq``, those kept, and those that were replaced by their children.

    A reference of level 0 across the cut is kept; higher ones are replaced, because one of them would keep thousands of trimmed segments
    alive.
    """
    gone: list[HistoryRef] = []
    kept: list[HistoryRef] = []
    opened: list[HistoryRef] = []
    for ref in refs:
        if ref.after_seq <= seq:
            gone.append(ref)
        elif ref.first_seq >= seq or ref.level == 0:
            kept.append(ref)
        else:
            below = _split([item for item in load(ref) if isinstance(item, HistoryRef)], seq, load)
            gone += below[0]
            kept += below[1]
            opened += [*below[2], ref]
    return tuple(gone), tuple(kept), tuple(opened)
