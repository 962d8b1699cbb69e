"""Changes of a bookie's storage that wait for one commit; only the newest change of each entry and record is kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from bk_core.protocol.bookie import Change, LedgerRecord, PersistMany
from bk_core.protocol.bookie.chunks import StoredEntries
from bk_core.protocol.bookie.room import demand_of_change, demand_of_run
from bk_core.protocol.wire.codec_v2 import split_bodies

ID_END = 1 << 63
_ENTRY_COST = 64  # of memory for a body, beside its bytes


Single = tuple[int, bytes]  # an entry's id and body


class Batch:
    """The changes of one commit. An entry is in ``entries`` or in one of ``runs``; if in both, the one in ``entries`` is newer. Runs of a
    ledger never overlap."""

    __slots__ = ("bytes", "demand", "dropped", "entries", "position", "record", "records", "runs")

    def __init__(self) -> None:
        self.records: dict[int, LedgerRecord | None] = {}  # None: forgotten
        self.entries: dict[int, dict[int, bytes]] = {}
        self.runs: dict[int, list[StoredEntries]] = {}  # ascending
        self.dropped: set[int] = set()
        self.bytes = 0
        self.demand = 0  # the bytes that it may take on the disk (BKE-8)
        self.position = 0  # of the storage, 0 if nothing was added
        self.record = 0  # the number of the last journal record in it, 0 if there is none

    def add(self, change: Change) -> None:
        ledger_id = change.record.ledger_id
        if isinstance(change, PersistMany):
            self.records[ledger_id] = change.record
            self._add_run(ledger_id, StoredEntries(change.first_entry_id, change.count, change.bodies))
            self.bytes += len(change.bodies) + _ENTRY_COST
            self.demand += demand_of_run(len(change.bodies))
            return
        self.demand += demand_of_change(len(change.body))
        self.records[ledger_id] = None if change.forget else change.record
        if change.drop_entries:
            self._drop(ledger_id)
        if change.entry_id is not None:
            self.entries.setdefault(ledger_id, {})[change.entry_id] = change.body
            self.bytes += len(change.body) + _ENTRY_COST

    def absorb(self, later: Batch) -> None:
        """Put the changes of ``later`` behind those of this batch."""
        for ledger_id in later.dropped:
            self._drop(ledger_id)
        self.records.update(later.records)
        for ledger_id, runs in later.runs.items():
            for run in runs:
                self._add_run(ledger_id, run)
        for ledger_id, entries in later.entries.items():
            self.entries.setdefault(ledger_id, {}).update(entries)
        self.bytes += later.bytes
        self.demand += later.demand
        self.position = later.position or self.position
        self.record = later.record or self.record

    def count_demand(self) -> None:
        """Count the demand of a batch that was read back."""
        self.demand = sum(demand_of_run(len(run.bodies)) for runs in self.runs.values() for run in runs)
        self.demand += sum(demand_of_change(len(body)) for entries in self.entries.values() for body in entries.values())
        self.demand += demand_of_change(0) * len(self.records)

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        body = self.entries.get(ledger_id, _NOTHING).get(entry_id)
        if body is not None:
            return body
        run = self.run_at(ledger_id, entry_id)
        return run.body(entry_id) if run is not None and entry_id <= run.last else None

    def run_at(self, ledger_id: int, entry_id: int) -> StoredEntries | None:
        """Return the run with the greatest start up to ``entry_id``; it may end before that entry."""
        runs = self.runs.get(ledger_id)
        index = bisect_right(runs, entry_id, key=_first) if runs else 0
        return runs[index - 1] if runs and index else None

    def start_after(self, ledger_id: int, entry_id: int) -> int:
        """Return the start of the next run behind ``entry_id``, or a number beyond all ids if there is none."""
        runs = self.runs.get(ledger_id, [])
        index = bisect_right(runs, entry_id, key=_first)
        return runs[index].first if index < len(runs) else ID_END

    def entry_runs(self, ledger_id: int, first_entry_id: int) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of the entries from an id on, in no order; an id may come twice."""
        for run in self.runs.get(ledger_id, ()):
            if run.last >= first_entry_id:
                yield run.first, run.size
        for entry_id in self.entries.get(ledger_id, ()):
            if entry_id >= first_entry_id:
                yield entry_id, 1

    def pieces(self, bytes_max: int) -> Iterator[list[tuple[int, StoredEntries | Single]]]:
        """Yield ledger and run or entry of everything, in the order in which to store them; a piece ends when it has
        ``bytes_max`` bytes."""
        piece: list[tuple[int, StoredEntries | Single]] = []
        size = 0
        for ledger_id, item in self._items():
            piece.append((ledger_id, item))
            size += len(item.bodies) if isinstance(item, StoredEntries) else len(item[1])
            if size >= bytes_max:
                yield piece
                piece, size = [], 0
        yield piece

    def _items(self) -> Iterator[tuple[int, StoredEntries | Single]]:
        for ledger_id, runs in self.runs.items():
            for run in runs:
                yield ledger_id, run
        for ledger_id, entries in self.entries.items():
            for single in entries.items():
                yield ledger_id, single

    def _drop(self, ledger_id: int) -> None:
        self.dropped.add(ledger_id)
        self.entries.pop(ledger_id, None)
        self.runs.pop(ledger_id, None)

    def _add_run(self, ledger_id: int, run: StoredEntries) -> None:
        entries = self.entries.get(ledger_id)
        before = self.run_at(ledger_id, run.last)
        if (before is not None and before.last >= run.first) or (
            entries and any(map(entries.__contains__, range(run.first, run.last + 1)))
        ):
            self.entries.setdefault(ledger_id, {}).update(singles(run))
        else:
            runs = self.runs.setdefault(ledger_id, [])
            runs.insert(bisect_right(runs, run.first, key=_first), run)


_NOTHING: dict[int, bytes] = {}


def singles(run: StoredEntries) -> Iterator[Single]:
    """Yield the entries of a run one by one."""
    for entry_id, body in enumerate(split_bodies(run.bodies), run.first):
        yield entry_id, bytes(body)


def _first(run: StoredEntries) -> int:
    return run.first
