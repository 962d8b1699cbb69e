"""A bookie's storage in memory that simulates crashes, for the simulator and for tests.

Faults are methods to call (``crash``, ``wipe``, ``damage``, ``lose_fences``). The guarantees of a correct bookie are small methods to
override (``_visible``, ``_after_crash``, ``_read_body``).
"""

from __future__ import annotations

from dataclasses import replace

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie.records import Change, LedgerRecord, PersistMany
from bk_core.protocol.wire.codec_v2 import join_bodies, split_bodies

_AT_HAND_MAX, _APART = 4, 5


class _Contents:
    __slots__ = ("entries", "records")

    def __init__(self) -> None:
        self.records: dict[int, LedgerRecord] = {}
        self.entries: dict[int, dict[int, bytes]] = {}

    def apply(self, change: Change) -> None:
        ledger_id = change.record.ledger_id
        self.records[ledger_id] = change.record
        if isinstance(change, PersistMany):
            bodies = enumerate(split_bodies(change.bodies), change.first_entry_id)
            self.entries.setdefault(ledger_id, {}).update((entry_id, bytes(body)) for entry_id, body in bodies)
            return
        if change.drop_entries:
            self.entries.pop(ledger_id, None)
        if change.entry_id is not None:
            self.entries.setdefault(ledger_id, {})[change.entry_id] = change.body
        if change.forget:
            del self.records[ledger_id]

    def copy(self) -> _Contents:
        other = _Contents()
        other.records = dict(self.records)
        other.entries = {ledger_id: dict(entries) for ledger_id, entries in self.entries.items()}
        return other


class MemoryBookieStorage:
    """A storage in memory. Reads see ``applied``; a crash leaves ``durable``. ``sync`` makes changes durable in the order they were made.

    A reply may leave once ``durable_position`` has reached the ``position`` at which it was made.
    """

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self._applied = _Contents()
        self._durable = _Contents()
        self._changes: list[Change] = []
        self._damaged: set[tuple[int, int]] = set()
        self._total_bytes = total_bytes
        self.position = 0
        self.durable_position = 0

    # --- view -----------------------------------------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self._applied.records.get(ledger_id)

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        body = self._visible().entries.get(ledger_id, {}).get(entry_id)
        return None if body is None else self._read_body(ledger_id, entry_id, body)

    def entries(self, ledger_id: int, first_entry_id: int, entries_max: int, bytes_max: int) -> tuple[int, bytes]:
        """Return up to four entries at once, but some ids never, so that tests meet every boundary."""
        found: list[bytes] = []
        if first_entry_id % _APART == _APART - 1:
            return 0, b""
        for entry_id in range(first_entry_id, first_entry_id + min(entries_max, _AT_HAND_MAX)):
            try:
                body = self.entry(ledger_id, entry_id)
            except BookieIOError:
                break
            if body is None or 4 + len(body) > bytes_max:
                break
            bytes_max -= 4 + len(body)
            found.append(body)
        return len(found), join_bodies(found)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """Return the ids in ascending order."""
        return sorted(self._visible().entries.get(ledger_id, ()))

    def entry_runs(self, ledger_id: int, first_entry_id: int, rows_max: int) -> tuple[list[tuple[int, int]], int | None]:
        """Return runs of ids. One entry is one row, and there are at most four rows at once, so that tests meet every boundary."""
        found = [entry_id for entry_id in self.entry_ids(ledger_id) if entry_id >= first_entry_id]
        rows = found[: min(rows_max, _AT_HAND_MAX)]
        return [(entry_id, 1) for entry_id in rows], rows[-1] + 1 if len(rows) < len(found) else None

    def _visible(self) -> _Contents:
        """Return what reads see: applied changes are visible at once, durable or not (B-5)."""
        return self._applied

    def _read_body(self, ledger_id: int, entry_id: int, body: bytes) -> bytes:
        """Return the body of an entry. One that the index knows and that cannot be read is an error (B-7)."""
        if (ledger_id, entry_id) in self._damaged:
            raise BookieIOError("damaged entry", ledger_id=ledger_id, entry_id=entry_id)
        return body

    def ledger_ids(self) -> list[int]:
        """Return the ids of ledgers with a record, without tombstones, ascending."""
        return sorted(ledger_id for ledger_id, record in self._applied.records.items() if not record.deleted)

    def tombstone_ids(self) -> list[int]:
        """Return the ids of deleted ledgers that are not forgotten yet, ascending."""
        return sorted(ledger_id for ledger_id, record in self._applied.records.items() if record.deleted)

    def limbo_ids(self) -> list[int]:
        """Return the ids of ledgers in limbo, ascending."""
        return sorted(ledger_id for ledger_id, record in self._applied.records.items() if record.limbo)

    def disk_bytes(self) -> tuple[int, int]:
        used = sum(len(body) for entries in self._applied.entries.values() for body in entries.values())
        return self._total_bytes, max(0, self._total_bytes - used)

    # --- changes --------------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Apply changes: reads see them at once, though they are not yet durable (B-5). A new copy of a damaged entry is sound."""
        self._applied.apply(change)
        self._changes.append(change)
        self.position += 1
        if isinstance(change, PersistMany):
            self._damaged -= {(change.record.ledger_id, change.first_entry_id + number) for number in range(change.count)}
        elif change.entry_id is not None:
            self._damaged.discard((change.record.ledger_id, change.entry_id))

    def sync(self, changes: int | None = None) -> int:
        """Make the oldest ``changes`` pending ones durable (all, if None). Returns the new durable position."""
        count = len(self._changes) if changes is None else min(changes, len(self._changes))
        for change in self._changes[:count]:
            self._durable.apply(change)
        del self._changes[:count]
        self.durable_position += count
        return self.durable_position

    # --- faults ---------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Lose everything that was not synced. The host must never send the replies that still wait."""
        self._durable = self._after_crash(self._durable)
        self._applied = self._durable.copy()
        self._changes.clear()
        self.position = self.durable_position

    def _after_crash(self, durable: _Contents) -> _Contents:
        """Return what survives a crash: all that was synced, fence marks included (B-6)."""
        return durable

    def wipe(self) -> None:
        """Lose everything, as a replaced disk does (B-10)."""
        self._durable = _Contents()
        self._damaged.clear()
        self.crash()

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Make every later read of the entry fail, until it is stored again."""
        self._damaged.add((ledger_id, entry_id))

    def lose_fences(self) -> None:
        """Break B-6: fence marks are lost and entries are not, as after a crash that lost unsynced index files."""
        for contents in (self._applied, self._durable):
            contents.records = {ledger_id: replace(record, fenced=False) for ledger_id, record in contents.records.items()}
